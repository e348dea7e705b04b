"""Hypothesis strategies for fleets that are right: every part of `fleet.yaml` in every combination that is not refused.

`fleets()` draws what the settings take and what the region offers; a fleet may still be too large for its addresses or
limits. `rentable()` draws those alone that `feasibility.check` passes, for tests that synthesize.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import checks
from llm_serving.fleet.groups import PAID
from llm_serving.fleet.model import AddOns, Fleet, NewNetwork
from llm_serving.fleet.pool import Orchestrator, Pool, Reservation, Snapshot
from llm_serving.settings.document import Document
from llm_serving.settings.units import Bounds

REGIONS = ("us-east-1", "us-west-2", "us-east-2")
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,14}[a-z0-9]", fullmatch=True)
ID = st.text("0123456789abcdef", min_size=17, max_size=17)


def document(fleet: Fleet) -> Document[Fleet]:
    """The fleet as if it had been read from a file that says nothing of lines."""
    return Document(Path("fleet.yaml"), fleet, {})


def rentable(most: int = 40) -> st.SearchStrategy[Fleet]:
    """Fleets that nothing stands against, with pools of up to `most` machines."""
    catalogue = instances.load()
    return fleets(most).filter(lambda fleet: not checks.check(document(fleet), catalogue))


@st.composite
def fleets(draw: st.DrawFn, most: int = 2000) -> Fleet:
    """Fleets of one to four pools over one to four zones, with pools of up to `most` machines."""
    region = draw(st.sampled_from(REGIONS))
    there = sorted({zone for row in instances.load().values() for zone in row.zones.get(region, ())})
    zones = tuple(draw(st.lists(st.sampled_from(there), min_size=1, max_size=4, unique=True)))
    orchestrator = draw(st.sampled_from(("eks", "ecs", "both")))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return Fleet(
        name=draw(NAMES),
        region=region,
        zones=zones,
        orchestrator=orchestrator,
        network=NewNetwork(cidr=draw(st.sampled_from(("10.0.0.0/16", "10.20.0.0/18", "172.16.0.0/20")))),
        add_ons=AddOns(observability=draw(st.booleans()), gateway=orchestrator != "ecs" and draw(st.booleans())),
        pools={name: draw(_pools(region, zones, orchestrator, most)) for name in names},
    )


@st.composite
def _pools(draw: st.DrawFn, region: str, zones: tuple[str, ...], orchestrator: str, most: int) -> Pool:
    on: Orchestrator = draw(st.sampled_from(("eks", "ecs"))) if orchestrator == "both" else orchestrator  # type: ignore[assignment]
    first = draw(st.sampled_from(sorted(_offered(region, zones), key=lambda row: row.name)))
    here = tuple(zone for zone in zones if zone in first.zones[region])
    efa = bool(first.efa_interfaces) and draw(st.booleans())
    way = draw(st.sampled_from(_ways(first)))
    reserved = way in (*PAID, "reserve")
    one_zone = efa or reserved
    taken = (draw(st.sampled_from(here)),) if one_zone else here
    alike = [row.name for row in _offered(region, taken) if _stands_in(row, first, efa)]
    further = [] if reserved else draw(st.lists(st.sampled_from(alike), max_size=2, unique=True))
    types = tuple(dict.fromkeys((first.name, *further)))
    least = draw(st.integers(0, 3))
    size = Bounds(least, draw(st.integers(max(1, least), most)))
    values: dict[str, Any] = {
        "types": types,
        "zones": taken,
        "buy": _bought(draw, way, size),
        "size": size,
        "orchestrator": on if orchestrator == "both" else None,
        "efa": efa,
        "efa_layout": draw(st.sampled_from(("save-addresses", "ip-bandwidth"))) if efa else "save-addresses",
        "placement_group": "none" if way in PAID else draw(st.sampled_from(("none", "cluster"))),
        "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2)),
    }
    return Pool(**values, **(_of_eks(draw, size) if on == "eks" else _of_ecs(draw, values["buy"], size)))


def _of_eks(draw: st.DrawFn, size: Bounds) -> dict[str, Any]:
    by = st.sampled_from((None, "node-groups") if size.least else (None, "node-groups", "karpenter"))
    return {
        "by": draw(by),
        "os": draw(st.sampled_from(("al2023", "bottlerocket"))),
        "images": draw(st.sampled_from((None, "soci", "cached", "plain"))),
        "taints": draw(st.sampled_from(((), ("team=ads:NoSchedule",), ("alone:NoExecute",)))),
    }


def _of_ecs(draw: st.DrawFn, buy: tuple[Any, ...], size: Bounds) -> dict[str, Any]:
    snapshot = Snapshot(snapshot=f"snap-{draw(ID)}")
    warm = draw(st.integers(0, min(3, size.most))) if "on-demand" in buy else 0
    return {"images": draw(st.sampled_from((None, "cached", "plain", snapshot))), "warm": warm}


def _bought(draw: st.DrawFn, way: str, size: Bounds) -> tuple[Any, ...]:
    if way == "reserve":
        held = draw(st.integers(max(1, size.least), size.most))
        return (Reservation(reserve=held), *(("on-demand",) if held < size.most else ()))
    if way == "capacity-block":
        return (Reservation.model_validate({"capacity-block": f"cr-{draw(ID)}"}),)
    if way == "reservation":
        further = draw(st.sampled_from(((), ("on-demand",))))
        return (Reservation(reservation=f"cr-{draw(ID)}"), *further)
    return tuple(way.split("+"))


def _ways(row: Instance) -> list[str]:
    ways = ["on-demand", "reservation", "reserve"]
    ways += ["spot", "spot+on-demand", "on-demand+spot"] if "spot" in row.purchase else []
    return ways + (["capacity-block"] if "capacity-block" in row.purchase else [])


def _offered(region: str, zones: tuple[str, ...]) -> list[Instance]:
    return [row for row in instances.load().values() if set(zones) & set(row.zones.get(region, ()))]


def _stands_in(row: Instance, first: Instance, efa: bool) -> bool:
    """Whether one image runs on both, and both are sold alike."""
    kinds = [one.accelerators.kind if one.accelerators else None for one in (row, first)]
    same = kinds[0] == kinds[1] and row.arch == first.arch and set(first.purchase) <= set(row.purchase)
    return same and (not efa or bool(row.efa_interfaces))
