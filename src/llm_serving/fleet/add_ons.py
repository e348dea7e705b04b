"""charts/platform.yaml: which charts a fleet's cluster runs, with their values filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from llm_serving import paths
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import names
from llm_serving.fleet.groups import Group, groups
from llm_serving.fleet.model import ExistingNetwork, Fleet

FILE = paths.CHARTS / "platform.yaml"

NODE_POOLS = "node-pools"
"""The manifest that is made from the fleet."""


class Row(BaseModel):
    """One chart or manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    why: str
    when: str
    """`always`, or one or two conditions joined by `and`."""

    chart: str | None = None
    """A chart's name in `repository`, or its oci:// address."""

    repository: str | None = None
    version: str | None = None
    manifest: str | None = None
    """Instead of a chart: a URL, or `node-pools`."""

    source: str | None = None
    """Who said that this version is there."""

    namespace: str | None = None
    values: Mapping[str, Any] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Row:
        parts = (self.chart, self.version, self.namespace, self.source)
        if not (all(parts) if self.chart else self.manifest and not any(parts[:3])):
            raise ValueError(f"{self.name}: a chart has version, namespace and source; a manifest has none of its own")
        return self


@dataclass(frozen=True)
class Step:
    """One row that a fleet asks for, its values filled in."""

    row: Row
    values: Mapping[str, Any]


def rows() -> tuple[Row, ...]:
    """The table, in the order to install it in."""
    return tuple(Row.model_validate(row) for row in yaml.safe_load(FILE.read_text()))


def steps(fleet: Fleet, catalogue: Catalogue) -> list[Step]:
    """What a fleet's cluster runs."""
    held = _conditions(fleet, catalogue)
    known = _known(fleet, catalogue)
    return [
        Step(row, filled(row.values or {}, known))
        for row in rows()
        if all(word in held for word in row.when.split(" and "))
    ]


CONDITIONS = ("always", "nvidia", "neuron", "efa", "karpenter", "node-groups")
"""What a row's `when` may name beside the fleet's add-ons."""


def _conditions(fleet: Fleet, catalogue: Catalogue) -> set[str]:
    here = [group for group in groups(fleet, catalogue) if group.orchestrator == "eks"]
    pools = _known(fleet, catalogue)
    found = {
        "nvidia": bool(pools["nvidia_pools"]),
        "neuron": bool(pools["neuron_pools"]),
        "efa": bool(pools["efa_pools"]),
        "karpenter": any(group.kind == "karpenter" for group in here),
        "node-groups": any(group.kind == "node-group" and group.least < group.most for group in here),
        **fleet.add_ons.model_dump(),
    }
    return {"always", *(name for name, on in found.items() if on)}


def _known(fleet: Fleet, catalogue: Catalogue) -> dict[str, Any]:
    """What values may name."""
    here = [group for group in groups(fleet, catalogue) if group.orchestrator == "eks"]

    def pools(wanted: Callable[[Group], bool]) -> list[str]:
        return list(dict.fromkeys(group.pool for group in here if wanted(group)))

    existing = fleet.network if isinstance(fleet.network, ExistingNetwork) else None
    return {
        "cluster": names.cluster(fleet),
        "region": fleet.region,
        "queue": names.interruptions(fleet),
        "vpc_id": existing.vpc if existing else "",
        "vpc_tags": {} if existing else names.vpc_tags(fleet),
        "gpu_pools": pools(lambda group: group.variant == "nvidia"),
        "nvidia_pools": pools(lambda group: group.variant == "nvidia" and group.os == "al2023"),
        "neuron_pools": pools(lambda group: group.variant == "neuron"),
        "efa_pools": pools(lambda group: group.efa > 0),
        "priorities": _priorities(group for group in here if group.kind == "node-group"),
    }


_FIRST = 100
"""Priority of every pool's first choice; each further one has one less, and the system's own group the least."""


def _priorities(node_groups: Iterable[Group]) -> dict[str, list[str]]:
    """Node groups by the order to fall back in, as cluster-autoscaler's priority expander takes it.

    It knows them by their Auto Scaling groups, which EKS names eks-GROUP-UUID, and leaves out what nothing matches.
    """
    found: dict[str, list[str]] = {}
    for group in node_groups:
        found.setdefault(str(max(2, _FIRST - group.choice)), []).append(f"^eks-{group.name}-[0-9a-f-]+$")
    return {**found, "1": ["^eks-system-[0-9a-f-]+$"]}


def filled(value: Any, known: Mapping[str, Any]) -> Any:
    """Values with the names in braces replaced by what is known of the fleet."""
    if isinstance(value, Mapping):
        return {key: filled(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, known) for item in value]
    if isinstance(value, str):
        whole = re.fullmatch(r"\{(\w+)\}", value)
        return known[whole[1]] if whole else value
    return value
