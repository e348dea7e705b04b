"""What an engine does not support, in general and on a platform; the reasons are in the engines' catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.catalog import drivers, engine_options, instances
from llm_serving.catalog.drivers import Maker
from llm_serving.catalog.engines import EngineLimits
from llm_serving.engines import base, memory
from llm_serving.engines.memory import Split
from llm_serving.fleet import machine_images
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import options
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.node_shares import count_accelerators
from llm_serving.kinds.serving.options import Node
from llm_serving.kinds.serving.placement import splits_prompts
from llm_serving.kinds.serving.roles import EngineRole, get_shared, resolve_scale
from llm_serving.services.environment import Environment
from llm_serving.settings.document import Conflict

KeyPath = tuple[str, ...]


def check_engine(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    """Yield the engine or the framework where the target cannot run it at all."""
    target = environment.target
    engine, framework = settings.engine_row, settings.framework_row
    if environment.conventions.is_local and "cpu" not in engine.platforms:
        reason = f"the engine does not run on CPU, and the target {target} has no accelerators"
        yield Conflict(("engine",), reason, "use a target with accelerators: --target TARGET", settings.engine)
    if environment.conventions.is_local and engine.streaming is None and not environment.fetcher:
        reason = f"the engine does not stream weights from S3, and the target {target} copies none to disk"
        yield Conflict(("engine",), reason, "use a target with containers: --target TARGET", settings.engine)
    if framework.targets and target not in framework.targets:
        reason = f"the framework does not run on the target {target}"
        fix = f"use --target {' or '.join(framework.targets)}, or another framework"
        yield Conflict(("framework",), reason, fix, settings.framework)
    if framework.engines and settings.engine not in framework.engines:
        engine_names = " and ".join(f"{name} {pair.version}" for name, pair in framework.engines.items())
        reason = f"{settings.framework} {framework.version} runs {engine_names}, and not {settings.engine}"
        fix = f"set engine: {' or '.join(framework.engines)}, or another framework"
        yield Conflict(("framework",), reason, fix, settings.framework)


def check_pool(settings: Blueprint, fleet: Fleet, key_path: KeyPath, role: EngineRole) -> Iterator[Conflict]:
    """Yield a pool with a type that the engine does not run on."""
    platforms, pool = settings.engine_row.platforms, fleet.pools.get(role.pool)
    for instance in instances.select_known(pool.types) if pool else []:
        device = instance.accelerators
        if device and device.kind not in platforms:
            under = f" under {settings.framework}" if settings.framework_row.engines else ""
            reason = f"{instance.name} has {device.name}, on which the engine {settings.engine} does not run{under}"
            kinds = " or ".join(kind for kind in platforms if kind != "cpu")
            types = f"types with {kinds}" if kinds else "types without accelerators, such as m8g or c8i"
            fix = f"use a pool of {types}, or another engine"
            yield Conflict((*key_path, "pool"), reason, fix, role.pool)
            return
        limits = platforms[device.kind].limits if device else None
        if limits and device and instance.family not in limits.families:
            reason = f"{instance.name} carries {device.name}: {limits.unsupported_reason}"
            fix = f"use a pool of {' or '.join(limits.families)}, or one of GPUs"
            yield Conflict((*key_path, "pool"), reason, fix, role.pool)
            return


def check_drivers(context: Context) -> Iterator[Conflict]:
    """Yield AMIs of the fleet whose driver is too old for the engine's image; nothing is known of the user's own."""
    if context.blueprint.image or context.conventions.is_local:
        return
    conflicts, fleet = [], context.fleet
    for placed in context.placed_roles:
        pool, platform = placed.pool, placed.platform
        if pool.ami:
            continue
        release = machine_images.find_release(fleet, fleet.get_orchestrator(pool), pool.os)
        makers: list[tuple[Maker, int, str]] = [
            ("NVIDIA", platform.nvidia_driver, f"branch {platform.nvidia_driver}"),
            ("Neuron", platform.neuron_driver, f"2.{platform.neuron_driver}"),
        ]
        for maker, oldest, name in makers:
            if drivers.find_driver(maker, release.ami, release.name) < oldest:
                engine = context.blueprint.engine
                reason = f"its {maker} driver is older than {name}, which the image of {engine} needs"
                first_release = drivers.find_first_release(maker, release.ami, oldest)
                fix = f"set {release.key_path[-1]}: {first_release} or later"
                conflicts.append(Conflict(release.key_path, reason, fix, release.name))
    yield from dict.fromkeys(conflicts)


def check_settings(context: Context) -> Iterator[Conflict]:
    """Yield settings and models that the engine does not support where a role runs."""
    conflicts: list[Conflict] = []
    for placed in context.placed_roles:
        node = context.describe_node(placed)
        platform = node.platform
        conflicts += options.check(node)
        if context.engine.holds_whole_prompts:
            conflicts += _check_step(node)
        if not context.conventions.is_local and platform.weights:
            conflicts += _check_weights(node, platform.weights)
        if platform.version:
            conflicts += _check_version(node)
        if platform.limits:
            conflicts += _check_model(node, platform.limits)
            conflicts += _check_segments(node, platform.limits)
            conflicts += _check_whole_node(node, platform.limits)
        conflicts += _check_scale(node) if not get_shared(placed.role) else ()
    # A setting of all roles is reported once.
    yield from dict.fromkeys(conflicts)


def _check_step(node: Node) -> Iterator[Conflict]:
    """Yield a largest step without room for a prompt that is not split, or for a token of each of its requests."""
    batch, context = node.placed.batch, node.placed.model_settings.context
    tokens_path, sequences_path = (_find_number(node, setting) for setting in ("batch_tokens", "sequences"))
    if tokens_path and batch.tokens < context and not splits_prompts(node.settings, node.placed.model):
        reason = f"prompts are not split, and a step has no room for one of the context, {context}: the engine ends"
        fix = f"set {tokens_path[-1]}: {context} or more, or remove it"
        yield Conflict(tokens_path, reason, fix, batch.tokens)
    if sequences_path and batch.sequences > batch.tokens:
        reason = f"a step has {batch.tokens} tokens, fewer than these requests: the engine ends"
        larger = f"tuning: {{batch_tokens: {batch.sequences}}} or more"
        fix = f"set {sequences_path[-1]}: {batch.tokens} or less, or {larger}"
        yield Conflict(sequences_path, reason, fix, batch.sequences)
    yield from _check_adapted_drafts(node)
    fit = node.placed.fit
    states = fit.most_sequences if fit and not node.conventions.is_local else None
    if sequences_path and states is not None and min(batch.sequences, batch.tokens) > states:
        reason = (
            f"each request of a step keeps a state in the cache of {node.placed.model.name}, which has room for about "
            f"{states}: the engine ends"
        )
        fix = f"remove {sequences_path[-1]}, or use more accelerators"
        yield Conflict(sequences_path, reason, fix, batch.sequences)


def _check_adapted_drafts(node: Node) -> Iterator[Conflict]:
    """Yield more draft tokens than a step with adapters has room for.

    Source: vLLM 0.32.0, engine/arg_utils.py, create_engine_config.
    """
    speculative, batch = node.speculative, node.placed.batch
    sequences = min(batch.sequences, batch.tokens)
    if speculative is None or not node.role.adapters or batch.tokens >= sequences * (speculative.tokens + 1):
        return
    reason = (
        f"with adapters a step needs room for these and one more of each of its {sequences} requests, and has "
        f"{batch.tokens} tokens: the engine ends"
    )
    fewer = f"set tuning: {{sequences: {batch.tokens // (speculative.tokens + 1)}}} or fewer"
    most = batch.tokens // sequences - 1
    fix = f"set tokens: {most} or less, or {fewer}" if most else fewer
    yield Conflict(("tuning", "speculative", "tokens"), reason, fix, speculative.tokens)


def _find_number(node: Node, setting: str) -> KeyPath | None:
    """Return where the blueprint says a number of `tuning`, by its key or the engine's own option."""
    if getattr(node.tuning, setting) is not None:
        return ("tuning", setting)
    meanings = node.settings.engine_row.reckoned_arguments
    return next((path for path, _ in node.placed.list_arguments() if meanings.get(path[-1]) == setting), None)


