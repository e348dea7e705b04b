"""What the user should know of how a deployment was resolved, a sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from llm_serving.catalog import models
from llm_serving.fleet import aws_limits
from llm_serving.kinds.serving import engine_process, router_policy
from llm_serving.kinds.serving.checks import pictures, turns
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import compute_fixed_replicas, get_shared
from llm_serving.services import orchestrators, tasks
from llm_serving.services.service import Service


def list_notes(
    context: Context, engine_services: Sequence[Service], framework_config: Mapping[str, JsonValue]
) -> Iterator[str]:
    """Yield what the user should know, in the order in which it is shown."""
    yield from _describe_choices(context)
    yield from _describe_uncomputed_memory(context)
    yield from _describe_uncached_prompts(context)
    yield from _describe_code_arguments(context)
    for placed in context.placed_roles:
        if placed.model.vision:
            yield from pictures.describe(placed)
        if get_shared(placed.role):
            continue
        if context.conventions.is_local:
            yield from _describe_local_role(context, placed)
        else:
            yield from _describe_upgrade(context, placed)
    yield from router_policy.describe(context)
    if context.transfer == "host":
        yield from _describe_host_transfer(context)
    yield from turns.describe(context)
    if context.conventions.runs_tasks:
        yield from _describe_long_starts(context, engine_services)
    images = (*(service.image for service in engine_services), *_find_images(framework_config))
    yield from _describe_moving_tags(context, images)


def list_emulated(context: Context) -> Iterator[str]:
    """Yield the parts of the deployment that are emulated."""
    devices = dict.fromkeys(
        (placed.instance.accelerators.name, placed.instance.name)
        for placed in context.placed_roles
        if placed.instance.accelerators and context.conventions.is_local
    )
    for device, name in devices:
        yield f"The engine runs on this machine's CPU in place of {device} on {name}, at the CPU's speed."
    if any(placed.model.random for placed in context.placed_roles):
        yield models.RANDOM_NOTICE


def _describe_choices(context: Context) -> Iterator[str]:
    """Yield what the task, the framework and the engine under it do otherwise than others."""
    settings, framework = context.blueprint, context.blueprint.framework_row
    if settings.unused_keys:
        yield tasks.describe_unused(settings.task, settings.unused_keys)
    if settings.image and not context.conventions.is_local:
        yield (
            f"Options and memory are those of the pinned version of {settings.engine}; {settings.image} may have "
            "another, which refuses options or takes more memory."
        )
    if framework.note:
        yield framework.note
    keeper = settings.tuning.keeper
    is_master = keeper is not None and bool(keeper.master)
    for name in ["The router"] * framework.is_x86_64 + ["The master of the cached prompts"] * is_master:
        yield from orchestrators.describe_missing_nodes(context.fleet, context.conventions, name)
    if context.pair and context.pair.local and context.conventions.is_local:
        yield context.pair.local.note


def _describe_uncomputed_memory(context: Context) -> Iterator[str]:
    """Yield models of which the memory, or a part of it, is not known."""
    tuning = context.blueprint.tuning
    models_placed = {placed.model.name: placed.model for placed in context.placed_roles}.values()
    for model in models_placed:
        if not model.is_known:
            yield (
                f"Memory of {model.name}: not computed, since its kind, {model.kind or 'without a name'}, is not known "
                "here. Its weights and a tenth have room; whether a request of the whole context does, the engine "
                "decides when it starts."
            )
    if tuning.speculative and tuning.speculative.model and tuning.find_draft() is None:
        yield (
            f"Memory of the draft model {tuning.speculative.model}: not computed, since no such model is known here. "
            "Its weights and its cache take a part of what is computed for the KV cache."
        )
    for model in models_placed:
        if tuning.predicts_itself and not (model.is_known and model.prediction_tensors):
            yield (
                f"Memory of the layers of {model.name} that predict tokens: not computed. Their weights and their "
                "cache take a part of what is computed for the KV cache."
            )


def _describe_uncached_prompts(context: Context) -> Iterator[str]:
    """Yield models whose prompts the engine computes from their start, although it caches those of others."""
    if not context.blueprint.tuning.prefix_cache:
        return
    for name in dict.fromkeys(model.name for model in context.models if not context.engine.caches_prompts(model)):
        yield f"{context.blueprint.engine} keeps no states of prompts: of {name} it computes each from its start."


def _describe_code_arguments(context: Context) -> Iterator[str]:
    arguments = {path[-1]: value for placed in context.placed_roles for path, value in placed.list_arguments()}
    for name in context.engine.code_arguments:
        if arguments.get(name):
            yield (
                f"engine_arguments.{name} makes the engine run code, of the model's folder or of a module: read it "
                "before you deploy a blueprint that is not your own."
            )


def _describe_local_role(context: Context, placed: PlacedRole) -> Iterator[str]:
    title, role = context.conventions.title, placed.role
    if context.blueprint.roles.takes_turns(placed.name):
        yield (
            f"On {title} all models of {placed.name} stay in memory: one that sleeps frees only what it has on "
            "an accelerator."
        )
    if role.replicas.min != role.replicas.max:
        replicas = compute_fixed_replicas(role).min
        yield f"Nothing scales on {title}: {placed.name} runs {replicas} of {role.replicas} replicas."


def _describe_upgrade(context: Context, placed: PlacedRole) -> Iterator[str]:
    """Yield a role of which an upgrade leaves nothing that answers."""
    role = placed.role
    if context.blueprint.disruption.starts_first:
        return
    if role.replicas.max == 1:
        yield (
            f"An upgrade stops the one replica of {placed.name} before it starts the new one, and nothing answers "
            f"meanwhile. disruption: {{surge: on}} starts the new one first, if the pool {role.pool} holds both."
        )
    elif context.is_node_service(1) and role.replicas.max > 1:
        yield (
            f"An upgrade stops all {role.replicas.max} replicas of {placed.name} at once, each of which is a "
            f"service with a name of its own. disruption: {{surge: on}} starts the new ones first, if the pool "
            f"{role.pool} holds both."
        )


def _describe_host_transfer(context: Context) -> Iterator[str]:
    """Yield why KV caches go through the nodes' memory, and what room the copies leave there."""
    has_rdma = all(placed.rdma for placed in context.placed_roles)
    reason = "as the blueprint asks" if has_rdma else "for the pools have no EFA with GPUDirect RDMA"
    if "rdma" not in context.engine.transfers:
        reason = f"the one way of {context.blueprint.engine} here"
    yield (
        f"KV caches go from prefill to decode through the nodes' memory and TCP, {reason}: measure it against "
        "`blueprint baseline` before you pay for it."
    )
    for placed in context.placed_roles:
        if placed.cache_limit is not None and placed.fit:
            yield (
                f"The KV cache of {placed.name} is {placed.cache_limit / 2**30:.1f} GiB an accelerator, "
                f"{placed.fit.cache_tokens:,} tokens: the transfer keeps a copy of all of it in the node's "
                "memory, which has no more room."
            )


