"""charts/platform.yaml: which charts a fleet's cluster runs, with their values filled in."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import model_validator

from llm_serving import paths
from llm_serving.catalog import eks, signals
from llm_serving.catalog.images import Digest
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import karpenter_manifests, log_outputs, names
from llm_serving.fleet.groups import Group, resolve_all
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FILE = paths.CHARTS / "platform.yaml"
_ALERT_ROUTES = Path(__file__).with_name("alert_routes.yaml")

NODE_POOLS = "node-pools"
QUEUES = "queues"
SPARE = "spare"
"""Manifests that are made from the fleet."""


class AddOn(PlainData):
    """One chart or manifest."""

    name: str
    why: str
    when: str
    """`always`, or one or two conditions joined by `and`."""

    adds: str | None = None
    """API version and name of a kind by which the API server shows that it is there; None for what adds none."""

    chart: str | None = None
    """A chart's name in `repository`, or its oci:// address."""

    repository: str | None = None
    version: str | None = None
    digest: Digest | None = None
    """Of the chart's archive, of its manifest in an OCI registry, or of a page; None where no source gives it."""

    manifest: str | None = None
    """Instead of a chart: a URL, a file beside the table, or what is made from the fleet: `node-pools`, `queues`,
    `spare`."""

    removed: bool = True
    """Whether it goes with the other charts; False for what adds to an object of somebody else."""

    source: str | None = None
    """Source of the version and the digest."""

    namespace: str | None = None
    values: Mapping[str, Any] | None = None

    @model_validator(mode="after")
    def _check_complete(self) -> AddOn:
        parts = (self.chart, self.version, self.namespace, self.source)
        own = (*parts[:3], not self.is_page and self.digest)
        if not (all(parts) if self.chart else self.manifest and not any(own)):
            raise ValueError(f"{self.name}: a chart has version, namespace and source; a manifest has none of its own")
        return self

    @property
    def is_page(self) -> bool:
        """Whether the manifest is a page on the Internet."""
        return "://" in (self.manifest or "")


@dataclass(frozen=True)
class SelectedAddOn:
    """One chart that a fleet needs, with its values filled in."""

    add_on: AddOn
    values: Mapping[str, Any]


def load_add_ons() -> tuple[AddOn, ...]:
    """Return the table, in the order to install it in."""
    return tuple(AddOn.model_validate(row) for row in own_yaml.read(FILE))


def select_add_ons(fleet: Fleet) -> list[SelectedAddOn]:
    """Return what a fleet's cluster runs."""
    conditions = _find_conditions(fleet)
    values = _collect_values(fleet)
    return [
        SelectedAddOn(add_on, own_yaml.fill_values(add_on.values or {}, values))
        for add_on in load_add_ons()
        if all(word in conditions for word in add_on.when.split(" and "))
    ]


def _find_conditions(fleet: Fleet) -> set[str]:
    eks_groups = [group for group in resolve_all(fleet) if group.orchestrator == "eks"]
    values = _collect_values(fleet)
    flags = {
        "gpus": bool(values["gpu_pools"]),
        "nvidia": bool(values["nvidia_pools"]),
        "neuron": bool(values["neuron_pools"]),
        "efa": bool(values["efa_pools"]),
        "karpenter": any(group.kind == "karpenter" for group in eks_groups),
        "node-groups": any(group.kind == "node-group" and group.min_size < group.max_size for group in eks_groups),
        "accelerators": any(group.accelerators for group in eks_groups),
        "logs": fleet.logs.to is not None,
        **fleet.add_ons.model_dump(),
    }
    return {"always", *(name for name, on in flags.items() if on)}


def _collect_values(fleet: Fleet) -> dict[str, Any]:
    eks_groups = [group for group in resolve_all(fleet) if group.orchestrator == "eks"]

    def select_pools(predicate: Callable[[Group], bool]) -> list[str]:
        return list(dict.fromkeys(group.pool for group in eks_groups if predicate(group)))

    registry = format_registry(eks.REGISTRY_ACCOUNTS[fleet.region], fleet.region)
    # Empty leaves Alertmanager's own routes, which tell nobody.
    routes = own_yaml.read(_ALERT_ROUTES) if fleet.alarms_to else {}
    alerts = own_yaml.fill_values(routes, {"topic": fleet.alarms_to, "region": fleet.region})
    existing_network = fleet.network if isinstance(fleet.network, ExistingNetwork) else None
    return {
        "cluster": names.format_cluster_name(fleet),
        "region": fleet.region,
        "tags": names.build_tags(fleet),
        "queue": names.format_interruption_queue(fleet),
        "efa_image": f"{registry}/eks/aws-efa-k8s-device-plugin",
        "gateway": "on" if fleet.add_ons.gateway else "off",
        "node_overlays": any(map(karpenter_manifests.needs_overlay, eks_groups)),
        "closed": fleet.is_closed,
        "internet": not fleet.is_closed,
        "vpc_id": existing_network.vpc if existing_network else "",
        "vpc_tags": {} if existing_network else names.build_vpc_tags(fleet),
        "alerts": alerts,
        "gpu_counters": _list_gpu_counters(),
        "gpu_pools": select_pools(lambda group: group.variant == "nvidia"),
        "nvidia_pools": select_pools(lambda group: group.variant == "nvidia" and group.os == "al2023"),
        "neuron_pools": select_pools(lambda group: group.variant == "neuron"),
        "efa_pools": select_pools(lambda group: group.efa > 0),
        **log_outputs.build_values(fleet),
        "priorities": _compute_priorities(group for group in eks_groups if group.kind == "node-group"),
    }


def _list_gpu_counters() -> str:
    """Return what dcgm-exporter is to collect, all of the table of signals, as it reads CSV."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name in signals.list_of_role("gpu"):
        signal = signals.load()[name]
        writer.writerow((signal.name, "gauge", signal.meaning))
    return lines.getvalue()


_FIRST_PRIORITY = 100
"""Priority of every pool's first choice; each further one has one less, and the system's own group the least."""


def _compute_priorities(node_groups: Iterable[Group]) -> dict[str, list[str]]:
    """Return the node groups by the order to fall back in, as cluster-autoscaler's priority expander takes it.

    It knows them by their Auto Scaling groups, which EKS names eks-GROUP-UUID, and leaves out what nothing matches.
    """
    priorities: dict[str, list[str]] = {}
    for group in node_groups:
        priorities.setdefault(str(max(2, _FIRST_PRIORITY - group.choice)), []).append(f"^eks-{group.name}-[0-9a-f-]+$")
    return {**priorities, "1": ["^eks-system-[0-9a-f-]+$"]}
