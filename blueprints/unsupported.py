"""What the engine does not do on a pool's kind of processor: refusals whose reasons stand in the engines' catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from blueprints import memory
from blueprints.blueprint import Blueprint
from blueprints.catalog import engines
from blueprints.catalog.engines import Limits
from blueprints.placement import Placed, Placement, accelerators
from blueprints.roles import Engine
from infra.catalog import instances
from infra.errors import Mistake
from infra.fleet import Fleet
from infra.settings import Document

Where = tuple[str, ...]


def pool(blueprint: Document[Blueprint], fleet: Document[Fleet], at: Where, role: Engine) -> Iterator[Mistake]:
    """A pool with a type that the engine does not run on."""
    platforms = engines.engines()[blueprint.value.engine].platforms
    wanted = fleet.value.pools.get(role.pool)
    for row in [instances.load()[name] for name in wanted.types if name in instances.load()] if wanted else []:
        limits = platforms[row.accelerators.kind].limits if row.accelerators else None
        if limits and row.accelerators and row.family not in limits.families:
            why = f"{row.name} carries {row.accelerators.name}: {limits.elsewhere}"
            write = f"a pool of {' or '.join(limits.families)}, or one of GPUs"
            yield blueprint.mistake([*at, "pool"], role.pool, why, write)
            return


def settings(blueprint: Document[Blueprint], placed: Sequence[Placed]) -> Iterator[Mistake]:
    """Settings and models that it does not take where a role stands."""
    several: list[Mistake] = []
    for at, role, found in placed:
        limits = found.platform.limits
        if limits is None:
            continue
        several += _options(blueprint, at, role, found, limits)
        several += _model(blueprint, at, role, found, limits)
        several += _segments(blueprint, at, role, limits)
        several += _machine(blueprint, at, role, found, limits)
    # What is written once for all roles is said once.
    yield from dict.fromkeys(several)


def _options(
    blueprint: Document[Blueprint], at: Where, role: Engine, found: Placement, limits: Limits
) -> Iterator[Mistake]:
    tuning = blueprint.value.tuning
    whole = f"accelerators: {accelerators(found.instance)}"
    offload = f"{(tuning.kv_offload or 0) / 2**30:g}Gi"
    apart, policy = blueprint.value.pattern == "disaggregated", blueprint.value.roles.router.policy
    asked: dict[str, tuple[bool, Where, Any, str]] = {
        "kv-events": (policy == "kv-aware", ("roles", "router", "policy"), policy, "policy: cache-aware"),
        "transfer": (apart, ("pattern",), blueprint.value.pattern, "pattern: aggregated, or pools of GPUs"),
        "machines": (found.machines > 1, (*at, "accelerators"), role.accelerators, whole),
        "pipeline": (role.pipeline > 1, (*at, "pipeline"), role.pipeline, "pipeline: 1"),
        "adapters": (bool(role.adapters), (*at, "adapters"), ", ".join(role.adapters), "no adapters"),
        "fp8-weights": (
            tuning.quantization == "fp8",
            ("tuning", "quantization"),
            tuning.quantization,
            "no quantization",
        ),
        "fp8-cache": (tuning.kv_cache == "fp8", ("tuning", "kv_cache"), tuning.kv_cache, "kv_cache: auto"),
        "no-chunked-prefill": (
            not tuning.chunked_prefill,
            ("tuning", "chunked_prefill"),
            False,
            "chunked_prefill: on",
        ),
        "kv-offload": (tuning.kv_offload is not None, ("tuning", "kv_offload"), offload, "no kv_offload"),
        "speculative": (
            tuning.speculative is not None,
            ("tuning", "speculative"),
            tuning.speculative and tuning.speculative.method,
            "no speculative",
        ),
    }
    for option, why in limits.lacks.items():
        wanted, where, value, write = asked[option]
        if wanted:
            yield blueprint.mistake(where, value, why, write)


def _model(
    blueprint: Document[Blueprint], at: Where, role: Engine, found: Placement, limits: Limits
) -> Iterator[Mistake]:
    model, device = found.model, found.instance.accelerators
    where = ["model"] if blueprint.value.served_by(role) is blueprint.value else [*at, "model"]
    on = f"on {device.name if device else found.instance.name} the engine"
    sizes = limits.architectures.get(model.kind, ())
    if not sizes:
        why = f"it is a {model.kind}, and {on} runs {' and '.join(limits.architectures)}"
        yield blueprint.mistake(where, model.name, why, "a model of one of these")
    elif model.quantization != "none":
        why = f"its weights are {model.quantization}, and {on} takes those of 16 bits"
        yield blueprint.mistake(where, model.name, why, "the checkpoint that is not quantized")
    elif model.head_dim not in sizes:
        takes = " or ".join(map(str, sizes))
        why = f"its heads have {model.head_dim} numbers each, and {on} takes {takes} for a {model.kind}"
        yield blueprint.mistake(where, model.name, why, "another model")


def _segments(blueprint: Document[Blueprint], at: Where, role: Engine, limits: Limits) -> Iterator[Mistake]:
    written, tokens = blueprint.value.served_by(role), blueprint.value.tuning.batch_tokens
    sizes = [size for size in limits.segments if size < written.context]
    if not sizes:
        where = ["context"] if written is blueprint.value else [*at, "context"]
        why = f"the engine computes prompts in segments here, the least of {limits.segments[0]}, below the context"
        yield blueprint.mistake(where, written.context, why, f"context: {2 * limits.segments[0]} or more")
    elif tokens is not None and tokens not in sizes:
        why = "a step is one segment of a prompt here, compiled for its size and below the context"
        yield blueprint.mistake(["tuning", "batch_tokens"], tokens, why, f"one of {', '.join(map(str, sizes))}")


def _machine(
    blueprint: Document[Blueprint], at: Where, role: Engine, found: Placement, limits: Limits
) -> Iterator[Mistake]:
    most = accelerators(found.instance)
    if role.accelerators >= most:
        return
    whole = f"all {most} of a {found.instance.name}"
    why = f"{limits.whole_machine}, so a replica has {whole} for itself"
    yield blueprint.mistake([*at, "accelerators"], role.accelerators, why, _whole(found, most))


def _whole(found: Placement, most: int) -> str:
    """How a replica takes all of its machine: layers split as far as the model can be, and copies beside each other."""
    ways = max(
        (n for n in memory.sizes(found.model, found.instance) if not memory.indivisible(found.model, n)), default=1
    )
    return f"accelerators: {most}" + (f", with data: {most // ways} or more" if ways < most else "")
