"""What cannot work although every role has its machines: between roles, and on one target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.fleet import interfaces
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.checks import engine_limits
from llm_serving.workloads.serving.deployment import Place
from llm_serving.workloads.serving.placement import Placed, Placement, accelerators, plain
from llm_serving.workloads.serving.roles import always

RANKS_PER_CORE = 2
"""Engine processes that one core still carries: each start takes about a minute of CPU time."""


def of(
    blueprint: Document[Blueprint], fleet: Document[Fleet], place: Place, placed: Sequence[Placed]
) -> Iterator[Mistake]:
    """All of them, in no order."""
    yield from _offload_beside_transfer(blueprint)
    yield from _transfer(blueprint, placed)
    yield from _events(blueprint, placed)
    if place.target == "local":
        yield from _beyond_a_cpu(blueprint, placed)
        yield from _beyond_this_machine(blueprint, place, placed)
    else:
        yield from _orchestrator(blueprint, fleet, place, placed)
        yield from engine_limits.settings(blueprint, placed)
        if place.target == "ecs":
            yield from _on_ecs(blueprint, placed)


def _offload_beside_transfer(blueprint: Document[Blueprint]) -> Iterator[Mistake]:
    wanted = blueprint.value
    if wanted.pattern == "disaggregated" and wanted.tuning.kv_offload:
        why = "vLLM has one connector for KV caches: offloading takes the place of the one that hands them to decode"
        value = f"{wanted.tuning.kv_offload / 2**30:g}Gi"
        yield blueprint.mistake(["tuning", "kv_offload"], value, why, "no kv_offload, or pattern: aggregated")


def _transfer(blueprint: Document[Blueprint], placed: Sequence[Placed]) -> Iterator[Mistake]:
    """RDMA as it was asked for, or as the hardware has it."""
    wanted = blueprint.value
    if wanted.pattern != "disaggregated":
        return
    where = ["tuning", "kv_transfer"]
    lacking = [found for _, _, found in placed if not found.rdma]
    if wanted.tuning.kv_transfer == "rdma":
        for found in lacking:
            yield blueprint.mistake(where, "rdma", *_no_rdma(found))
    if not lacking and wanted.tuning.kv_transfer != "host":
        yield from _one_zone(blueprint, placed)


def _no_rdma(found: Placement) -> tuple[str, str]:
    """Why a role has no RDMA, and what to write."""
    named = f"{found.role}'s pool has {found.instance.name}"
    if not found.instance.gpudirect_rdma:
        why = f"{named}, whose EFA does not reach the GPUs' memory (no GPUDirect RDMA)"
        return why, "kv_transfer: host, or a pool of p5, p5en, p6-b200, p6-b300 or g7e"
    if not found.pool.efa:
        return f"{named}, and efa is off there", "efa: on in the pool"
    each = found.resources.accelerators
    return f"{named}, which has fewer EFA interfaces than replicas of {each}", f"accelerators: {2 * each} a replica"


def _one_zone(blueprint: Document[Blueprint], placed: Sequence[Placed]) -> Iterator[Mistake]:
    (_, _, first), (at, role, last) = placed[0], placed[-1]
    if first.zones != last.zones:
        why = (
            f"EFA traffic does not cross an Availability Zone: {first.role} stands in {', '.join(first.zones)} "
            f"and {last.role} in {', '.join(last.zones)}"
        )
        yield blueprint.mistake([*at, "pool"], role.pool, why, f"a pool in {first.zones[0]}, or kv_transfer: host")


def _beyond_a_cpu(blueprint: Document[Blueprint], placed: Sequence[Placed]) -> Iterator[Mistake]:
    """What vLLM on CPU does not do, or answers health checks for and nothing else."""
    for at, role, found in placed:
        if role.pipeline > 1:
            why = "on CPU vLLM's pipeline stages start, and never answer"
            yield blueprint.mistake([*at, "pipeline"], role.pipeline, why, "pipeline: 1 in a copy to try here")
        if role.expert:
            why = "vLLM spreads experts by libraries that need GPUs"
            yield blueprint.mistake([*at, "expert"], True, why, "expert: off in a copy to try here")
        if found.machines > 1:
            why = f"this is one machine, and a replica takes {found.machines}"
            write = "fewer accelerators in a copy to try here; --target eks or ecs renders it"
            yield blueprint.mistake([*at, "accelerators"], role.accelerators, why, write)
    tuning = blueprint.value.tuning
    for key, value in (("quantization", tuning.quantization), ("kv_cache", tuning.kv_cache)):
        if value == "fp8":
            why = "vLLM on CPU has no arithmetic of 8-bit floats"
            yield blueprint.mistake(["tuning", key], value, why, f"no {key} in a copy to try here")


def _beyond_this_machine(blueprint: Document[Blueprint], place: Place, placed: Sequence[Placed]) -> Iterator[Mistake]:
    ranks = {at: always(role).least * role.tensor * role.data for at, role, _ in placed}
    most = RANKS_PER_CORE * max(1, place.cores)
    if sum(ranks.values()) > most and place.cores:
        at = max(ranks, key=lambda one: ranks[one])
        role = next(role for where, role, _ in placed if where == at)
        key = "replicas" if always(role).least > 1 else "accelerators"
        parts = " and ".join(f"{where[-1]} {count}" for where, count in ranks.items())
        cores = f"{place.cores} core{'s' * (place.cores != 1)}"
        why = f"{parts} engine processes would run on {cores}, which carry {most}"
        value = plain(role.replicas) if key == "replicas" else role.accelerators
        write = "fewer in a copy to try here; --target eks or ecs renders it"
        yield blueprint.mistake([*at, key], value, why, write)


def _orchestrator(
    blueprint: Document[Blueprint], fleet: Document[Fleet], place: Place, placed: Sequence[Placed]
) -> Iterator[Mistake]:
    for at, role, found in placed:
        own = fleet.value.orchestrator_of(found.pool)
        if own != place.target:
            why = f"{own} places containers on the pool, and the target is {place.target}"
            yield blueprint.mistake([*at, "pool"], role.pool, why, f"--target {own}, or a pool of {place.target}")


def _events(blueprint: Document[Blueprint], placed: Sequence[Placed]) -> Iterator[Mistake]:
    """Routing by the events of caches, where the router does not hear them."""
    wanted = blueprint.value
    if wanted.roles.router.policy != "kv-aware":
        return
    why = {
        "disaggregated": "that the router hears prefill's caches apart from decode's was not proven yet",
        "multi-model": "vllm-router takes events of one model's caches",
    }.get(wanted.pattern, "")
    if any(role.data > 1 for _, role, _ in placed):
        why = "each data-parallel rank tells of a cache of its own, and the router here takes one of each replica"
    if why:
        yield blueprint.mistake(["roles", "router", "policy"], "kv-aware", why, "policy: cache-aware")


def _on_ecs(blueprint: Document[Blueprint], placed: Sequence[Placed]) -> Iterator[Mistake]:
    for at, role, found in placed:
        where, replicas = [*at, "replicas"], plain(role.replicas)
        if found.machines > 1 and role.replicas.least != role.replicas.most:
            why = f"a replica is {found.machines} services on ECS, which autoscaling does not start together"
            yield blueprint.mistake(where, replicas, why, f"replicas: {role.replicas.most}")
        free, tasks = _free_interfaces(found), max(1, accelerators(found.instance) // role.accelerators)
        if free < tasks:
            efa = " beside EFA's" if found.pool.efa else ""
            why = (
                f"ECS gives each task a network interface of its own on the machine's first card, where "
                f"{found.instance.name} has room for {free}{efa}, and {tasks} of such replicas' tasks would stand on it"
            )
            enough = -(-accelerators(found.instance) // free) if free else 0
            more = f"accelerators: {enough} or more" if enough else "a pool of another type, such as p5en or p6-b200"
            yield blueprint.mistake([*at, "accelerators"], role.accelerators, why, f"{more}, or --target eks")


def _free_interfaces(found: Placement) -> int:
    """Interfaces that the first card takes beside those that the machine starts with."""
    pool, row = found.pool, found.instance
    taken = [one for one in interfaces.of(row, efa=pool.efa, layout=pool.efa_layout) if one.card == row.cards[0].index]
    return row.cards[0].interfaces - len(taken)
