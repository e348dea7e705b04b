"""Nodes simulated by kwok, with the status of a kubelet on EKS: the scheduler uses nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import node_config
from llm_serving.fleet.groups import resolve_pool
from llm_serving.fleet.interfaces import EFA_HUGE_PAGES
from llm_serving.fleet.model import Fleet

_VM_OVERHEAD = 0.075
"""Share of an instance type's memory that its node lacks, as Karpenter assumes (vmMemoryOverheadPercent)."""


def build_for_pool(fleet: Fleet, pool: str, count: int, name: str = "", **labels: str) -> list[dict[str, Any]]:
    """Build nodes of a pool's first choice, in its zones in turn, named after the pool."""
    group = resolve_pool(fleet, pool)[0]
    row = instances.load()[group.types[0]]
    return [
        build(
            f"{name or pool}-{number}",
            {**labels, **group.labels, **_build_labels(row, group.zones[number % len(group.zones)])},
            compute_allocatable(
                row, efa=group.efa > 0, disk=f"{row.nvme_gb}G" if group.nvme else f"{group.volume.size_gib}Gi"
            ),
            taints=[{"key": entry.key, "value": entry.value, "effect": entry.effect} for entry in group.taints],
        )
        for number in range(count)
    ]


def build_plain(name: str, **labels: str) -> dict[str, Any]:
    """Build a node without accelerators, for the cluster's add-ons."""
    return build(name, labels, {"cpu": "7900m", "memory": "28Gi", "ephemeral-storage": "80Gi", "pods": "110"})


def build(name: str, labels: Mapping[str, str], allocatable: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    """Build a node.

    Args:
        allocatable: resources for pods, as Kubernetes quantities.
        spec: further fields, such as taints.
    """
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **labels}},
        "spec": spec,
        "status": {"capacity": dict(allocatable), "allocatable": dict(allocatable)},
    }


def build_for_type(row: Instance, count: int, name: str, **labels: str) -> list[dict[str, Any]]:
    """Nodes of a type in one zone, with all of its resources, tainted for pods that request accelerators."""
    allocatable = compute_allocatable(
        row, efa=row.efa_interfaces > 0, disk=f"{row.nvme_gb}G" if row.nvme_gb else "500Gi"
    )
    taints = [{"key": row.accelerators.device, "effect": "NoSchedule"}] if row.accelerators else []
    all_labels = {**_build_labels(row, "us-east-1a"), **labels}
    return [build(f"{name}-{number}", all_labels, allocatable, taints=taints) for number in range(count)]


def compute_allocatable(row: Instance, *, efa: bool, disk: str) -> dict[str, str]:
    """What a machine has left for pods. Source: awslabs/amazon-eks-ami, nodeadm, kubelet's reserved resources, 2026-11."""
    huge_mib = 2 * EFA_HUGE_PAGES if efa else 0
    reserved_mib = 255 + 11 * node_config.MAX_PODS + 100
    by_core = [60, 10, 5, 5]  # thousandths of the first cores; 2.5 of each further one
    reserved_cpu = sum(by_core[: row.vcpus]) + 2.5 * max(0, row.vcpus - len(by_core))
    resources = {
        "cpu": f"{row.vcpus * 1000 - int(reserved_cpu) - 1}m",
        "memory": f"{int(row.memory_mib * (1 - _VM_OVERHEAD)) - huge_mib - reserved_mib}Mi",
        "ephemeral-storage": disk,
        "pods": str(node_config.MAX_PODS),
    }
    if efa:
        resources |= {"vpc.amazonaws.com/efa": str(row.efa_interfaces), "hugepages-2Mi": f"{huge_mib}Mi"}
    if row.accelerators:
        resources[row.accelerators.device] = str(row.accelerators.count)
    return resources


def _build_labels(row: Instance, zone: str) -> dict[str, str]:
    """What EKS and the AWS cloud provider put on a node, beside the fleet's own labels."""
    return {
        "node.kubernetes.io/instance-type": row.name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": zone[:-1],
        "kubernetes.io/os": "linux",
    }
