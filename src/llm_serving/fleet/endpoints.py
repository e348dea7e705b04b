"""The interface endpoints that private nodes need: those of every fleet, and those of each kind of work."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from llm_serving.catalog import account_needs
from llm_serving.catalog.account_needs import Endpoint
from llm_serving.catalog.eks import CsiDriver
from llm_serving.fleet.model import Fleet, NewNetwork


def list_own(fleet: Fleet) -> tuple[Endpoint, ...]:
    """Return the rows that a fleet creates: none in an existing network."""
    if not isinstance(fleet.network, NewNetwork):
        return ()
    return list_required(fleet.orchestrator, closed=fleet.is_closed, csi_drivers=fleet.eks.csi_drivers)


def list_required(
    orchestrator: Literal["eks", "ecs", "both"], *, closed: bool = False, csi_drivers: Collection[CsiDriver] = ()
) -> tuple[Endpoint, ...]:
    """Return the rows that nodes of an orchestrator call, each service once.

    Args:
        closed: the network has no way to the internet.
        csi_drivers: drivers of volumes beside EBS's.
    """
    required = [
        row
        for needs in (account_needs.load_fleet(), *account_needs.load_all().values())
        for row in needs.endpoints
        if (orchestrator == "both" or orchestrator in row.orchestrators)
        and (closed or not row.closed_only)
        and (row.csi_driver is None or row.csi_driver in csi_drivers)
    ]
    return tuple({row.service: row for row in reversed(required)}.values())[::-1]  # each service once
