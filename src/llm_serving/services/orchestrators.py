"""Whether a fleet runs containers where a target needs them; for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.fleet.groups import resolve_pool
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.system_group import build_system_group
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


def describe_missing_nodes(fleet: Fleet, conventions: Conventions, program: str) -> Iterator[str]:
    """Yield that a program whose image is for x86-64 alone, and which needs no accelerator, waits for a node."""
    if not (conventions.is_kubernetes and fleet.creates_eks):
        return
    pools = [name for name, pool in fleet.pools.items() if fleet.get_orchestrator(pool) == conventions.orchestrator]
    groups = [build_system_group(fleet), *(group for name in pools for group in resolve_pool(fleet, name))]
    if not any(group.arch == "x86_64" and not group.taints for group in groups):
        yield (
            f"{program} waits for a node of x86-64 without taints, of which the fleet {fleet.name} has none: add a "
            "pool to it, such as cpus: {types: m7i.xlarge, size: 1..2}."
        )
