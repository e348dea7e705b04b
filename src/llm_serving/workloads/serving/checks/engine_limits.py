"""What the engine does not do on a pool's kind of processor: refusals whose reasons stand in the engines' catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_serving.catalog import engines, instances
from llm_serving.catalog.engines import Limits
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake
from llm_serving.workloads.serving.blueprint import Blueprint, Tuning
from llm_serving.workloads.serving.placement import Placed, Placement, accelerators
from llm_serving.workloads.serving.roles import Engine

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
    asked = {**_of_role(blueprint.value, at, role, found), **_of_tuning(blueprint.value.tuning)}
    for option, why in limits.lacks.items():
        wanted, where, value, write = asked[option]
        if wanted:
            yield blueprint.mistake(where, value, why, write)


Asked = dict[str, tuple[bool, Where, Any, str]]
"""By option: whether it is asked for, where, the value now, and what to write."""


def _of_role(wanted: Blueprint, at: Where, role: Engine, found: Placement) -> Asked:
    policy, whole = wanted.roles.router.policy, f"accelerators: {accelerators(found.instance)}"
    apart = wanted.pattern == "disaggregated"
    return {
        "kv-events": (policy == "kv-aware", ("roles", "router", "policy"), policy, "policy: cache-aware"),
        "transfer": (apart, ("pattern",), wanted.pattern, "pattern: aggregated, or pools of GPUs"),
        "machines": (found.machines > 1, (*at, "accelerators"), role.accelerators, whole),
        "pipeline": (role.pipeline > 1, (*at, "pipeline"), role.pipeline, "pipeline: 1"),
        "adapters": (bool(role.adapters), (*at, "adapters"), ", ".join(role.adapters), "no adapters"),
    }


def _of_tuning(tuning: Tuning) -> Asked:
    guessed, offload = tuning.speculative, tuning.kv_offload
    asked = {
        "fp8-weights": (tuning.quantization == "fp8", "quantization", "fp8", "no quantization"),
        "fp8-cache": (tuning.kv_cache == "fp8", "kv_cache", "fp8", "kv_cache: auto"),
        "no-chunked-prefill": (not tuning.chunked_prefill, "chunked_prefill", False, "chunked_prefill: on"),
        "kv-offload": (offload is not None, "kv_offload", f"{(offload or 0) / 2**30:g}Gi", "no kv_offload"),
        "speculative": (guessed is not None, "speculative", guessed and guessed.method, "no speculative"),
    }
    return {option: (said, ("tuning", key), value, write) for option, (said, key, value, write) in asked.items()}


def _model(
    blueprint: Document[Blueprint], at: Where, role: Engine, found: Placement, limits: Limits
) -> Iterator[Mistake]:
    model, device = found.model, found.instance.accelerators
    where = blueprint.value.written_at(at, role, "model")
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
        where = blueprint.value.written_at(at, role, "context")
        why = f"the engine computes prompts in segments here, the least of {limits.segments[0]}, below the context"
        yield blueprint.mistake(where, written.context, why, f"context: {2 * limits.segments[0]} or more")
    elif tokens is not None and tokens not in sizes:
        why = "a step is one segment of a prompt here, compiled for its size and below the context"
        yield blueprint.mistake(["tuning", "batch_tokens"], tokens, why, f"one of {', '.join(map(str, sizes))}")


def _machine(
    blueprint: Document[Blueprint], at: Where, role: Engine, found: Placement, limits: Limits
) -> Iterator[Mistake]:
    largest = max(found.types, key=accelerators)
    most = accelerators(largest)
    if role.accelerators < most:
        why = f"{limits.whole_machine}, so a replica has all {most} of a {largest.name} for itself"
        yield blueprint.mistake([*at, "accelerators"], role.accelerators, why, _whole(found.model, largest))


def _whole(model: Model, row: Instance) -> str:
    """How a replica takes all of its machine: layers split as far as the model can be, and copies beside each other."""
    most = accelerators(row)
    ways = max((n for n in memory.sizes(model, row) if not memory.indivisible(model, n)), default=1)
    return f"accelerators: {most}" + (f", with data: {most // ways} or more" if ways < most else "")
