"""Decides every number of a deployment, once: blueprint + fleet + catalogues -> `Deployment`.

Pure: the same files and the same place give the same deployment. What cannot work is refused with all of its reasons at
once, each at its line of blueprint.yaml.

models -> placement of each role on its pool -> how caches are handed on -> command lines -> roles and their router
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from llm_serving.catalog import engines, models
from llm_serving.catalog.models import Model
from llm_serving.fleet.model import Fleet, Name
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Bounds
from llm_serving.workloads.environment import Environment
from llm_serving.workloads.serving import adapters, placement, processes
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.checks import engine_limits, targets
from llm_serving.workloads.serving.deployment import Deployment, Prefetch, Resources, Role, ServedModel, Weights
from llm_serving.workloads.serving.placement import PlacedRole, Placement, PlacementError
from llm_serving.workloads.serving.processes import Context
from llm_serving.workloads.serving.roles import EngineRole, RouterPolicy, compute_fixed_replicas, resolve_scale

ROUTER_CPUS, ROUTER_BYTES = 2, 4 * 2**30
"""Of a router's container: it keeps the beginnings of prompts that it has seen, up to its --max-tree-size."""

SCRATCH_BYTES = 40 * 2**30
"""Of the disk, for what an engine caches and for adapters, beside weights that are copied there."""

FETCH_LIMIT_S, MIN_COPY_BYTES_S = 300, 100e6
"""Longest that copying a little from S3 may take, and the least bytes a second that more is taken to be copied with."""

CACHE_AWARE_SHARE = 0.3
"""Share of a prompt above which the router follows cached beginnings, unless told otherwise.

vllm-router 0.1.17's cache_aware follows none of 30% of a prompt or less (`--cache-threshold`, its default). What
following takes off the mean end to end of load alone, simulated (scripts/benchmarks/replay.py, 2026-11-21): with short
caches 1 to 4% where 25% is shared, 7% at 40%, 10% at 50%, about 20% at 80%; with ample ones 0 to 3%; nothing at 0%."""


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> Deployment:
    """The blueprint on that fleet, at that place.

    Raises:
        InputError: it cannot work; with every reason at its line of the blueprint.
    """
    settings = blueprint.value
    placed_roles, mistakes = _place_roles(blueprint, fleet, environment)
    mistakes += adapters.check(blueprint, environment.target)
    if not mistakes:
        mistakes = [
            *placement.check_pool_sizes(blueprint, fleet, placed_roles),
            *targets.check(blueprint, fleet, environment, placed_roles),
        ]
    if mistakes:
        sorted_mistakes: list[Mistake | str] = [*sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))]
        raise InputError(sorted_mistakes)
    context = Context(
        settings,
        resolve_name(blueprint),
        environment,
        resolve_policy(settings, environment),
        resolve_transfer(settings, placed_roles, environment),
    )
    engine_roles = [
        _build_role(context, blueprint, key_path[-1], role, role_placement)
        for key_path, role, role_placement in placed_roles
    ]
    router = _build_router(context, engine_roles)
    return Deployment(
        name=context.name,
        pattern=settings.pattern,
        target=environment.target,
        fleet=fleet.value.name,
        engine=settings.engine,
        framework=settings.framework,
        roles=(*engine_roles, router),
        url=_build_url(context, router),
        disruption=settings.disruption,
        traffic=settings.traffic,
        slo=settings.slo,
        environment=environment,
        notes=tuple(_list_notes(context, placed_roles)),
        emulated=(*_list_emulated(context, placed_roles), *environment.emulated),
    )


def list_port_names(blueprint: Blueprint) -> list[str]:
    """Names of the ports that a place where all processes share one address must choose."""
    return processes.list_port_names(
        blueprint, {name: compute_fixed_replicas(role).min for name, role in blueprint.roles.engine_roles.items()}
    )


