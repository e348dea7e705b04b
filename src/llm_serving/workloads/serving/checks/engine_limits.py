"""What the engine does not do on a pool's kind of processor: refusals whose reasons stand in the engines' catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_serving.catalog import engines, instances
from llm_serving.catalog.engines import EngineLimits
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake
from llm_serving.workloads.serving.blueprint import Blueprint, Tuning
from llm_serving.workloads.serving.placement import PlacedRole, Placement, count_accelerators
from llm_serving.workloads.serving.roles import EngineRole

KeyPath = tuple[str, ...]


def check_pool(
    blueprint: Document[Blueprint], fleet: Document[Fleet], key_path: KeyPath, role: EngineRole
) -> Iterator[Mistake]:
    """A pool with a type that the engine does not run on."""
    platforms = engines.load_engines()[blueprint.value.engine].platforms
    pool_settings = fleet.value.pools.get(role.pool)
    for instance in (
        [instances.load()[name] for name in pool_settings.types if name in instances.load()] if pool_settings else []
    ):
        limits = platforms[instance.accelerators.kind].limits if instance.accelerators else None
        if limits and instance.accelerators and instance.family not in limits.families:
            reason = f"{instance.name} carries {instance.accelerators.name}: {limits.elsewhere}"
            fix = f"a pool of {' or '.join(limits.families)}, or one of GPUs"
            yield blueprint.build_mistake([*key_path, "pool"], role.pool, reason, fix)
            return


def check_settings(blueprint: Document[Blueprint], placed_roles: Sequence[PlacedRole]) -> Iterator[Mistake]:
    """Settings and models that it does not take where a role stands."""
    mistakes: list[Mistake] = []
    for key_path, role, role_placement in placed_roles:
        limits = role_placement.platform.limits
        if limits is None:
            continue
        mistakes += _check_options(blueprint, key_path, role, role_placement, limits)
        mistakes += _check_model(blueprint, key_path, role, role_placement, limits)
        mistakes += _check_segments(blueprint, key_path, role, limits)
        mistakes += _check_whole_machine(blueprint, key_path, role, role_placement, limits)
    # What is written once for all roles is said once.
    yield from dict.fromkeys(mistakes)


def _check_options(
    blueprint: Document[Blueprint], key_path: KeyPath, role: EngineRole, role_placement: Placement, limits: EngineLimits
) -> Iterator[Mistake]:
    options = {
        **_list_role_options(blueprint.value, key_path, role, role_placement),
        **_list_tuning_options(blueprint.value.tuning),
    }
    for option, reason in limits.lacks.items():
        is_requested, option_path, value, fix = options[option]
        if is_requested:
            yield blueprint.build_mistake(option_path, value, reason, fix)


RequestedOptions = dict[str, tuple[bool, KeyPath, Any, str]]
"""By option: whether it is asked for, where, the value now, and what to write."""


def _list_role_options(
    settings: Blueprint, key_path: KeyPath, role: EngineRole, role_placement: Placement
) -> RequestedOptions:
    policy, whole_machine = settings.roles.router.policy, f"accelerators: {count_accelerators(role_placement.instance)}"
    is_disaggregated = settings.pattern == "disaggregated"
    return {
        "kv-events": (policy == "kv-aware", ("roles", "router", "policy"), policy, "policy: cache-aware"),
        "transfer": (is_disaggregated, ("pattern",), settings.pattern, "pattern: aggregated, or pools of GPUs"),
        "machines": (role_placement.nodes > 1, (*key_path, "accelerators"), role.accelerators, whole_machine),
        "pipeline": (role.pipeline > 1, (*key_path, "pipeline"), role.pipeline, "pipeline: 1"),
        "adapters": (bool(role.adapters), (*key_path, "adapters"), ", ".join(role.adapters), "no adapters"),
    }


def _list_tuning_options(tuning: Tuning) -> RequestedOptions:
    speculative, offload = tuning.speculative, tuning.kv_offload
    options = {
        "fp8-weights": (tuning.quantization == "fp8", "quantization", "fp8", "no quantization"),
        "fp8-cache": (tuning.kv_cache == "fp8", "kv_cache", "fp8", "kv_cache: auto"),
        "no-chunked-prefill": (not tuning.chunked_prefill, "chunked_prefill", False, "chunked_prefill: on"),
        "kv-offload": (offload is not None, "kv_offload", f"{(offload or 0) / 2**30:g}Gi", "no kv_offload"),
        "speculative": (speculative is not None, "speculative", speculative and speculative.method, "no speculative"),
    }
    return {
        option: (is_requested, ("tuning", key), value, fix)
        for option, (is_requested, key, value, fix) in options.items()
    }


def _check_model(
    blueprint: Document[Blueprint], key_path: KeyPath, role: EngineRole, role_placement: Placement, limits: EngineLimits
) -> Iterator[Mistake]:
    model, device = role_placement.model, role_placement.instance.accelerators
    model_path = blueprint.value.find_model_key_path(key_path, role, "model")
    engine_label = f"on {device.name if device else role_placement.instance.name} the engine"
    sizes = limits.architectures.get(model.kind, ())
    if not sizes:
        reason = f"it is a {model.kind}, and {engine_label} runs {' and '.join(limits.architectures)}"
        yield blueprint.build_mistake(model_path, model.name, reason, "a model of one of these")
    elif model.quantization != "none":
        reason = f"its weights are {model.quantization}, and {engine_label} takes those of 16 bits"
        yield blueprint.build_mistake(model_path, model.name, reason, "the checkpoint that is not quantized")
    elif model.head_dim not in sizes:
        supported_sizes = " or ".join(map(str, sizes))
        reason = f"its heads have {model.head_dim} numbers each, and {engine_label} takes {supported_sizes} for a {model.kind}"
        yield blueprint.build_mistake(model_path, model.name, reason, "another model")


def _check_segments(
    blueprint: Document[Blueprint], key_path: KeyPath, role: EngineRole, limits: EngineLimits
) -> Iterator[Mistake]:
    model_settings, tokens = blueprint.value.select_model_settings(role), blueprint.value.tuning.batch_tokens
    sizes = [size for size in limits.segments if size < model_settings.context]
    if not sizes:
        context_path = blueprint.value.find_model_key_path(key_path, role, "context")
        reason = f"the engine computes prompts in segments here, the least of {limits.segments[0]}, below the context"
        yield blueprint.build_mistake(
            context_path, model_settings.context, reason, f"context: {2 * limits.segments[0]} or more"
        )
    elif tokens is not None and tokens not in sizes:
        reason = "a step is one segment of a prompt here, compiled for its size and below the context"
        yield blueprint.build_mistake(
            ["tuning", "batch_tokens"], tokens, reason, f"one of {', '.join(map(str, sizes))}"
        )


def _check_whole_machine(
    blueprint: Document[Blueprint], key_path: KeyPath, role: EngineRole, role_placement: Placement, limits: EngineLimits
) -> Iterator[Mistake]:
    largest = max(role_placement.instances, key=count_accelerators)
    max_accelerators = count_accelerators(largest)
    if role.accelerators < max_accelerators:
        reason = f"{limits.whole_machine}, so a replica has all {max_accelerators} of a {largest.name} for itself"
        yield blueprint.build_mistake(
            [*key_path, "accelerators"],
            role.accelerators,
            reason,
            _describe_whole_machine(role_placement.model, largest),
        )


def _describe_whole_machine(model: Model, instance: Instance) -> str:
    """How a replica takes all of its machine: layers split as far as the model can be, and copies beside each other."""
    max_accelerators = count_accelerators(instance)
    degree = max(
        (
            candidate
            for candidate in memory.list_tensor_sizes(model, instance)
            if not memory.describe_indivisible(model, candidate)
        ),
        default=1,
    )
    return f"accelerators: {max_accelerators}" + (
        f", with data: {max_accelerators // degree} or more" if degree < max_accelerators else ""
    )
