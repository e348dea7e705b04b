"""What a pool has no room for: its roles together, and one replica more of each, which an upgrade starts first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.placement import count_nodes, count_units, format_bounds
from llm_serving.services.environment import Conventions
from llm_serving.settings.document import Conflict


def check_sizes(fleet: Fleet, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield pools that are too small for their roles together, each of which fits alone; reported at the last role."""
    for name, pool_roles in _group_by_pool(placed_roles).items():
        size = fleet.pools[name].size
        if len(pool_roles) > 1 and _count_shared_nodes(pool_roles) > size.max:
            node_counts = {
                placed.name: count_nodes(placed.instance, placed.role.accelerators, placed.role.replicas.max)
                for placed in pool_roles
            }
            parts = " and ".join(f"{role} {count}" for role, count in node_counts.items())
            reason = f"the roles need {parts} nodes of the pool {name}, which grows to {size.max}"
            fix = f"use fewer replicas, or set size: {size.min}..{sum(node_counts.values())} in the pool"
            placed = pool_roles[-1]
            yield placed.refuse("replicas", reason, fix, format_bounds(placed.role.replicas))


def check_surge(
    settings: Blueprint, fleet: Fleet, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield pools without room for one replica more of each role, and replicas of which there cannot be one more."""
    if not settings.disruption.surge:
        return
    key_path = ("disruption", "surge")
    for name, pool_roles in _group_by_pool(placed_roles).items():
        size, node_count = fleet.pools[name].size, _count_shared_nodes(pool_roles, surge=1)
        if node_count > size.max:
            reason = (
                f"an upgrade starts one replica more of each role first: {node_count} nodes of the pool {name}, which "
                f"grows to {size.max}"
            )
            yield Conflict(key_path, reason, f"set surge: off, or size: {size.min}..{node_count} in the pool", "on")
    if conventions.runs_tasks and any(placed.nodes > 1 for placed in placed_roles):
        reason = f"on {conventions.title} each node of a replica is a service, and two of one rank would share a name"
        yield Conflict(key_path, reason, "set surge: off", "on")


def _group_by_pool(placed_roles: Sequence[PlacedRole]) -> dict[str, list[PlacedRole]]:
    pools: dict[str, list[PlacedRole]] = {}
    for placed in placed_roles:
        pools.setdefault(placed.role.pool, []).append(placed)
    return pools


def _count_shared_nodes(pool_roles: Sequence[PlacedRole], surge: int = 0) -> int:
    """Return nodes for all roles of a pool: replicas that leave accelerators free share their node with others."""
    free_accelerators: list[int] = []
    node_count = 0
    for placed in sorted(pool_roles, key=lambda placed: -placed.role.accelerators):
        role = placed.role
        per_node = count_units(placed.instance)
        for _ in range(role.replicas.max + surge):
            if role.accelerators > per_node:
                node_count += placed.nodes
                continue
            slot = next(
                (index for index, remaining in enumerate(free_accelerators) if remaining >= role.accelerators), None
            )
            if slot is None:
                free_accelerators.append(per_node)
                slot = len(free_accelerators) - 1
            free_accelerators[slot] -= role.accelerators
    return node_count + len(free_accelerators)
