"""What cannot work although every role has its machines: between roles, and on one target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.fleet import interfaces
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake
from llm_serving.workloads.environment import Environment
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.checks import engine_limits
from llm_serving.workloads.serving.placement import PlacedRole, Placement, count_accelerators, format_bounds
from llm_serving.workloads.serving.roles import compute_fixed_replicas

RANKS_PER_CORE = 2
"""Engine processes that one core still carries: each start takes about a minute of CPU time."""


def check(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment, placed_roles: Sequence[PlacedRole]
) -> Iterator[Mistake]:
    """All of them, in no order."""
    yield from _check_offload(blueprint)
    yield from _check_transfer(blueprint, placed_roles)
    yield from _check_kv_events(blueprint, placed_roles)
    if environment.target == "local":
        yield from _check_cpu_limits(blueprint, placed_roles)
        yield from _check_local_cores(blueprint, environment, placed_roles)
    else:
        yield from _check_orchestrator(blueprint, fleet, environment, placed_roles)
        yield from engine_limits.check_settings(blueprint, placed_roles)
        if environment.target == "ecs":
            yield from _check_ecs(blueprint, placed_roles)


def _check_offload(blueprint: Document[Blueprint]) -> Iterator[Mistake]:
    settings = blueprint.value
    if settings.pattern == "disaggregated" and settings.tuning.kv_offload:
        reason = "vLLM has one connector for KV caches: offloading takes the place of the one that hands them to decode"
        value = f"{settings.tuning.kv_offload / 2**30:g}Gi"
        yield blueprint.build_mistake(["tuning", "kv_offload"], value, reason, "no kv_offload, or pattern: aggregated")


def _check_transfer(blueprint: Document[Blueprint], placed_roles: Sequence[PlacedRole]) -> Iterator[Mistake]:
    """RDMA as it was asked for, or as the hardware has it."""
    settings = blueprint.value
    if settings.pattern != "disaggregated":
        return
    key_path = ["tuning", "kv_transfer"]
    without_rdma = [role_placement for _, _, role_placement in placed_roles if not role_placement.rdma]
    if settings.tuning.kv_transfer == "rdma":
        for role_placement in without_rdma:
            yield blueprint.build_mistake(key_path, "rdma", *_describe_missing_rdma(role_placement))
    if not without_rdma and settings.tuning.kv_transfer != "host":
        yield from _check_one_zone(blueprint, placed_roles)


def _describe_missing_rdma(role_placement: Placement) -> tuple[str, str]:
    """Why a role has no RDMA, and what to write."""
    subject = f"{role_placement.role}'s pool has {role_placement.instance.name}"
    if not role_placement.instance.gpudirect_rdma:
        reason = f"{subject}, whose EFA does not reach the GPUs' memory (no GPUDirect RDMA)"
        return reason, "kv_transfer: host, or a pool of p5, p5en, p6-b200, p6-b300 or g7e"
    if not role_placement.pool.efa:
        return f"{subject}, and efa is off there", "efa: on in the pool"
    per_replica = role_placement.resources.accelerators
    return (
        f"{subject}, which has fewer EFA interfaces than replicas of {per_replica}",
        f"accelerators: {2 * per_replica} a replica",
    )


def _check_one_zone(blueprint: Document[Blueprint], placed_roles: Sequence[PlacedRole]) -> Iterator[Mistake]:
    (_, _, first), (key_path, role, last) = placed_roles[0], placed_roles[-1]
    if first.zones != last.zones:
        reason = (
            f"EFA traffic does not cross an Availability Zone: {first.role} stands in {', '.join(first.zones)} "
            f"and {last.role} in {', '.join(last.zones)}"
        )
        yield blueprint.build_mistake(
            [*key_path, "pool"], role.pool, reason, f"a pool in {first.zones[0]}, or kv_transfer: host"
        )


def _check_cpu_limits(blueprint: Document[Blueprint], placed_roles: Sequence[PlacedRole]) -> Iterator[Mistake]:
    """What vLLM on CPU does not do, or answers health checks for and nothing else."""
    for key_path, role, role_placement in placed_roles:
        if role.pipeline > 1:
            reason = "on CPU vLLM's pipeline stages start, and never answer"
            yield blueprint.build_mistake(
                [*key_path, "pipeline"], role.pipeline, reason, "pipeline: 1 in a copy to try here"
            )
        if role.expert:
            reason = "vLLM spreads experts by libraries that need GPUs"
            yield blueprint.build_mistake([*key_path, "expert"], True, reason, "expert: off in a copy to try here")
        if role_placement.nodes > 1:
            reason = f"this is one machine, and a replica takes {role_placement.nodes}"
            fix = "fewer accelerators in a copy to try here; --target eks or ecs renders it"
            yield blueprint.build_mistake([*key_path, "accelerators"], role.accelerators, reason, fix)
    tuning = blueprint.value.tuning
    for key, value in (("quantization", tuning.quantization), ("kv_cache", tuning.kv_cache)):
        if value == "fp8":
            reason = "vLLM on CPU has no arithmetic of 8-bit floats"
            yield blueprint.build_mistake(["tuning", key], value, reason, f"no {key} in a copy to try here")


def _check_local_cores(
    blueprint: Document[Blueprint], environment: Environment, placed_roles: Sequence[PlacedRole]
) -> Iterator[Mistake]:
    ranks = {key_path: compute_fixed_replicas(role).min * role.tensor * role.data for key_path, role, _ in placed_roles}
    max_ranks = RANKS_PER_CORE * max(1, environment.cores)
    if sum(ranks.values()) > max_ranks and environment.cores:
        key_path = max(ranks, key=lambda candidate: ranks[candidate])
        role = next(role for path, role, _ in placed_roles if path == key_path)
        key = "replicas" if compute_fixed_replicas(role).min > 1 else "accelerators"
        parts = " and ".join(f"{path[-1]} {count}" for path, count in ranks.items())
        cores = f"{environment.cores} core{'s' * (environment.cores != 1)}"
        reason = f"{parts} engine processes would run on {cores}, which carry {max_ranks}"
        value = format_bounds(role.replicas) if key == "replicas" else role.accelerators
        fix = "fewer in a copy to try here; --target eks or ecs renders it"
        yield blueprint.build_mistake([*key_path, key], value, reason, fix)


def _check_orchestrator(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment, placed_roles: Sequence[PlacedRole]
) -> Iterator[Mistake]:
    for key_path, role, role_placement in placed_roles:
        orchestrator = fleet.value.get_orchestrator(role_placement.pool)
        if orchestrator != environment.target:
            reason = f"{orchestrator} places containers on the pool, and the target is {environment.target}"
            yield blueprint.build_mistake(
                [*key_path, "pool"], role.pool, reason, f"--target {orchestrator}, or a pool of {environment.target}"
            )


def _check_kv_events(blueprint: Document[Blueprint], placed_roles: Sequence[PlacedRole]) -> Iterator[Mistake]:
    """Routing by the events of caches, where the router does not hear them."""
    settings = blueprint.value
    if settings.roles.router.policy != "kv-aware":
        return
    reason = {
        "disaggregated": "that the router hears prefill's caches apart from decode's was not proven yet",
        "multi-model": "vllm-router takes events of one model's caches",
    }.get(settings.pattern, "")
    if any(role.data > 1 for _, role, _ in placed_roles):
        reason = "each data-parallel rank tells of a cache of its own, and the router here takes one of each replica"
    if reason:
        yield blueprint.build_mistake(["roles", "router", "policy"], "kv-aware", reason, "policy: cache-aware")


def _check_ecs(blueprint: Document[Blueprint], placed_roles: Sequence[PlacedRole]) -> Iterator[Mistake]:
    for key_path, role, role_placement in placed_roles:
        replicas_path, replicas = [*key_path, "replicas"], format_bounds(role.replicas)
        if role_placement.nodes > 1 and role.replicas.min != role.replicas.max:
            reason = f"a replica is {role_placement.nodes} services on ECS, which autoscaling does not start together"
            yield blueprint.build_mistake(replicas_path, replicas, reason, f"replicas: {role.replicas.max}")
        free_interfaces, tasks = (
            _count_free_interfaces(role_placement),
            max(1, count_accelerators(role_placement.instance) // role.accelerators),
        )
        if free_interfaces < tasks:
            efa = " beside EFA's" if role_placement.pool.efa else ""
            reason = (
                f"ECS gives each task a network interface of its own on the machine's first card, where "
                f"{role_placement.instance.name} has room for {free_interfaces}{efa}, and {tasks} of such replicas' tasks would stand on it"
            )
            min_accelerators = (
                -(-count_accelerators(role_placement.instance) // free_interfaces) if free_interfaces else 0
            )
            alternatives = (
                f"accelerators: {min_accelerators} or more"
                if min_accelerators
                else "a pool of another type, such as p5en or p6-b200"
            )
            yield blueprint.build_mistake(
                [*key_path, "accelerators"], role.accelerators, reason, f"{alternatives}, or --target eks"
            )


def _count_free_interfaces(role_placement: Placement) -> int:
    """Interfaces that the first card takes beside those that the machine starts with."""
    pool, instance = role_placement.pool, role_placement.instance
    used_interfaces = [
        interface
        for interface in interfaces.list_requested(instance, efa=pool.efa, layout=pool.efa_layout)
        if interface.card == instance.cards[0].index
    ]
    return instance.cards[0].interfaces - len(used_interfaces)
