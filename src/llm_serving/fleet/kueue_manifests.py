"""Kueue's queues for the fleet's pools on EKS, as plain data: a pod with the label `kueue.x-k8s.io/queue-name: POOL`
waits until its whole group fits into what the pool's nodes hold at full size.

Quotas count the CPUs and memory of instances, so a little less fits: the kubelet and DaemonSets take their share.

Source: kueue.sigs.k8s.io/docs/concepts, and the CRDs of kubernetes-sigs/kueue v0.19.2, 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llm_serving.catalog.instances import Catalog
from llm_serving.fleet import groups, names, node_template
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet

Manifest = dict[str, Any]

_VERSION = "kueue.x-k8s.io/v1beta2"
_TOPOLOGY = "ec2"

_LEVELS = (*(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3)), "kubernetes.io/hostname")
"""Labels of a node, from the network's widest part to the node itself.

Source: EKS user guide, "Amazon EC2 instance topology", 2026-11.
"""

_WITH_LAYERS = re.compile(r"(hpc|trn|p)[0-9]")
"""Families whose nodes get the network's labels; Kueue leaves a node without them out.

Source: kubernetes/cloud-provider-aws, pkg/resourcemanagers/topology.go.
"""


def build(fleet: Fleet, catalog: Catalog) -> list[Manifest]:
    """Return all of them; what others name comes first."""
    groups_by_pool: dict[str, list[Group]] = {}
    for group in groups.resolve_all(fleet, catalog):
        if group.orchestrator == "eks":
            groups_by_pool.setdefault(group.pool, []).append(group)
    topology = {**_build_object("Topology", _TOPOLOGY), "spec": {"levels": [{"nodeLabel": level} for level in _LEVELS]}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SERVING_NAMESPACE}}
    return [
        topology,
        *(_build_flavor(pool, pool_groups) for pool, pool_groups in groups_by_pool.items()),
        *(_build_cluster_queue(pool, pool_groups, catalog) for pool, pool_groups in groups_by_pool.items()),
        namespace,
        *(_build_local_queue(pool) for pool in groups_by_pool),
    ]


def _build_object(kind: str, name: str, **metadata: str) -> Manifest:
    return {"apiVersion": _VERSION, "kind": kind, "metadata": {"name": name, **metadata}}


def _build_flavor(pool: str, pool_groups: Sequence[Group]) -> Manifest:
    """Return the pool's nodes, as Kueue finds them."""
    spec: Manifest = {"nodeLabels": {"fleet/pool": pool}}
    if taints := pool_groups[0].taints:
        spec["tolerations"] = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints]
    if _has_topology(pool_groups):
        spec["topologyName"] = _TOPOLOGY
    return {**_build_object("ResourceFlavor", pool), "spec": spec}


def _has_topology(pool_groups: Sequence[Group]) -> bool:
    """Return whether Kueue may place by topology, which counts existing nodes and would never start the first."""
    return all(
        group.kind == "node-group"
        and group.min_size == group.max_size
        and all(_WITH_LAYERS.match(type_name) for type_name in group.types)
        for group in pool_groups
    )


def _build_cluster_queue(pool: str, pool_groups: Sequence[Group], catalog: Catalog) -> Manifest:
    quotas = _compute_quotas(pool_groups, catalog)
    flavor = {
        "name": pool,
        "resources": [{"name": resource, "nominalQuota": quota} for resource, quota in quotas.items()],
    }
    return {
        **_build_object("ClusterQueue", pool),
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": list(quotas), "flavors": [flavor]}],
        },
    }


def _build_local_queue(pool: str) -> Manifest:
    return {**_build_object("LocalQueue", pool, namespace=names.SERVING_NAMESPACE), "spec": {"clusterQueue": pool}}


def _compute_quotas(pool_groups: Sequence[Group], catalog: Catalog) -> dict[str, str]:
    """Return what the pool's nodes hold at full size, all of them of the type that has most.

    Kueue admits no pod that asks for a resource without a quota, so that the list has all that a pod of the chart may
    ask for.
    """
    quotas: dict[str, int] = {}
    for group in pool_groups:
        for type_name in group.types:
            instance = catalog[type_name]
            resources = {"cpu": instance.vcpus, "memory": instance.memory_mib}
            for resource, count in (resources | node_template.count_resources(group, instance)).items():
                quotas[resource] = max(quotas.get(resource, 0), group.max_size * count)
    return {
        resource: f"{quota}Mi" if resource == "memory" else node_template.format_amount(resource, quota)
        for resource, quota in quotas.items()
    }
