"""Kueue's queues for the fleet's pools on EKS, as plain data: a pod with the label `kueue.x-k8s.io/queue-name: POOL`
waits until its whole group fits into what the pool's nodes hold at full size.

Quotas count the CPUs and memory of instances, so a little less fits: the kubelet and DaemonSets take their share.

Source: kueue.sigs.k8s.io/docs/concepts, and the CRDs of kubernetes-sigs/kueue v0.19.2, 2026-11.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances
from llm_serving.fleet import groups, names, node_template
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml

Manifest = dict[str, Any]

_FILE = Path(__file__).with_name("kueue.yaml")

_WITH_LAYERS = re.compile(r"(hpc|trn|p)[0-9]")
"""Families whose nodes get the network's labels; Kueue leaves a node without them out.

Source: kubernetes/cloud-provider-aws, pkg/resourcemanagers/topology.go.
"""


def build(fleet: Fleet) -> list[Manifest]:
    """Return all of them; what others name comes first."""
    groups_by_pool: dict[str, list[Group]] = {}
    for group in groups.resolve_all(fleet):
        if group.orchestrator == "eks":
            groups_by_pool.setdefault(group.pool, []).append(group)
    pools = [_build_values(pool, pool_groups) for pool, pool_groups in groups_by_pool.items()]
    templates = own_yaml.read(_FILE)
    return [
        templates["topology"],
        *(own_yaml.fill_values(templates["flavor"], pool) for pool in pools),
        *(own_yaml.fill_values(templates["cluster_queue"], pool) for pool in pools),
        own_yaml.fill_values(templates["namespace"], {"namespace": names.SERVING_NAMESPACE}),
        *(own_yaml.fill_values(templates["local_queue"], pool) for pool in pools),
    ]


def _build_values(pool: str, pool_groups: Sequence[Group]) -> dict[str, Any]:
    nodes: Manifest = {"nodeLabels": {"fleet/pool": pool}}
    if taints := pool_groups[0].taints:
        nodes["tolerations"] = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints]
    if _has_topology(pool_groups):
        nodes["topologyName"] = "ec2"
    quotas = _compute_quotas(pool_groups)
    return {
        "pool": pool,
        "namespace": names.SERVING_NAMESPACE,
        "nodes": nodes,
        "resources": list(quotas),
        "quotas": [{"name": resource, "nominalQuota": quota} for resource, quota in quotas.items()],
    }


def _has_topology(pool_groups: Sequence[Group]) -> bool:
    """Return whether Kueue may place by topology, which counts existing nodes and would never start the first."""
    return all(
        group.kind == "node-group"
        and group.min_size == group.max_size
        and all(_WITH_LAYERS.match(type_name) for type_name in group.types)
        for group in pool_groups
    )


def _count_most(group: Group) -> Counter[str]:
    """Count what the group's nodes hold at full size, all of them of the type that has most."""
    most: Counter[str] = Counter()
    for type_name in group.types:
        instance = instances.load()[type_name]
        resources = {"cpu": instance.vcpus, "memory": instance.memory_mib}
        for resource, count in (resources | node_template.count_resources(group, instance)).items():
            most[resource] = max(most[resource], group.max_size * count)
    return most


def _compute_quotas(pool_groups: Sequence[Group]) -> dict[str, str]:
    """Return what the pool's nodes hold at full size, all of them of the type that has most.

    The groups of one choice, one a zone, share the pool's size. Kueue admits no pod that asks for a resource without a
    quota, so that the list has all that a pod of the chart may ask for.
    """
    quotas: Counter[str] = Counter()
    for peers in groups.group_by_choice(pool_groups):
        quotas |= sum(map(_count_most, peers), Counter[str]())  # the larger of each
    return {
        resource: f"{quota}Mi" if resource == "memory" else node_template.format_amount(resource, quota)
        for resource, quota in quotas.items()
    }