def _describe_long_starts(context: Context, engine_services: Sequence[Service]) -> Iterator[str]:
    """Yield engines whose start may take longer than tasks are given."""
    limit_min = aws_limits.TASK_START_S / 60
    megabytes = engine_process.MIN_LOAD_BYTES_S / 1e6
    starts = {service.role: service.probe.deadline_s / 60 for service in engine_services if service.probe}
    for role, start_min in starts.items():
        if start_min > limit_min:
            yield (
                f"{context.conventions.title} ends a container that has not answered {limit_min:.0f} minutes after its "
                f"start. {role} may take {start_min:.0f}, with {megabytes:.0f} MB/s from S3: if its tasks end there, "
                "use a pool of types with a faster network, or EKS."
            )


def _find_images(config: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the images of a framework's configuration, of what runs beside the engines."""
    for key, value in config.items():
        if isinstance(value, str) and key.lower().endswith("image"):
            yield value
        elif isinstance(value, dict):
            yield from _find_images(value)


def _describe_moving_tags(context: Context, references: Iterable[str]) -> Iterator[str]:
    """Yield images that are pulled by a tag which their registry can move; tags of the fleet's own never do."""
    for image in dict.fromkeys(filter(None, references)):
        if "@" not in image and not image.startswith(f"{context.environment.registry}/"):
            yield f"{image} is pulled by its tag; `blueprint images pin` keeps the digest in images.lock.yaml."
