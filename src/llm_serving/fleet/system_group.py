"""The node group of an EKS cluster's own pods: CoreDNS, controllers and metrics."""

from __future__ import annotations

from llm_serving.catalog import eks, instances
from llm_serving.fleet import interfaces
from llm_serving.fleet.groups import SMALL_VOLUME, Group
from llm_serving.fleet.model import SYSTEM_POOL, Fleet

_SYSTEM_TYPES = (("m8g.xlarge", "arm64"), ("m7i.xlarge", "x86_64"))
"""For CoreDNS, controllers and metrics, in order of preference; the second is in every region."""


def build_system_group(fleet: Fleet) -> Group:
    """Return the system's own group: one small node a zone, and never less than two."""
    instance_type, arch, zones = _select_system_type(fleet)
    count = max(2, len(zones))
    return Group(
        name=SYSTEM_POOL,
        pool=SYSTEM_POOL,
        orchestrator="eks",
        kind="node-group",
        types=(instance_type,),
        zones=zones,
        purchase_option="on-demand",
        min_size=count,
        max_size=2 * count,
        interfaces=(interfaces.Interface(0, 0, "interface"),),
        labels={"fleet/pool": SYSTEM_POOL},
        images="plain",
        volume=SMALL_VOLUME,
        os="al2023",
        variant="standard",
        arch=arch,
    )


def _select_system_type(fleet: Fleet) -> tuple[str, eks.Arch, tuple[str, ...]]:
    first, second = _SYSTEM_TYPES
    offered = instances.load()[first[0]].zones.get(fleet.region, ()) if first[0] in instances.load() else ()
    zones = tuple(zone for zone in fleet.zones if zone in offered)
    return (first[0], "arm64", zones) if zones else (second[0], "x86_64", fleet.zones)
