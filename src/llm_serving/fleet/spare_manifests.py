"""Spare nodes of the fleet's pools on EKS, as plain data: pods without work hold their accelerators.

Any other pod that finds no node takes theirs at once. They then wait, for which a further node starts up to the pool's
size. Each pool has its Deployment, with no replica where it keeps no spare node: one that the file no longer has ends.
"""

from __future__ import annotations

from typing import Any

from llm_serving.catalog import eks, instances
from llm_serving.catalog.instances import Catalog
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet

Manifest = dict[str, Any]

NAME = "spare"
"""Of their namespace and their PriorityClass."""

PRIORITY = -20
"""Below replicas that give way, which have -10 and preempt nobody. charts/platform.yaml has cluster-autoscaler start
nodes for them: by default it does from -10 on."""

IMAGE = "eks/pause:3.10"
"""In EKS's own registry of the region, which nodes reach in every network.

Source: awslabs/amazon-eks-ami 9e910f8, templates/al2023/variables-default.json.
"""


def build(fleet: Fleet, catalog: Catalog) -> list[Manifest]:
    """Return all of them; what others name comes first."""
    first_choices: dict[str, Group] = {}
    for group in groups.resolve_all(fleet, catalog):
        if group.orchestrator == "eks" and group.accelerators:
            first_choices.setdefault(group.pool, group)
    registry = format_registry(eks.REGISTRY_ACCOUNTS[fleet.region], fleet.region)
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAME, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": NAME},
            "description": "Pods without work, which leave their nodes to all others",
            "value": PRIORITY,
            "preemptionPolicy": "Never",
        },
        *(
            _build_deployment(group, fleet.pools[pool].spare, f"{registry}/{IMAGE}", catalog)
            for pool, group in first_choices.items()
        ),
    ]


def _build_deployment(group: Group, replicas: int, image: str, catalog: Catalog) -> Manifest:
    labels = {"app.kubernetes.io/name": NAME, "fleet/pool": group.pool}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": group.pool, "namespace": NAME, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": _build_pod(group, labels, image, catalog)},
        },
    }


def _build_pod(group: Group, labels: dict[str, str], image: str, catalog: Catalog) -> Manifest:
    accelerators = instances.find(group.types[0], catalog).accelerators
    assert accelerators
    return {
        "priorityClassName": NAME,
        "nodeSelector": {"fleet/pool": group.pool},
        "tolerations": [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
            for taint in group.taints
        ],
        # A lost zone leaves the others' spare nodes.
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "pause",
                "image": image,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {
                    "requests": {"cpu": "10m", "memory": "16Mi", accelerators.device: accelerators.count},
                    "limits": {"cpu": "100m", "memory": "16Mi", accelerators.device: accelerators.count},
                },
            }
        ],
    }
