from __future__ import annotations

import email
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml

from llm_serving.fleet import node_config as user_data
from llm_serving.fleet.groups import Group, resolve_pool
from llm_serving.fleet.interfaces import EFA_HUGE_PAGES
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.node_config import ClusterConnection

CLUSTER = ClusterConnection("demo", "https://${a}.eks.amazonaws.com", "Y2E=", "172.20.0.0/16")


def build_group(**settings: Any) -> Group:
    pool = {"types": "g6e.2xlarge", "size": "2", **settings}
    fleet = Fleet.model_validate(
        {"name": "demo", "region": "us-west-2", "zones": ["us-west-2a"], "pools": {"general": pool}}
    )
    return resolve_pool(fleet, "general")[0]


def parse_node_config(text: str) -> dict[str, Any]:
    [part] = [part for part in email.message_from_string(text).walk() if "node.eks" in part.get_content_type()]
    document: dict[str, Any] = yaml.safe_load(part.get_payload())
    return document


def test_user_data_has_the_cluster_the_labels_and_the_taints() -> None:
    spec = parse_node_config(user_data.render(build_group(), CLUSTER))["spec"]
    assert spec["cluster"] == {
        "name": "demo",
        "apiServerEndpoint": "https://${a}.eks.amazonaws.com",
        "certificateAuthority": "Y2E=",
        "cidr": "172.20.0.0/16",
    }
    assert spec["kubelet"]["flags"] == [
        "--node-labels=fleet/pool=general,fleet/purchase=on-demand,fleet/accelerator=l40s,"
        "k8s.amazonaws.com/accelerator=l40s",
        "--register-with-taints=nvidia.com/gpu=present:NoSchedule",
    ]
    assert spec["kubelet"]["config"] == {"maxPods": 110}


def test_images_are_pulled_in_parallel_unless_the_pool_is_plain() -> None:
    assert parse_node_config(user_data.render(build_group(), CLUSTER))["spec"]["featureGates"] == {
        "FastImagePull": True
    }
    assert "featureGates" not in parse_node_config(user_data.render(build_group(images="plain"), CLUSTER))["spec"]


def test_nvme_disks_form_a_raid_0_array() -> None:
    spec = parse_node_config(user_data.render(build_group(disk="nvme"), CLUSTER))["spec"]
    assert spec["instance"] == {"localStorage": {"strategy": "RAID0"}}
    assert "instance" not in parse_node_config(user_data.render(build_group(disk="gp3"), CLUSTER))["spec"]


def test_a_snapshot_is_mounted_at_containerds_image_store() -> None:
    text = user_data.render(build_group(images={"snapshot": "snap-0123456789abcdef0"}), CLUSTER)
    [part] = [part for part in email.message_from_string(text).walk() if part.get_content_type() == "text/cloud-config"]
    assert yaml.safe_load(part.get_payload())["mounts"] == [["/dev/xvdb", "/var/lib/containerd", "auto", "defaults"]]


def test_the_user_data_of_karpenter_nodes_omits_the_cluster() -> None:
    spec = parse_node_config(user_data.render(build_group()))["spec"]
    assert spec == {"featureGates": {"FastImagePull": True}}


def test_bottlerocket_gets_the_same_settings_as_toml() -> None:
    bottlerocket_group = replace(build_group(os="bottlerocket", disk="nvme"), labels={"fleet/pool": "general"})
    settings = tomllib.loads(user_data.render(bottlerocket_group, CLUSTER))["settings"]
    assert settings["kubernetes"]["cluster-name"] == "demo"
    assert settings["kubernetes"]["node-labels"] == {"fleet/pool": "general"}
    assert settings["kubernetes"]["node-taints"] == {"nvidia.com/gpu": ["present:NoSchedule"]}
    assert settings["container-runtime"]["snapshotter"] == "soci"
    soci = settings["container-runtime-plugins"]["soci-snapshotter"]
    assert soci["pull-mode"] == "parallel-pull-unpack"
    assert soci["parallel-pull-unpack"]["max-concurrent-downloads-per-image"] == 20
    [_, bind] = settings["bootstrap-commands"]["instance-store"]["commands"]
    assert "/var/lib/soci-snapshotter" in bind


@pytest.mark.parametrize("cluster", [CLUSTER, None], ids=["node group", "karpenter"])
def test_bottlerocket_sets_the_huge_pages_aside_that_pods_with_efa_ask_for(cluster: ClusterConnection | None) -> None:
    """As amazon-eks-user-guide has it in "Using Bottlerocket with EFA": no part of Bottlerocket does it by itself."""

    def read_kernel(group: Group) -> object:
        return tomllib.loads(user_data.render(group, cluster))["settings"].get("kernel")

    efa_group = build_group(os="bottlerocket", types="g6e.8xlarge", efa=True)
    assert read_kernel(efa_group) == {"sysctl": {"vm.nr_hugepages": str(EFA_HUGE_PAGES)}}
    assert read_kernel(build_group(os="bottlerocket")) is None


def test_bottlerocket_without_soci_uses_its_default_snapshotter() -> None:
    settings = tomllib.loads(user_data.render(build_group(os="bottlerocket", images="plain"), CLUSTER))["settings"]
    assert "container-runtime" not in settings