def _check_version(node: Node) -> Iterator[Conflict]:
    """Yield options of the engine that the version of a platform's own image does not have."""
    device, platform = node.placed.instance, node.platform
    name = device.accelerators.name if device.accelerators else device.name
    reason = f"on {name} the engine is {node.settings.engine} {platform.version}, which has no such option"
    arguments = engine_options.load_arguments(platform.version_arguments).arguments
    for key_path, value in node.placed.list_arguments():
        if key_path[-1] not in arguments:
            yield Conflict(key_path, reason, f"remove {key_path[-1]}", str(value))


def _check_scale(node: Node) -> Iterator[Conflict]:
    """Yield scaling by a measure that the engine does not have."""
    settings, scale = node.settings, resolve_scale(node.placed.name, node.role)
    if scale is None or scale.planner:
        return
    framework = settings.framework_row
    key, metric, value = ("queue", "queue", scale.queue) if scale.queue else ("kv_usage", "kv-usage", scale.kv_usage)
    reported = {name: name in settings.engine_row.metrics for name in ("queue", "kv-usage")}
    if reported[metric] and metric in framework.signals:
        return
    others = {"queue": "set scale: {kv_usage: 80%}", "kv_usage": "set scale: {queue: 4}"}
    fix = others[key] if any(reported.values()) else f"set replicas: {node.role.replicas.max}"
    if reported[metric]:
        reason = f"{settings.framework} does not scale by it"
    elif settings.engine in framework.engines:
        reason = f"{settings.framework} reports no metric of it"
    else:
        reason = f"the engine {settings.engine} has no metric of it"
    yield Conflict((*node.placed.key_path, "scale", key), reason, fix, value)


