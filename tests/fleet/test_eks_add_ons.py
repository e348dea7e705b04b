"""EKS's add-ons of a fleet, held against the schemas that their makers publish (`add_on_schemas/`, each with source)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llm_serving.catalog import eks
from llm_serving.fleet.eks_add_ons import list_eks_add_ons
from llm_serving.fleet.model import Fleet

SCHEMAS = {
    file.stem: json.loads(file.read_text()) for file in (Path(__file__).parent / "add_on_schemas").glob("*.json")
}


def build_fleet(**eks_settings: Any) -> Fleet:
    pools = {"general": {"types": "g6e.2xlarge", "size": "0..4"}}
    zones = ("us-west-2a", "us-west-2b")
    return Fleet(name="demo", region="us-west-2", zones=zones, pools=pools, eks=eks_settings)


def validate(name: str, configuration: Any) -> list[str]:
    validator = jsonschema.validators.validator_for(SCHEMAS[name]["schema"])(SCHEMAS[name]["schema"])
    return [error.message for error in validator.iter_errors(configuration)]


CONFIGURED = [
    add_on for add_on in list_eks_add_ons(build_fleet(csi_drivers=("efs", "fsx", "s3"))) if add_on.configuration
]


@pytest.mark.parametrize("add_on", CONFIGURED, ids=[add_on.name for add_on in CONFIGURED])
def test_what_eks_is_sent_fits_the_add_ons_published_schema(add_on: eks.AddOn) -> None:
    assert validate(add_on.name, add_on.configuration) == []


@pytest.mark.parametrize(
    ("name", "configuration", "message"),
    [
        ("eks-node-monitoring-agent", {"tolerations": [{"operator": "Exists"}]}, "'tolerations' was unexpected"),
        (
            "eks-node-monitoring-agent",
            {"nodeAgent": {"monitors": {"network": {"enabled": False}}}},
            "'network' was unexpected",
        ),
        ("vpc-cni", {"env": {"ENABLE_PREFIX_DELEGATON": "true"}}, "'ENABLE_PREFIX_DELEGATON' was unexpected"),
        ("vpc-cni", {"enableNetworkPolicy": True}, "True is not of type 'string'"),
        ("coredns", {"replicas": 3}, "'replicas' was unexpected"),
        ("coredns", {"autoScaling": {"minReplicas": 3}}, "'enabled' is a required property"),
        ("aws-ebs-csi-driver", {"controller": {"volumeTags": {}}}, "'volumeTags' was unexpected"),
    ],
)
def test_a_schema_refuses_what_its_add_on_does_not_know(name: str, configuration: Any, message: str) -> None:
    (error,) = validate(name, configuration)
    assert message in error


def test_every_schema_has_its_version_and_source_and_an_add_on_that_uses_it() -> None:
    assert set(SCHEMAS) == {add_on.name for add_on in CONFIGURED}
    assert all(
        row["version"].startswith("v") and row["source"] and row["add_on"] == name for name, row in SCHEMAS.items()
    )


def test_the_dcgm_server_runs_on_every_gpu_node_whatever_its_taints() -> None:
    (agent,) = [add_on for add_on in CONFIGURED if add_on.name == "eks-node-monitoring-agent"]
    assert (agent.configuration or {})["dcgmAgent"] == {"tolerations": [{"operator": "Exists"}]}


def test_only_the_agent_s_check_of_networks_is_off_which_calls_healthy_nodes_broken() -> None:
    (agent,) = [add_on for add_on in CONFIGURED if add_on.name == "eks-node-monitoring-agent"]
    assert (agent.configuration or {})["nodeAgent"] == {"monitors": {"networking": {"enabled": False}}}


def test_volumes_of_claims_have_the_fleets_tags_by_which_a_budget_counts_them() -> None:
    fleet = build_fleet().model_copy(update={"tags": {"team": "ads"}})
    (driver,) = [add_on for add_on in list_eks_add_ons(fleet) if add_on.name == "aws-ebs-csi-driver"]
    assert driver.configuration == {"controller": {"extraVolumeTags": {"team": "ads", "fleet": "demo"}}}


def test_names_are_looked_up_at_more_replicas_the_more_nodes_there_are() -> None:
    (dns,) = [add_on for add_on in CONFIGURED if add_on.name == "coredns"]
    scaling = (dns.configuration or {})["autoScaling"]
    assert scaling["enabled"] and 2 < scaling["minReplicas"] < scaling["maxReplicas"]


def test_the_network_plugin_enforces_network_policies() -> None:
    (cni,) = [add_on for add_on in CONFIGURED if add_on.name == "vpc-cni"]
    assert (cni.configuration or {})["enableNetworkPolicy"] == "true"


@pytest.mark.parametrize(
    ("csi_drivers", "expected"),
    [
        ((), ["aws-ebs-csi-driver"]),
        (("fsx",), ["aws-ebs-csi-driver", "aws-fsx-csi-driver"]),
        (
            ("s3", "efs", "fsx"),
            ["aws-ebs-csi-driver", "aws-efs-csi-driver", "aws-fsx-csi-driver", "aws-mountpoint-s3-csi-driver"],
        ),
    ],
)
def test_a_cluster_has_the_drivers_of_volumes_that_its_fleet_asks_for(
    csi_drivers: tuple[str, ...], expected: list[str]
) -> None:
    add_ons = list_eks_add_ons(build_fleet(csi_drivers=csi_drivers))
    assert [add_on.name for add_on in add_ons if add_on.name.endswith("csi-driver")] == expected
