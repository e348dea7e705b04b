"""Whether a fleet runs containers where a target needs them; for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.fleet.model import Fleet
from llm_serving.services.environment import Conventions
from llm_serving.settings.document import Conflict


def check(
    fleet: Fleet, conventions: Conventions, key_path: Sequence[str | int], written: str, *, pool: str = ""
) -> Iterator[Conflict]:
    """Yield that another orchestrator than the target's runs the containers of a pool, or of the whole fleet.

    Args:
        written: the value of the field to blame.
        pool: a pool of the fleet; empty for what runs in none.
    """
    target = conventions.orchestrator
    running = (fleet.get_orchestrator(fleet.pools[pool]),) if pool else fleet.orchestrators
    if not target or target in running:
        return
    reason = f"{running[0]} runs the {'pool' if pool else 'fleet'}'s containers, and the target is {target}"
    alternative = f", or choose a pool of {target}" if target in fleet.orchestrators else ""
    yield Conflict(tuple(key_path), reason, f"use --target {running[0]}{alternative}", written)
