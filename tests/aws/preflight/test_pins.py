"""Neither add-ons nor AMIs of AWS are in the embedded AWS: EKS's and SSM's answers are recorded in their own shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws.preflight import pins
from llm_serving.catalog import ecs, eks
from llm_serving.fleet.eks_add_ons import list_eks_add_ons
from llm_serving.fleet.model import Fleet

POOL = "  general:\n    types: g6e.xlarge\n    size: 1\n"
ECS_HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\norchestrator: ecs\n"
SCHEMAS = {
    file.stem: json.loads(file.read_text())["schema"]
    for file in (Path(__file__).parents[2] / "fleet" / "add_on_schemas").glob("*.json")
}


def _execute(aws: Any, fleet: Fleet, name: str) -> dict[str, Any]:
    (check,) = [check for check in pins.list_checks(aws, fleet) if check.name == name]
    return {line.name: line for line in check.list_results()}


@pytest.mark.parametrize(
    ("status", "verdict"), [("STANDARD_SUPPORT", "pass"), ("EXTENDED_SUPPORT", "warn"), ("UNSUPPORTED", "fail")]
)
def test_the_kubernetes_version_is_looked_for_among_those_that_eks_offers(
    stubbed_aws: Any, read_fleet: Any, status: str, verdict: str
) -> None:
    versions = [
        {"clusterVersion": "1.35", "versionStatus": status},
        {"clusterVersion": "1.36", "versionStatus": "STANDARD_SUPPORT"},
    ]
    stubbed_aws.stub("eks").add_response("describe_cluster_versions", {"clusterVersions": versions})
    line = _execute(stubbed_aws, read_fleet(POOL).value, "Kubernetes")["Kubernetes 1.35"]
    assert line.status == verdict
    if verdict == "fail":
        assert (line.message, line.fix) == (
            "EKS does not offer it; it offers 1.36",
            "set eks.version to one of these",
        )


def _stub_versions(stubbed_aws: Any, fleet: Fleet, missing: str = "") -> None:
    for add_on in list_eks_add_ons(fleet):
        offered = "v9.9.9-eksbuild.1" if add_on.name == missing else add_on.versions["1.35"]
        rows = [
            {"addonVersion": "v9.9.10-eksbuild.1", "compatibilities": [{"clusterVersion": "1.35"}]},
            {"addonVersion": offered, "compatibilities": [{"clusterVersion": "1.35", "defaultVersion": True}]},
        ]
        stubbed_aws.stub("eks").add_response(
            "describe_addon_versions",
            {"addons": [{"addonName": add_on.name, "addonVersions": rows}]},
            {"addonName": add_on.name, "kubernetesVersion": "1.35"},
        )


def test_every_add_on_in_the_version_that_eks_offers_passes(stubbed_aws: Any, read_fleet: Any) -> None:
    fleet = read_fleet(POOL).value
    _stub_versions(stubbed_aws, fleet)
    lines = _execute(stubbed_aws, fleet, "add-ons")
    assert list(lines) == [add_on.name for add_on in list_eks_add_ons(fleet)]
    assert {line.status for line in lines.values()} == {"pass"}


def test_a_version_that_eks_does_not_offer_fails_and_names_the_default(stubbed_aws: Any, read_fleet: Any) -> None:
    fleet = read_fleet(POOL).value
    _stub_versions(stubbed_aws, fleet, missing="coredns")
    lines = _execute(stubbed_aws, fleet, "add-ons")
    assert [name for name, line in lines.items() if line.status != "pass"] == ["coredns"]
    pinned = next(add_on.versions["1.35"] for add_on in list_eks_add_ons(fleet) if add_on.name == "coredns")
    assert lines["coredns"].message == (
        f"EKS does not offer {pinned} for Kubernetes 1.35; it offers v9.9.10-eksbuild.1 and v9.9.9-eksbuild.1"
    )
    assert lines["coredns"].fix == "pin v9.9.9-eksbuild.1 in src/llm_serving/catalog/eks.yaml"


def _stub_schemas(stubbed_aws: Any, fleet: Fleet, schemas: dict[str, Any], accounts: dict[str, str]) -> None:
    for add_on in list_eks_add_ons(fleet):
        if add_on.configuration or add_on.service_account:
            account = accounts.get(add_on.name, add_on.service_account)
            stubbed_aws.stub("eks").add_response(
                "describe_addon_configuration",
                {
                    "configurationSchema": json.dumps(schemas.get(add_on.name, {})),
                    "podIdentityConfiguration": [{"serviceAccount": account}] if account else [],
                },
                {"addonName": add_on.name, "addonVersion": add_on.versions["1.35"]},
            )


def test_values_that_fit_the_schemas_of_their_makers_pass(stubbed_aws: Any, read_fleet: Any) -> None:
    fleet = read_fleet(POOL).value
    _stub_schemas(stubbed_aws, fleet, SCHEMAS, {})
    lines = _execute(stubbed_aws, fleet, "add-on values")
    assert {line.status for line in lines.values()} == {"pass"}
    assert {f"{name} values" for name in SCHEMAS} <= set(lines)


def test_values_that_eks_would_refuse_fail_with_the_field(stubbed_aws: Any, read_fleet: Any) -> None:
    fleet = read_fleet(POOL).value
    closed = {"type": "object", "additionalProperties": False, "properties": {"nodeAgent": {"type": "object"}}}
    _stub_schemas(stubbed_aws, fleet, {"eks-node-monitoring-agent": closed}, {"aws-ebs-csi-driver": "another-sa"})
    lines = _execute(stubbed_aws, fleet, "add-on values")
    failed = {name: line.message for name, line in lines.items() if line.status == "fail"}
    assert list(failed) == ["aws-ebs-csi-driver values", "eks-node-monitoring-agent values"]
    assert "('dcgmAgent' was unexpected)" in failed["eks-node-monitoring-agent values"]
    assert "service account ebs-csi-controller-sa: EKS takes another-sa" in failed["aws-ebs-csi-driver values"]


def test_every_ami_of_a_fleet_is_looked_up_once(stubbed_aws: Any, read_fleet: Any) -> None:
    fleet = read_fleet(POOL).value
    for variant, arch in (("standard", "arm64"), ("nvidia", "x86_64")):
        name = eks.format_image_parameter(os="al2023", release=eks.AL2023, version="1.35", variant=variant, arch=arch)
        stubbed_aws.stub("ssm").add_response(
            "get_parameter", {"Parameter": {"Name": name, "Value": "ami-0123456789abcdef0"}}, {"Name": name}
        )
    lines = _execute(stubbed_aws, fleet, "AMIs")
    assert list(lines) == ["AMI al2023-standard-arm64", "AMI al2023-nvidia-x86_64"]
    assert {line.status for line in lines.values()} == {"pass"}


def test_a_release_without_a_parameter_fails_with_the_command_that_lists_the_others(
    stubbed_aws: Any, read_fleet: Any
) -> None:
    fleet = read_fleet(POOL, head=ECS_HEAD).value
    stubbed_aws.stub("ssm").add_client_error("get_parameter", "ParameterNotFound", "not found")
    (line,) = _execute(stubbed_aws, fleet, "AMIs").values()
    assert line.status == "fail"
    assert f"-{ecs.AL2023}-" in line.message
    assert line.fix == "set another release in ecs.al2023; to list them"
    assert line.command[:6] == (
        *("aws", "ssm", "get-parameters-by-path", "--recursive", "--path"),
        "/aws/service/ecs/optimized-ami/amazon-linux-2023/gpu",
    )


def test_an_ami_of_the_users_own_is_not_looked_up(stubbed_aws: Any, read_fleet: Any) -> None:
    fleet = read_fleet(f"{POOL}    ami: ami-0123456789abcdef0\n", head=ECS_HEAD).value
    assert _execute(stubbed_aws, fleet, "AMIs") == {}


def test_the_embedded_aws_is_not_blamed_for_amis_that_only_aws_has(shared_account: Any, read_fleet: Any) -> None:
    lines = _execute(shared_account, read_fleet(POOL).value, "AMIs")
    assert {(line.status, line.is_known) for line in lines.values()} == {("warn", False)}
