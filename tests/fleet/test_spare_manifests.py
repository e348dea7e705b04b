"""Spare nodes of pools on EKS: pods that hold them, and leave them to all others on the real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.fleet import spare_manifests
from llm_serving.fleet.model import Fleet
from llm_serving.operations.kube_api import POD
from llm_serving.settings import own_yaml
from llm_serving.targets.eks import namespace
from tests.control_plane import machines
from tests.control_plane.control_plane import NODE, ControlPlane

FLEET = Fleet.model_validate(
    {
        "name": "demo",
        "region": "us-west-2",
        "zones": ("us-west-2a", "us-west-2b"),
        "pools": {
            "general": {"types": "g6e.48xlarge", "size": "0..8", "spare": 1, "taints": ("team=ads:NoSchedule",)},
            "none": {"types": ["g6e.12xlarge", "g6e.48xlarge"], "size": "0..8"},
            "neuron": {"types": "inf2.48xlarge", "size": "0..4", "spare": 2},
            "routers": {"types": "m8g.2xlarge", "size": "1..2"},
        },
    }
)

PRIORITY_CLASS = own_yaml.read(Path(namespace.__file__).with_suffix(".yaml"))["priority"]
"""Of replicas that give way."""


def build() -> list[dict[str, Any]]:
    return spare_manifests.build(FLEET)


def test_each_pool_with_accelerators_has_pods_that_fill_its_first_type() -> None:
    deployments = {item["metadata"]["name"]: item["spec"] for item in build() if item["kind"] == "Deployment"}
    requests = {
        name: spec["template"]["spec"]["containers"][0]["resources"]["requests"] for name, spec in deployments.items()
    }
    counts = {name: spec["replicas"] for name, spec in deployments.items()}
    assert counts == {"general": 1, "none": 0, "neuron": 2}, "routers have no accelerators"
    assert (requests["general"]["nvidia.com/gpu"], requests["none"]["nvidia.com/gpu"]) == (8, 4)
    assert requests["neuron"]["aws.amazon.com/neuron"] == 12


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes of the pool, with its spare node's pod and the class of replicas that give way."""
    control_plane.api.apply(machines.build_for_pool(FLEET, "general", 2))
    control_plane.api.apply([*build(), PRIORITY_CLASS])
    yield control_plane
    control_plane.api.delete_objects([work("first", 0), work("second", 0), *build()], 60)
    control_plane.api.delete_all(NODE, timeout_s=60)


def work(name: str, replicas: int, priority_class: str = "") -> dict[str, Any]:
    """A Deployment whose pods fill a node each."""
    [template] = [item for item in build() if item["metadata"]["name"] == "general"]
    labels, pod = {"app": name}, dict(template["spec"]["template"]["spec"])
    del pod["priorityClassName"]
    if priority_class:
        pod["priorityClassName"] = priority_class
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {**template, "metadata": {"name": name, "namespace": "spare"}, "spec": spec}


def test_whoever_finds_no_node_takes_the_spare_one_at_once_and_gives_it_back(nodes: ControlPlane) -> None:
    def count(labels: str, phase: str) -> int:
        pods = nodes.api.list_objects(POD, "spare", labels=labels)
        return sum(pod["status"]["phase"] == phase and "deletionTimestamp" not in pod["metadata"] for pod in pods)

    def list_unplaced(labels: str) -> list[Any]:
        """List the conditions by which the scheduler says that it found no node."""
        pods = nodes.api.list_objects(POD, "spare", labels=labels)
        conditions = [row for pod in pods for row in pod["status"].get("conditions", ())]
        return [row for row in conditions if row.get("reason") == "Unschedulable"]

    spare = "fleet/pool=general"
    processes.wait_until(lambda: count(spare, "Running") == 1, "the spare node's pod", 60)
    nodes.api.apply([work("first", 1)])
    processes.wait_until(lambda: count("app=first", "Running") == 1, "work on the other node", 60)
    assert count(spare, "Running") == 1, "nobody needed it"
    nodes.api.apply([work("second", 1, PRIORITY_CLASS["metadata"]["name"])])
    processes.wait_until(lambda: bool(list_unplaced("app=second")), "a replica that gives way", 60)
    nodes.api.apply([work("first", 2)])
    processes.wait_until(lambda: count("app=first", "Running") == 2, "work on the spare node", 60)
    processes.wait_until(lambda: count(spare, "Pending") == 1, "a pod for which a node would start", 60)
    assert count("app=second", "Pending") == 1, "it took no spare node, though it waited first"
    nodes.api.apply([work("second", 0), work("first", 1)])
    processes.wait_until(lambda: count(spare, "Running") == 1, "the spare node's pod again", 60)
