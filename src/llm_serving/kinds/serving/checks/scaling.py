"""What cannot work of the number of replicas: what changes it, how many a target can have, and a pool has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.catalog import frameworks
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.deployment import map_latencies
from llm_serving.kinds.serving.node_shares import count_nodes, count_units
from llm_serving.kinds.serving.objectives import LATENCIES, find_lowest_limit, list_latencies
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import format_count


def check(context: Context) -> Iterator[Conflict]:
    """Yield roles of which the target cannot change the number of replicas, or cannot have as many."""
    conventions = context.conventions
    for placed in context.replicated:
        replicas = placed.role.replicas
        if conventions.runs_tasks and placed.nodes > 1 and replicas.min != replicas.max:
            parts = f"{placed.nodes} services on {conventions.title}"
            reason = f"a replica is {parts}, which autoscaling does not start together"
            yield placed.refuse("replicas", reason, f"set replicas: {replicas.max}")
        if conventions.max_replicas and replicas.max > conventions.max_replicas:
            reason = f"{conventions.title} lists at most {conventions.max_replicas} replicas of a role to the router"
            fix = f"set {conventions.max_replicas} or fewer, and create a second deployment for the rest"
            yield placed.refuse("replicas", reason, fix)
    yield from _check_slo_scaling(context)
    yield from _check_planner(context)
    if conventions.max_waiting:
        yield from _check_waiting_replicas(context)


def _check_slo_scaling(context: Context) -> Iterator[Conflict]:
    """Yield roles that would follow the SLO where nothing measures it."""
    settings, engine, framework = context.blueprint, context.engine, context.blueprint.framework_row
    roles = map_latencies(list(settings.roles.engine_roles))
    objectives = list(list_latencies(settings.slo, engine.metrics, engine.buckets, roles))
    for placed in context.replicated:
        if placed.role.scale is None or not placed.role.scale.slo:
            continue
        reason = ""
        if not any(objective.role == placed.name for objective in objectives):
            reason = "the SLO has no percentile of a latency that this role's engines measure"
        elif framework.workload and not framework.workload.keda:
            reason = f"{settings.framework} scales by requests under way alone"
        elif context.conventions.runs_tasks:
            reason = f"on {context.conventions.title} a role follows one measure of its engines"
        if reason:
            yield Conflict((*placed.key_path, "scale", "slo"), reason, "remove slo", True)


def _check_planner(context: Context) -> Iterator[Conflict]:
    """Yield roles that a planner would scale where there is none, or where no limit tells it when."""
    settings, rows = context.blueprint, frameworks.load_frameworks()
    latencies = map_latencies(list(settings.roles.engine_roles))
    for placed in context.replicated:
        if placed.role.scale is None or not placed.role.scale.planner:
            continue
        missing_fields = [
            field
            for metric, field in LATENCIES.items()
            if metric != "e2e" and placed.name in latencies[metric] and find_lowest_limit(settings.slo, field) is None
        ]
        reason, fix = "", "set scale: {queue: 4}"
        if not rows[settings.framework].planner_image:
            reason = f"framework: {settings.framework} has no planner"
            names = [name for name, row in rows.items() if row.planner_image]
            fix = f"set framework: {' or '.join(names)}, or scale: {{queue: 4}}"
        elif missing_fields:
            reason = f"the SLO has no limit of {' and '.join(missing_fields)}, which the planner keeps"
            limits = ", ".join(f"{field}: {{p95: ...}}" for field in missing_fields)
            fix = f"set slo: {{{limits}}}, or scale: {{queue: 4}}"
        if reason:
            yield Conflict((*placed.key_path, "scale", "planner"), reason, fix, True)


def _check_waiting_replicas(context: Context) -> Iterator[Conflict]:
    """Yield roles that fall back, and are so large that their first choice without instances would stop all others."""
    roles = [placed for placed in context.replicated if has_choices(context.fleet, placed)]
    total, most = sum(placed.role.replicas.max for placed in roles), context.conventions.max_waiting
    if total <= most:
        return
    largest = max(roles, key=lambda placed: placed.role.replicas.max)
    others = f" of {format_count(total, 'replica')} in this deployment" if len(roles) > 1 else ""
    reason = (
        f"where the first choice of {largest.role.pool} has no instances, all{others} could wait there; "
        f"{context.conventions.title} then starts no task in the next choice, with more than {most} waiting"
    )
    second_fleet = "create a deployment in another fleet for the rest"
    fix = f"set {most} or fewer in all, and {second_fleet}; or use a pool with one choice"
    yield largest.refuse("replicas", reason, fix)


def has_choices(fleet: Fleet, placed: PlacedRole) -> bool:
    """Return whether the role's tasks move between choices of its pool; a replica of several nodes stays."""
    pool_groups = groups.resolve_pool(fleet, placed.role.pool)
    return placed.nodes == 1 and len(groups.group_by_choice(pool_groups)) > 1


def check_sizes(context: Context) -> Iterator[Conflict]:
    """Yield pools that are too small for their roles together, each of which fits alone; reported at the last role."""
    for name, pool_roles in _group_by_pool(context.replicated).items():
        size = context.fleet.pools[name].size
        if len(pool_roles) > 1 and _count_shared_nodes(pool_roles) > size.max:
            node_counts = {
                placed.name: count_nodes(placed.instance, placed.role.accelerators, placed.role.replicas.max)
                for placed in pool_roles
            }
            parts = " and ".join(f"{role} {count}" for role, count in node_counts.items())
            reason = f"the roles need {parts} nodes of the pool {name}, which grows to {size.max}"
            fix = f"use fewer replicas, or set size: {size.min}..{sum(node_counts.values())} in the pool"
            yield pool_roles[-1].refuse("replicas", reason, fix)


def check_surge(context: Context) -> Iterator[Conflict]:
    """Yield pools without room for one replica more of each role, and replicas of which there cannot be one more."""
    disruption, conventions = context.blueprint.disruption, context.conventions
    if not disruption.starts_first:
        return
    key, value, other = ("surge", "on", "off") if disruption.surge else ("unavailable", 0, "1")
    fix = f"set {key}: {other}"
    for name, pool_roles in _group_by_pool(context.replicated).items():
        size, node_count = context.fleet.pools[name].size, _count_shared_nodes(pool_roles, surge=1)
        if node_count > size.max:
            reason = (
                f"an upgrade starts one replica more of each role first: {node_count} nodes of the pool {name}, which "
                f"grows to {size.max}"
            )
            pool_fix = f"{fix}, or size: {size.min}..{node_count} in the pool"
            yield Conflict(("disruption", key), reason, pool_fix, value)
    if conventions.runs_tasks and any(placed.nodes > 1 for placed in context.replicated):
        reason = f"on {conventions.title} each node of a replica is a service, and two of one rank would share a name"
        yield Conflict(("disruption", key), reason, fix, value)


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
                (index for index, free_count in enumerate(free_accelerators) if free_count >= role.accelerators), None
            )
            if slot is None:
                free_accelerators.append(per_node)
                slot = len(free_accelerators) - 1
            free_accelerators[slot] -= role.accelerators
    return node_count + len(free_accelerators)
