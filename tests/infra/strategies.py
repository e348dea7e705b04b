"""Hypothesis strategies for fleets that are right: every part of `fleet.yaml` in every combination that is not refused.

`fleets()` draws what the settings take and what the region offers; a fleet may still be too large for its addresses or
limits. `rentable()` draws those alone that `checks.find_mistakes` passes, for tests that synthesize.
"""

from __future__ import annotations

import functools
import string
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import aws_limits, checks
from llm_serving.fleet.groups import RESERVED_OPTIONS
from llm_serving.fleet.model import AddOns, Fleet, NewNetwork
from llm_serving.fleet.pool import Orchestrator, Pool, Reservation, Snapshot
from llm_serving.settings.document import Document
from llm_serving.settings.units import Bounds

REGIONS = ("us-east-1", "us-west-2", "us-east-2")
_LETTERS, _DIGITS = string.ascii_lowercase, string.digits
# As [a-z][a-z0-9-]{0,14}[a-z0-9], which Hypothesis would read anew for each name.
NAMES = st.tuples(
    st.sampled_from(_LETTERS), st.text(f"{_LETTERS}{_DIGITS}-", max_size=14), st.sampled_from(_LETTERS + _DIGITS)
).map("".join)
ID = st.text("0123456789abcdef", min_size=17, max_size=17)


def build_document(fleet: Fleet) -> Document[Fleet]:
    """Return the fleet as a document without positions."""
    return Document(Path("fleet.yaml"), fleet, {})


def rentable(max_size: int = 40) -> st.SearchStrategy[Fleet]:
    """Valid fleets with pools of up to `max_size` machines."""
    return fleets(max_size).filter(lambda fleet: not checks.find_mistakes(build_document(fleet)))


@st.composite
def fleets(draw: st.DrawFn, max_size: int = 2000) -> Fleet:
    """Fleets of one to four pools over one to four zones, with pools of up to `most` machines."""
    region = draw(st.sampled_from(REGIONS))
    region_zones = sorted({zone for row in instances.load().values() for zone in row.zones.get(region, ())})
    orchestrator = draw(st.sampled_from(("eks", "ecs", "both")))
    min_zones = 1 if orchestrator == "ecs" else aws_limits.MIN_EKS_ZONES
    zones = tuple(draw(st.lists(st.sampled_from(region_zones), min_size=min_zones, max_size=4, unique=True)))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return Fleet(
        name=draw(NAMES),
        region=region,
        zones=zones,
        orchestrator=orchestrator,
        network=NewNetwork(cidr=draw(st.sampled_from(("10.0.0.0/16", "10.20.0.0/18", "172.16.0.0/20")))),
        add_ons=AddOns(observability=draw(st.booleans()), gateway=orchestrator != "ecs" and draw(st.booleans())),
        pools={name: draw(_pools(region, zones, orchestrator, max_size)) for name in names},
    )


def _list_layouts(efa: bool, orchestrator: str) -> tuple[str, ...]:
    return ("save-addresses", "ip-bandwidth") if efa and orchestrator == "ecs" else ("save-addresses",)


@st.composite
def _pools(draw: st.DrawFn, region: str, zones: tuple[str, ...], orchestrator: str, max_size: int) -> Pool:
    pool_orchestrator: Orchestrator = draw(st.sampled_from(("eks", "ecs"))) if orchestrator == "both" else orchestrator  # type: ignore[assignment]
    first = draw(st.sampled_from(_find_offered(region, zones)))
    type_zones = tuple(zone for zone in zones if zone in first.zones[region])
    efa = bool(first.efa_interfaces) and draw(st.booleans())
    purchase = draw(st.sampled_from(_list_purchases(first)))
    reserved = purchase in (*RESERVED_OPTIONS, "reserve")
    is_single_zone = efa or reserved
    pool_zones = (draw(st.sampled_from(type_zones)),) if is_single_zone else type_zones
    substitutes = [row.name for row in _find_offered(region, pool_zones) if _is_substitute(row, first, efa)]
    more_types = [] if reserved else draw(st.lists(st.sampled_from(substitutes), max_size=2, unique=True))
    types = tuple(dict.fromkeys((first.name, *more_types)))
    min_size = draw(st.integers(0, 3))
    size = Bounds(min_size, draw(st.integers(max(1, min_size), max_size)))
    values: dict[str, Any] = {
        "types": types,
        "zones": pool_zones,
        "buy": _purchases(draw, purchase, size),
        "size": size,
        "orchestrator": pool_orchestrator if orchestrator == "both" else None,
        "efa": efa,
        "efa_layout": draw(st.sampled_from(_list_layouts(efa, pool_orchestrator))),
        "placement_group": "none" if purchase in RESERVED_OPTIONS else draw(st.sampled_from(("none", "cluster"))),
        "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2)),
    }
    return Pool(
        **values,
        **(_eks_settings(draw, size) if pool_orchestrator == "eks" else _ecs_settings(draw, values["buy"], size)),
    )


def _eks_settings(draw: st.DrawFn, size: Bounds) -> dict[str, Any]:
    provisioners = st.sampled_from((None, "node-groups") if size.min else (None, "node-groups", "karpenter"))
    return {
        "by": draw(provisioners),
        "os": draw(st.sampled_from(("al2023", "bottlerocket"))),
        "images": draw(st.sampled_from((None, "soci", "cached", "plain"))),
        "taints": draw(st.sampled_from(((), ("team=ads:NoSchedule",), ("alone:NoExecute",)))),
    }


def _ecs_settings(draw: st.DrawFn, buy: tuple[Any, ...], size: Bounds) -> dict[str, Any]:
    snapshot = Snapshot(snapshot=f"snap-{draw(ID)}")
    warm = draw(st.integers(0, min(3, size.max))) if "on-demand" in buy else 0
    return {"images": draw(st.sampled_from((None, "cached", "plain", snapshot))), "warm": warm}


def _purchases(draw: st.DrawFn, purchase: str, size: Bounds) -> tuple[Any, ...]:
    if purchase == "reserve":
        reserved = draw(st.integers(max(1, size.min), size.max))
        return (Reservation(reserve=reserved), *(("on-demand",) if reserved < size.max else ()))
    if purchase == "capacity-block":
        return (Reservation.model_validate({"capacity-block": f"cr-{draw(ID)}"}),)
    if purchase == "reservation":
        fallback = draw(st.sampled_from(((), ("on-demand",))))
        return (Reservation(reservation=f"cr-{draw(ID)}"), *fallback)
    return tuple(purchase.split("+"))


def _list_purchases(row: Instance) -> list[str]:
    purchases = ["on-demand", "reservation", "reserve"]
    purchases += ["spot", "spot+on-demand", "on-demand+spot"] if "spot" in row.purchase else []
    return purchases + (["capacity-block"] if "capacity-block" in row.purchase else [])


@functools.cache
def _find_offered(region: str, zones: tuple[str, ...]) -> list[Instance]:
    """Return the types that one of the zones has, by name."""
    rows = [row for row in instances.load().values() if set(zones) & set(row.zones.get(region, ()))]
    return sorted(rows, key=lambda row: row.name)


def _is_substitute(row: Instance, first: Instance, efa: bool) -> bool:
    """Whether one image runs on both, and both are sold alike."""
    kinds = [instance.accelerators.kind if instance.accelerators else None for instance in (row, first)]
    is_same = kinds[0] == kinds[1] and row.arch == first.arch and set(first.purchase) <= set(row.purchase)
    return is_same and (not efa or bool(row.efa_interfaces))
