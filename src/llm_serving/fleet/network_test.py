"""The network test as plain data: a Job on EKS, a container on ECS, and the program that both run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_serving.catalog.instances import DEVICES
from llm_serving.fleet import join_nodes
from llm_serving.fleet.groups import Group
from llm_serving.fleet.interfaces import EFA_HUGE_PAGES, list_device_files
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml

NAMESPACE = "network-test"
NAME = "nccl"

_FILE = Path(__file__).with_name("network_test.yaml")
_JOIN_PROGRAM = Path(join_nodes.__file__).read_text(encoding="utf-8")
_CPUS = 8
_MEMORY_GIB = 32
_SHARED_MEMORY_GIB = 8

Manifest = dict[str, Any]


def build_manifests(group: Group, *, image: str, nodes: int, limit_s: int) -> list[Manifest]:
    """Return the namespace, the service that names the pods, and the job.

    Args:
        group: the instances to test; all of one type.
        image: the image with nccl-tests, by the name that nodes pull it by.
        nodes: instances to run on.
        limit_s: seconds for instances to start, images to be pulled and the test to run.
    """
    # One pod takes all accelerators and interfaces of an instance, so no two share one.
    devices = {
        DEVICES["gpu"]: group.accelerators,
        "vpc.amazonaws.com/efa": group.efa,
        "hugepages-2Mi": f"{2 * EFA_HUGE_PAGES}Mi",
        "memory": f"{_MEMORY_GIB}Gi",
    }
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    variables = {**build_variables(group, nodes, limit_s), "LEADER": f"{NAME}-0.{NAME}.{NAMESPACE}.svc"}
    values = {
        "nodes": nodes,
        "limit_s": limit_s,
        "image": image,
        "command": ["python3", "-c", _JOIN_PROGRAM],
        "env": [
            {"name": "RANK", "valueFrom": rank},
            *({"name": name, "value": value} for name, value in variables.items()),
        ],
        "devices": devices,
        "requests": {**devices, "cpu": str(_CPUS)},
        "node_labels": {
            "fleet/pool": group.labels["fleet/pool"],
            "node.kubernetes.io/instance-type": group.types[0],
            "topology.kubernetes.io/zone": group.zones[0],
        },
        "tolerations": [taint.toleration for taint in group.taints],
    }
    return [own_yaml.fill_values(manifest, values) for manifest in own_yaml.read(_FILE)]


def build_variables(group: Group, nodes: int, limit_s: int) -> dict[str, str]:
    """Return the variables of the program in every container."""
    return {"NODES": str(nodes), "GPUS": str(group.accelerators), "LIMIT_S": str(limit_s)}


def format_task_family(fleet: Fleet, pool: str) -> str:
    return f"{fleet.name}-{pool}-network-test"


def format_log_group(fleet: Fleet) -> str:
    return f"/aws/ecs/{fleet.name}/network-test"


def build_task_container(group: Group, *, image: str, logs: dict[str, object]) -> dict[str, object]:
    """Return the container of a task on ECS; rank, nodes, limit and leader come as overrides of one run.

    Args:
        logs: the container definition's logConfiguration.
    """
    return {
        "name": NAME,
        "image": image,
        "essential": True,
        "cpu": _CPUS * 1024,
        "memory": _MEMORY_GIB * 1024,
        "entryPoint": ["python3", "-c", _JOIN_PROGRAM],
        "environment": [{"name": "GPUS", "value": str(group.accelerators)}],
        "resourceRequirements": [{"type": "GPU", "value": str(group.accelerators)}],
        # EFA pins memory.
        "ulimits": [{"name": "memlock", "softLimit": -1, "hardLimit": -1}],
        "linuxParameters": {
            "initProcessEnabled": True,
            "sharedMemorySize": _SHARED_MEMORY_GIB * 1024,
            "capabilities": {"add": ["IPC_LOCK"]},
            "devices": [
                {"hostPath": path, "containerPath": path, "permissions": ["read", "write", "mknod"]}
                for path in list_device_files(group.efa)
            ],
        },
        "logConfiguration": logs,
    }


def list_task_groups(fleet_groups: Iterable[Group]) -> list[Group]:
    """Return the first group of each pool on ECS that nccl-tests can run on: GPUs with EFA."""
    group_by_pool: dict[str, Group] = {}
    for group in fleet_groups:
        if group.orchestrator == "ecs" and group.efa and group.variant == "nvidia":
            group_by_pool.setdefault(group.pool, group)
    return list(group_by_pool.values())