def resolve_name(blueprint: Document[Blueprint]) -> str:
    """The deployment's name: as written, or the folder's.

    Raises:
        InputError: the folder's name is no name of a deployment.
    """
    if blueprint.value.name:
        return blueprint.value.name
    folder = blueprint.path.resolve().parent.name
    try:
        return TypeAdapter(Name).validate_python(folder)
    except ValidationError:
        reason = "the folder's name stands in for it, and is none"
        raise InputError(
            [blueprint.build_mistake(["name"], folder, reason, "name: NAME, 2 to 32 of a-z, 0-9 and -")]
        ) from None


def resolve_served_name(model: str) -> str:
    """What clients put in `model`: the name in the catalogue or on the hub, or the folder's own."""
    return Path(model).expanduser().name if Path(model).expanduser().is_dir() else model


def build_bucket_prefix(model: str) -> str:
    """Where a model lies in the fleet's model bucket."""
    return f"models/{resolve_served_name(model)}"


def resolve_policy(blueprint: Blueprint, environment: Environment) -> RouterPolicy:
    """How the router chooses: as written, else by cached beginnings where the traffic's prompts share enough."""
    is_cache_aware = resolve_shared_prefix(blueprint, environment) > CACHE_AWARE_SHARE
    return blueprint.roles.router.policy or ("cache-aware" if is_cache_aware else "load-aware")


def resolve_shared_prefix(blueprint: Blueprint, environment: Environment) -> float:
    """What a prompt has in common with others: as the blueprint states it, else as it was measured."""
    if blueprint.traffic.has_shared_prefix or environment.measured is None:
        return blueprint.traffic.shared_prefix
    return environment.measured.shared_prefix


def resolve_transfer(blueprint: Blueprint, placed_roles: Sequence[PlacedRole], environment: Environment) -> str:
    """Which of the engine's transfers hands caches from prefill to decode; empty where none do."""
    if blueprint.pattern != "disaggregated":
        return ""
    if environment.target == "local":
        return "loopback"
    has_rdma = all(role_placement.rdma for _, _, role_placement in placed_roles)
    return "rdma" if has_rdma and blueprint.tuning.kv_transfer != "host" else "host"


def _place_roles(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment
) -> tuple[list[PlacedRole], list[Mistake]]:
    """Each engine role with its machines, and all that stands against them."""
    settings, placed_roles, mistakes = blueprint.value, [], []
    checked_models: dict[str, tuple[Model | None, list[Mistake]]] = {}
    for name, role in settings.roles.engine_roles.items():
        key_path, model_settings = settings.find_key_path(name), settings.select_model_settings(role)
        model_name = model_settings.model or ""
        model_path = settings.find_model_key_path(key_path, role, "model")
        is_new = model_name not in checked_models
        model, model_mistakes = checked_models.setdefault(
            model_name, _resolve_model(blueprint, model_path, model_name, model_settings.context)
        )
        mistakes += model_mistakes if is_new else []
        pool_mistakes = (
            [] if environment.target == "local" else list(engine_limits.check_pool(blueprint, fleet, key_path, role))
        )
        if pool_mistakes:
            mistakes += pool_mistakes
            continue
        try:
            if model is None:
                placement.require_pool(blueprint, fleet, key_path, role)
            else:
                placed_roles.append(
                    (
                        key_path,
                        role,
                        placement.place_role(blueprint, fleet, key_path, role, model, model_settings.context),
                    )
                )
        except PlacementError as error:
            mistakes += [mistake for mistake in error.mistakes if mistake not in mistakes]
    return placed_roles, mistakes


def _resolve_model(
    blueprint: Document[Blueprint], key_path: Sequence[str], name: str, context: int
) -> tuple[Model | None, list[Mistake]]:
    try:
        model = models.find(name)
    except InputError as error:
        reason, _, fix = str(error).removeprefix(f"model: now {name!r}: ").removesuffix(".").partition(". Fix: ")
        return None, [blueprint.build_mistake(key_path, name, reason, fix or "another model")]
    if model.task != "generate":
        reason = f"it is made to {model.task}, and this pattern serves chat and completions"
        return model, [blueprint.build_mistake(key_path, name, reason, "a model that generates text")]
    if context > model.max_context:
        reason = f"{name} was made for {model.max_context} tokens a request"
        context_path = [*key_path[:-1], "context"]
        return model, [blueprint.build_mistake(context_path, context, reason, f"{model.max_context} or less")]
    return model, []


