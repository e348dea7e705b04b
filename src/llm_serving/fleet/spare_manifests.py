"""Spare nodes of the fleet's pools on EKS, as plain data: pods without work hold their accelerators.

Any other pod that finds no node takes theirs at once. They then wait, for which a further node starts up to the pool's
size. Each pool has its Deployment, with no replica where it keeps no spare node: one that the file no longer has ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_serving.catalog import eks, instances
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml

Manifest = dict[str, Any]

NAME = "spare"
"""Of their namespace and their PriorityClass."""

IMAGE = "eks/pause:3.10"
"""In EKS's own registry of the region, which nodes reach in every network.

By its tag: AWS names no digest of it, and its registry, of another account in each region, answers with an account's
login only. Source: awslabs/amazon-eks-ami 9e910f8, templates/al2023/variables-default.json.
"""

_FILE = Path(__file__).with_name("spare.yaml")


def build(fleet: Fleet) -> list[Manifest]:
    """Return all of them; what others name comes first."""
    first_choices: dict[str, Group] = {}
    for group in groups.resolve_all(fleet):
        if group.orchestrator == "eks" and group.accelerators:
            first_choices.setdefault(group.pool, group)
    manifests = own_yaml.read(_FILE)
    image = f"{format_registry(eks.REGISTRY_ACCOUNTS[fleet.region], fleet.region)}/{IMAGE}"
    return [
        *manifests["shared"],
        *(
            own_yaml.fill_values(
                manifests["of_pool"],
                {
                    "pool": pool,
                    "replicas": fleet.pools[pool].spare,
                    "image": image,
                    "tolerations": [taint.toleration for taint in group.taints],
                    **_build_resources(group),
                },
            )
            for pool, group in first_choices.items()
        ),
    ]


def _build_resources(group: Group) -> dict[str, Manifest]:
    accelerators = instances.find(group.types[0]).accelerators
    assert accelerators
    devices = {accelerators.device: accelerators.count}
    return {
        "requests": {"cpu": "10m", "memory": "16Mi", **devices},
        "limits": {"cpu": "100m", "memory": "16Mi", **devices},
    }
