"""What cannot work of the number of replicas: what changes it, and how many a target can have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.catalog import frameworks
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import map_latencies
from llm_serving.kinds.serving.objectives import LATENCIES, find_lowest_limit, list_latencies
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.placement import format_bounds
from llm_serving.services.environment import Conventions
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import format_count


def check(
    settings: Blueprint, fleet: Fleet, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield roles of which the target cannot change the number of replicas, or cannot have as many."""
    if not conventions.is_local and not conventions.is_kubernetes:
        yield from _check_group_scaling(conventions.title, placed_roles)
    yield from _check_slo_scaling(settings, conventions, placed_roles)
    yield from _check_planner(settings, placed_roles)
    if conventions.max_replicas:
        yield from _check_max_replicas(conventions, placed_roles)
    if conventions.max_waiting:
        yield from _check_waiting_replicas(fleet, conventions, placed_roles)


def _check_group_scaling(title: str, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    for placed in placed_roles:
        role = placed.role
        if placed.nodes > 1 and role.replicas.min != role.replicas.max:
            reason = f"a replica is {placed.nodes} services on {title}, which autoscaling does not start together"
            replicas = format_bounds(role.replicas)
            yield placed.refuse("replicas", reason, f"set replicas: {role.replicas.max}", replicas)


def _check_slo_scaling(
    settings: Blueprint, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield roles that would follow the SLO where nothing measures it."""
    framework = settings.framework_row
    engine = settings.engine_row
    roles = map_latencies(list(settings.roles.engine_roles))
    objectives = list(list_latencies(settings.slo, engine.metrics, engine.buckets, roles))
    for placed in placed_roles:
        if placed.role.scale is None or not placed.role.scale.slo:
            continue
        reason = ""
        if not any(objective.role == placed.name for objective in objectives):
            reason = "the SLO has no percentile of a latency that this role's engines measure"
        elif framework.workload and not framework.workload.keda:
            reason = f"{settings.framework} scales by requests under way alone"
        elif conventions.runs_tasks:
            reason = f"on {conventions.title} a role follows one measure of its engines"
        if reason:
            yield Conflict((*placed.key_path, "scale", "slo"), reason, "remove slo", True)


def _check_planner(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield roles that a planner would scale where there is none, or where no limit tells it when."""
    rows = frameworks.load_frameworks()
    latencies = map_latencies(list(settings.roles.engine_roles))
    for placed in placed_roles:
        if placed.role.scale is None or not placed.role.scale.planner:
            continue
        missing = [
            field
            for metric, field in LATENCIES.items()
            if metric != "e2e" and placed.name in latencies[metric] and find_lowest_limit(settings.slo, field) is None
        ]
        reason, fix = "", "set scale: {queue: 4}"
        if not rows[settings.framework].planner_image:
            reason = f"framework: {settings.framework} has no planner"
            names = [name for name, row in rows.items() if row.planner_image]
            fix = f"set framework: {' or '.join(names)}, or scale: {{queue: 4}}"
        elif missing:
            reason = f"the SLO has no limit of {' and '.join(missing)}, which the planner keeps"
            fix = f"set slo: {{{', '.join(f'{field}: {{p95: ...}}' for field in missing)}}}, or scale: {{queue: 4}}"
        if reason:
            yield Conflict((*placed.key_path, "scale", "planner"), reason, fix, True)


def _check_max_replicas(conventions: Conventions, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    for placed in placed_roles:
        if placed.role.replicas.max > conventions.max_replicas:
            reason = f"{conventions.title} lists at most {conventions.max_replicas} replicas of a role to the router"
            fix = f"set {conventions.max_replicas} or fewer, and create a second deployment for the rest"
            yield placed.refuse("replicas", reason, fix, format_bounds(placed.role.replicas))


def _check_waiting_replicas(
    fleet: Fleet, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield roles that fall back, and are so large that their first choice without instances would stop all others."""
    roles = [placed for placed in placed_roles if has_choices(fleet, placed)]
    total, most = sum(placed.role.replicas.max for placed in roles), conventions.max_waiting
    if total <= most:
        return
    largest = max(roles, key=lambda placed: placed.role.replicas.max)
    others = f" of {format_count(total, 'replica')} in this deployment" if len(roles) > 1 else ""
    reason = (
        f"where the first choice of {largest.role.pool} has no instances, all{others} could wait there; "
        f"{conventions.title} then starts no task in the next choice, with more than {most} waiting"
    )
    rest = "create a deployment in another fleet for the rest"
    fix = f"set {most} or fewer in all, and {rest}; or use a pool with one choice"
    yield largest.refuse("replicas", reason, fix, format_bounds(largest.role.replicas))


def has_choices(fleet: Fleet, placed: PlacedRole) -> bool:
    """Return whether the role's tasks move between choices of its pool; a replica of several nodes stays."""
    pool_groups = groups.resolve_pool(fleet, placed.role.pool)
    return placed.nodes == 1 and len(groups.group_by_choice(pool_groups)) > 1