def _build_role(
    context: Context, blueprint: Document[Blueprint], name: str, role: EngineRole, role_placement: Placement
) -> Role:
    served_model = _build_served_model(context, blueprint, name, role, role_placement)
    # EFA joins a replica's machines and hands caches on; nothing else goes over it.
    uses_efa = role_placement.resources.efa > 0 and (role_placement.nodes > 1 or context.transfer == "rdma")
    return Role(
        name=name,
        kind="engine",
        image="" if context.is_local else _select_image(context, role_placement, uses_efa),
        served_model=served_model,
        pool=role.pool,
        instance_types=tuple(instance.name for instance in role_placement.instances),
        zones=role_placement.zones,
        labels=role_placement.labels,
        tolerations=role_placement.tolerations,
        accelerators=role.accelerators,
        nodes=role_placement.nodes,
        parallelism=role_placement.parallelism,
        resources=role_placement.resources
        if uses_efa
        else role_placement.resources.model_copy(update={"efa": 0, "node_efa": 0}),
        replicas=compute_fixed_replicas(role) if context.is_local else role.replicas,
        scale=None if context.is_local else resolve_scale(name, role),
        prefetch=_build_prefetch(context, role_placement, served_model),
        ports=_build_ports(context, role_placement),
        kv_block=context.select_platform(role_placement).kv_block,
        metrics=dict(context.engine.metrics),
        processes=tuple(processes.build_engine_processes(context, name, role, role_placement, served_model)),
        instances=tuple(processes.build_engine_processes(context, name, role, role_placement, served_model)),
    )


def _select_image(context: Context, role_placement: Placement, uses_efa: bool) -> str:
    engine = context.engine
    own_image = engine.own_image.replace("{registry}", context.environment.registry)
    engine_image = own_image if uses_efa or context.policy == "kv-aware" else engine.image
    return context.blueprint.image or role_placement.platform.image or engine_image


def _build_prefetch(context: Context, role_placement: Placement, served_model: ServedModel) -> Prefetch | None:
    uris = processes.list_prefetch_uris(context, role_placement, served_model)
    weight_bytes = served_model.weights.bytes if processes.WEIGHTS_FOLDER in uris else 0
    timeout_s = math.ceil(FETCH_LIMIT_S + weight_bytes / MIN_COPY_BYTES_S)
    return Prefetch(uris=uris, timeout_s=timeout_s, disk_bytes=weight_bytes + SCRATCH_BYTES) if uris else None


def _build_ports(context: Context, role_placement: Placement) -> dict[str, int]:
    port_uses = {
        "side": bool(context.transfer),
        "events": context.policy == "kv-aware",
        "replay": context.policy == "kv-aware",
        "master": role_placement.nodes > 1,
        "data": role_placement.nodes > 1 and role_placement.parallelism.data > 1,
    }
    return {} if context.is_local else {name: processes.PORTS[name] for name, is_used in port_uses.items() if is_used}


def _build_served_model(
    context: Context, blueprint: Document[Blueprint], name: str, role: EngineRole, role_placement: Placement
) -> ServedModel:
    settings, environment, model = context.blueprint, context.environment, role_placement.model
    model_settings = settings.select_model_settings(role)
    model_name = model_settings.model or ""
    uri = (
        model_settings.weights
        if model_settings.weights != "s3"
        else f"s3://{environment.bucket}/{build_bucket_prefix(model_name)}"
    )
    folder = blueprint.path.resolve().parent
    return ServedModel(
        model=model_name,
        # Of many models each is called as its role is: the same model may be there twice, with other settings.
        name=resolve_served_name(model_name) if model_settings is settings else name,
        weights=Weights(
            uri=f"{uri.rstrip('/')}/",
            loader=context.engine.streaming.loader if context.select_platform(role_placement).streams else "auto",
            bytes=model.weight_bytes,
            random=model.random,
        ),
        context=model_settings.context,
        adapters={
            adapter: location if location.startswith("s3://") else str(folder / location)
            for adapter, location in role.adapters.items()
        },
    )


