from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import images
from llm_serving.fleet import groups, network_test
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

FLEET = """\
name: demo
region: us-east-1
zones: [us-east-1a, us-east-1b]
orchestrator: {orchestrator}
pools:
  large: {{types: p5.48xlarge, zones: us-east-1b, size: 2, efa: on}}
  plain: {{types: g6e.2xlarge, size: 2}}
"""


def _load(tmp_path: Path, orchestrator: str) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(orchestrator=orchestrator))
    return load(file, Fleet).value


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return groups.resolve_pool(_load(tmp_path, "eks"), "large")[0]


def test_the_image_is_pinned_by_digest() -> None:
    assert "@sha256:" in images.pin(images.NCCL_TESTS)


def test_each_pod_takes_a_whole_instance_of_the_pool_in_its_zone(group: Group) -> None:
    job = network_test.build_manifests(group, image="registry/image@sha256:1", nodes=2, limit_s=60)[-1]
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == (8, 32)
    assert pod["nodeSelector"] == {
        "fleet/pool": "large",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/zone": "us-east-1b",
    }
    assert pod["containers"][0]["image"] == "registry/image@sha256:1"
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu"]


def test_only_pods_of_the_test_may_connect_to_each_other(group: Group) -> None:
    policy = network_test.build_manifests(group, image="image", nodes=2, limit_s=60)[1]
    assert policy["kind"] == "NetworkPolicy"
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": {"app": "nccl"}}}]}]


def test_a_task_on_ecs_takes_all_gpus_and_every_efa_device(group: Group) -> None:
    container: Any = network_test.build_task_container(group, image="image", logs={})
    assert container["resourceRequirements"] == [{"type": "GPU", "value": "8"}]
    paths = [device["hostPath"] for device in container["linuxParameters"]["devices"]]
    assert paths == [f"/dev/infiniband/uverbs{number}" for number in range(32)]


def test_pools_on_ecs_with_gpus_and_efa_can_be_tested(tmp_path: Path) -> None:
    for orchestrator, pools in (("ecs", ["large"]), ("eks", [])):
        resolved = groups.resolve_all(_load(tmp_path, orchestrator))
        assert [group.pool for group in network_test.list_task_groups(resolved)] == pools