def _check_weights(node: Node, weights: Sequence[str]) -> Iterator[Conflict]:
    """Yield a checkpoint with weights that the engine does not compute with."""
    model = node.placed.model
    if model.quantization not in weights:
        reason = (
            f"its weights are {model.quantization}, and on {node.placed.instance.name} the engine "
            f"{node.settings.engine} takes those of 16 bits"
        )
        fix = "use the checkpoint that is not quantized, or a pool of types with accelerators"
        yield Conflict(node.placed.find_model_key_path("model"), reason, fix, model.name)


def _check_model(node: Node, limits: EngineLimits) -> Iterator[Conflict]:
    model, device = node.placed.model, node.placed.instance.accelerators
    engine_label = f"on {device.name if device else node.placed.instance.name} the engine"
    sizes = limits.architectures.get(model.kind, ())
    reason = ""
    if not sizes:
        reason = f"it is a {model.kind}, and {engine_label} runs {' and '.join(limits.architectures)}"
        fix = "use a model of one of these"
    elif model.quantization != "none":
        reason = f"its weights are {model.quantization}, and {engine_label} takes those of 16 bits"
        fix = "use the checkpoint that is not quantized"
    elif model.head_dim not in sizes:
        supported_sizes = " or ".join(map(str, sizes))
        reason = (
            f"its heads have {model.head_dim} numbers each, and {engine_label} takes {supported_sizes} "
            f"for a {model.kind}"
        )
        fix = "use another model"
    if reason:
        yield Conflict(node.placed.find_model_key_path("model"), reason, fix, model.name)


def _check_segments(node: Node, limits: EngineLimits) -> Iterator[Conflict]:
    context, tokens = node.placed.model_settings.context, node.tuning.batch_tokens
    sizes = [size for size in limits.segments if size < context]
    if not sizes:
        reason = f"the engine computes prompts in segments here, the least of {limits.segments[0]}, below the context"
        fix = f"set context: {2 * limits.segments[0]} or more"
        yield Conflict(node.placed.find_model_key_path("context"), reason, fix, context)
    elif tokens is not None and tokens not in sizes:
        reason = "a step is one segment of a prompt here, compiled for its size and below the context"
        yield Conflict(("tuning", "batch_tokens"), reason, f"use one of {', '.join(map(str, sizes))}", tokens)


def _check_whole_node(node: Node, limits: EngineLimits) -> Iterator[Conflict]:
    largest = max(node.placed.instances, key=count_accelerators)
    max_accelerators, accelerators = count_accelerators(largest), node.role.accelerators
    if accelerators < max_accelerators:
        reason = f"{limits.whole_node_reason}, so a replica has all {max_accelerators} of a {largest.name} for itself"
        # Layers are split as far as the model allows, and copied for the rest.
        memory_model, model = base.get_memory_model(node.settings.engine), node.placed.model
        sizes = memory.list_tensor_sizes(model, largest)
        degree = max((size for size in sizes if not memory_model.describe_indivisible(model, Split(size))), default=1)
        copies = f", with data: {max_accelerators // degree} or more" if degree < max_accelerators else ""
        yield node.placed.refuse("accelerators", reason, f"set accelerators: {max_accelerators}{copies}")