def _build_router(context: Context, engine_roles: Sequence[Role]) -> Role:
    served_model = next(role.served_model for role in engine_roles if role.served_model)
    replicas = 1 if context.is_local else context.blueprint.roles.router.replicas
    router = engines.load_routers()[processes.ROUTER]
    return Role(
        name="router",
        kind="router",
        image=_select_router_image(context, router),
        resources=Resources(cpus=ROUTER_CPUS, memory_bytes=ROUTER_BYTES),
        ports={} if context.is_local else {"metrics": processes.METRICS_PORT},
        replicas=Bounds(replicas, replicas),
        metrics=dict(router.metrics[processes.select_discovery_mode(engine_roles)]),
        processes=(process := processes.build_router_process(context, engine_roles, served_model),),
        instances=(process,),
    )


def _select_router_image(context: Context, router: engines.Router) -> str:
    if context.is_local:
        return ""
    discovery_image = router.following_image.replace("{registry}", context.environment.registry)
    return discovery_image if processes.select_discovery(context) == "names" else router.image


def _build_url(context: Context, router: Role) -> str:
    port = router.processes[0].port
    if context.is_local:
        return f"http://{processes.LOOPBACK}:{port}"
    if context.environment.target == "eks":
        return f"http://{context.name}.{context.environment.namespace}.svc:{port}"
    return f"http://{context.name}-router.{context.environment.namespace}:{port}"


def _list_notes(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[str]:
    for key_path, role, role_placement in placed_roles if context.is_local else ():
        device = role_placement.instance.accelerators
        if device:
            yield (
                f"On this machine the engine runs on CPU; the {role.accelerators} x {device.name} of "
                f"{role_placement.instance.name} that the pool {role.pool} would give each replica of {key_path[-1]} stay unused."
            )
        if role.replicas.min != role.replicas.max:
            replicas = compute_fixed_replicas(role).min
            yield f"Nothing scales on this machine: {key_path[-1]} runs {replicas} of {role.replicas} replicas."
    if context.blueprint.roles.router.policy is None:
        yield f"The router's policy is {context.policy}, {_describe_policy(context)}."
    if context.transfer == "host":
        has_rdma = all(role_placement.rdma for _, _, role_placement in placed_roles)
        reason = "as the blueprint asks" if has_rdma else "for the pools have no EFA with GPUDirect RDMA"
        yield (
            f"Caches go from prefill to decode through the machines' memory and TCP, {reason}: measure it against "
            "`blueprint twin` before it is worth its price."
        )


def _describe_policy(context: Context) -> str:
    """Which share of the prompts decided on the policy, and who says so."""
    traffic, measured = context.blueprint.traffic, context.environment.measured
    shared_prefix = resolve_shared_prefix(context.blueprint, context.environment)
    comparison = f"{'more' if shared_prefix > CACHE_AWARE_SHARE else 'not more'} than the {CACHE_AWARE_SHARE:.0%} that it follows"
    if traffic.has_shared_prefix or (measured is None and traffic.data is None):
        statement = (
            f"{shared_prefix:.0%} of each prompt is shared, {comparison}"
            if shared_prefix
            else "its prompts share nothing"
        )
        return f"since by the blueprint's traffic {statement}"
    if measured is None:
        return f"until `blueprint validate` has measured what the prompts of {traffic.data} share"
    return f"since by the validation of {measured.measured_at} earlier prompts begin with {shared_prefix:.0%} of each, {comparison}"


def _list_emulated(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[str]:
    devices = dict.fromkeys(
        (role_placement.instance.accelerators.name, role_placement.instance.name)
        for _, _, role_placement in placed_roles
        if context.is_local and role_placement.instance.accelerators
    )
    for device, name in devices:
        yield f"The engine runs on this machine's CPU in place of {device} on {name}, at the CPU's speed."
    if any(role_placement.model.random for _, _, role_placement in placed_roles):
        yield models.RANDOM_NOTICE
