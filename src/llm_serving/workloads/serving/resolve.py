"""Decides every number of a deployment, once: blueprint + fleet + catalogs -> `Deployment`.

Pure: the same files and the same environment give the same deployment. What cannot work is refused with all reasons at
once, each at its line of blueprint.yaml.

models -> placement of each role on its pool -> KV transfer -> command lines -> roles and their router
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from llm_serving.catalog import models
from llm_serving.catalog.architecture import ModelError
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
"""Of a router's container: it keeps the prefixes of prompts that it has routed, up to its --max-tree-size."""

SCRATCH_BYTES = 40 * 2**30
"""Of the disk, for an engine's caches and adapters, besides weights that are copied there."""

FETCH_LIMIT_S, MIN_COPY_BYTES_S = 300, 100e6
"""Longest that copying a little from S3 may take, and the least bytes a second that more is taken to be copied with."""


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> Deployment:
    """The blueprint on the fleet, in the environment of its target.

    Raises:
        InputError: it cannot work; with every reason at its line of the blueprint.
    """
    settings = blueprint.value
    placed_roles = _place_checked_roles(blueprint, fleet, environment)
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
        url=_build_url(context, router.processes[0].port),
        disruption=settings.disruption,
        traffic=settings.traffic,
        slo=settings.slo,
        environment=environment,
        notes=tuple(_list_notes(context, placed_roles)),
        emulated=(*_list_emulated(context, placed_roles), *environment.emulated),
    )


def _place_checked_roles(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment
) -> list[PlacedRole]:
    """Each engine role with its nodes.

    Raises:
        InputError: the blueprint cannot work; with every reason.
    """
    _raise_mistakes(list(engine_limits.check_engine(blueprint, environment)))
    placed_roles, mistakes = _place_roles(blueprint, fleet, environment)
    mistakes += adapters.check(blueprint, environment.target, environment.conventions)
    if not mistakes:
        mistakes = [
            *placement.check_pool_sizes(blueprint, fleet, placed_roles),
            *targets.check(blueprint, fleet, environment, placed_roles),
        ]
    _raise_mistakes(mistakes)
    return placed_roles


def _raise_mistakes(mistakes: Sequence[Mistake]) -> None:
    """Raises InputError with all mistakes, in the order of the file, if there are any."""
    if mistakes:
        ordered = sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))
        raise InputError([*ordered])


def list_port_names(blueprint: Blueprint) -> list[str]:
    """Names of the ports that a target must choose where processes share one machine."""
    return processes.list_port_names(
        blueprint, {name: compute_fixed_replicas(role).min for name, role in blueprint.roles.engine_roles.items()}
    )


def resolve_name(blueprint: Document[Blueprint]) -> str:
    """The deployment's name: as written, or the folder's.

    Raises:
        InputError: the folder's name is not a valid name.
    """
    if blueprint.value.name:
        return blueprint.value.name
    folder = blueprint.path.resolve().parent.name
    try:
        return TypeAdapter(Name).validate_python(folder)
    except ValidationError:
        reason = "the folder's name is used, and is not a valid name"
        raise InputError(
            [blueprint.build_mistake(["name"], folder, reason, "name: NAME, 2 to 32 of a-z, 0-9 and -")]
        ) from None


def resolve_served_name(model: str) -> str:
    """What clients put in `model`: the name in the catalog or on the hub, or the folder's own."""
    return Path(model).expanduser().name if Path(model).expanduser().is_dir() else model


def build_bucket_prefix(model: str) -> str:
    """Prefix of a model in the fleet's model bucket."""
    return f"models/{resolve_served_name(model)}"


def resolve_policy(blueprint: Blueprint, environment: Environment) -> RouterPolicy:
    """How the router chooses a replica: as written, else by cached prefixes where prompts share enough."""
    is_cache_aware = resolve_shared_prefix(blueprint, environment) > processes.get_router(blueprint).cache_aware_share
    return blueprint.roles.router.policy or ("cache-aware" if is_cache_aware else "load-aware")


def resolve_shared_prefix(blueprint: Blueprint, environment: Environment) -> float:
    """Share of a prompt that others share: as the blueprint states it, else as it was measured."""
    if blueprint.traffic.has_shared_prefix or environment.measured is None:
        return blueprint.traffic.shared_prefix
    return environment.measured.shared_prefix


def resolve_transfer(blueprint: Blueprint, placed_roles: Sequence[PlacedRole], environment: Environment) -> str:
    """The engine's transfer of KV caches from prefill to decode; empty where there is none."""
    if not blueprint.is_disaggregated:
        return ""
    if environment.conventions.kv_transfer:
        return environment.conventions.kv_transfer
    has_rdma = all(role_placement.rdma for _, _, role_placement in placed_roles)
    return "rdma" if has_rdma and blueprint.tuning.kv_transfer != "host" else "host"


def _place_roles(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment
) -> tuple[list[PlacedRole], list[Mistake]]:
    """Each engine role with its nodes, and everything that forbids one."""
    settings, placed_roles, mistakes = blueprint.value, [], []
    checked_models: dict[str, tuple[Model | None, list[Mistake]]] = {}
    for name, role in settings.roles.engine_roles.items():
        key_path, model_settings = settings.find_key_path(name), settings.select_model_settings(role)
        model_name = model_settings.model or ""
        is_new = model_name not in checked_models
        model, model_mistakes = checked_models.setdefault(
            model_name,
            _resolve_model(
                blueprint,
                settings.find_model_key_path(key_path, role, "model"),
                model_name,
                model_settings.context,
            ),
        )
        mistakes += model_mistakes if is_new else []
        if environment.conventions.real_accelerators:
            pool_mistakes = list(engine_limits.check_pool(blueprint, fleet, key_path, role))
            mistakes += pool_mistakes
            if pool_mistakes:
                continue
        try:
            if model is None:
                placement.require_pool(blueprint, fleet, key_path, role)
                continue
            role_placement = placement.place_role(blueprint, fleet, key_path, role, model, model_settings.context)
            placed_roles.append((key_path, role, role_placement))
        except PlacementError as error:
            mistakes += [mistake for mistake in error.mistakes if mistake not in mistakes]
    return placed_roles, mistakes


def _resolve_model(
    blueprint: Document[Blueprint], key_path: Sequence[str], name: str, context: int
) -> tuple[Model | None, list[Mistake]]:
    try:
        model = models.find(name)
    except ModelError as error:
        return None, [blueprint.build_mistake(key_path, name, error.reason, error.fix)]
    if model.task != "generate":
        reason = f"its task is to {model.task}, and this pattern serves chat and completions"
        return model, [blueprint.build_mistake(key_path, name, reason, "a model that generates text")]
    if context > model.max_context:
        reason = f"{name} takes up to {model.max_context} tokens a request"
        context_path = [*key_path[:-1], "context"]
        return model, [blueprint.build_mistake(context_path, context, reason, f"{model.max_context} or less")]
    return model, []


def _build_role(
    context: Context, blueprint: Document[Blueprint], name: str, role: EngineRole, role_placement: Placement
) -> Role:
    served_model = _build_served_model(context, blueprint, name, role, role_placement)
    conventions, resources = context.conventions, role_placement.resources
    instances = tuple(
        processes.build_engine_process(context, name, role, role_placement, served_model, replica, rank)
        for replica, rank in processes.list_instance_keys(context, role, role_placement)
    )
    # EFA joins a replica's nodes and carries KV caches; nothing else uses it.
    uses_efa = role_placement.resources.efa > 0 and (role_placement.nodes > 1 or context.transfer == "rdma")
    return Role(
        name=name,
        kind="engine",
        image=_select_image(context, role_placement, uses_efa) if conventions.containers else "",
        served_model=served_model,
        pool=role.pool,
        instance_types=tuple(instance.name for instance in role_placement.instances),
        zones=role_placement.zones,
        labels=role_placement.labels,
        tolerations=role_placement.tolerations,
        accelerators=role.accelerators,
        nodes=role_placement.nodes,
        parallelism=role_placement.parallelism,
        resources=resources if uses_efa else resources.model_copy(update={"efa": 0, "node_efa": 0}),
        replicas=role.replicas if conventions.scales else compute_fixed_replicas(role),
        scale=resolve_scale(name, role) if conventions.scales else None,
        prefetch=_build_prefetch(context, role_placement, served_model),
        ports=_build_ports(context, role_placement),
        kv_block=context.select_platform(role_placement).kv_block,
        metrics=dict(context.engine.metrics),
        processes=tuple(process for process in instances if process.replica == 0),
        instances=instances,
    )


def _select_image(context: Context, role_placement: Placement, uses_efa: bool) -> str:
    engine = context.engine
    fleet_image = engine.fleet_image.replace("{registry}", context.environment.registry)
    engine_image = fleet_image if fleet_image and (uses_efa or context.policy == "kv-aware") else engine.image
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
    if context.conventions.shared_host:
        return {}
    return {name: processes.PORTS[name] for name, is_used in port_uses.items() if is_used}


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
        # With many models each has its role's name: the same model may be served twice, with other settings.
        name=resolve_served_name(model_name) if model_settings is settings else name,
        weights=Weights(
            uri=f"{uri.rstrip('/')}/",
            loader=context.engine.streaming.loader
            if context.engine.streaming and context.streams(role_placement)
            else "auto",
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
    conventions = context.conventions
    replicas = 1 if conventions.shared_host else context.blueprint.roles.router.replicas
    process = processes.build_router_process(context, engine_roles, served_model)
    return Role(
        name="router",
        kind="router",
        image=_select_router_image(context) if conventions.containers else "",
        resources=Resources(cpus=ROUTER_CPUS, memory_bytes=ROUTER_BYTES),
        ports={} if conventions.shared_host else {"metrics": processes.METRICS_PORT},
        replicas=Bounds(replicas, replicas),
        metrics=dict(
            context.router.metrics.get("disaggregated" if context.blueprint.is_disaggregated else "aggregated", {})
        ),
        processes=(process,),
        instances=(process,),
    )


def _select_router_image(context: Context) -> str:
    dns_discovery_image = context.router.dns_discovery_image.replace("{registry}", context.environment.registry)
    return dns_discovery_image if processes.select_discovery(context) == "names" else context.router.image


def _build_url(context: Context, port: int) -> str:
    return context.conventions.url.format(deployment=context.name, namespace=context.environment.namespace, port=port)


def _list_notes(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[str]:
    title = context.conventions.title
    for key_path, role, role_placement in placed_roles:
        device = role_placement.instance.accelerators
        if device and not context.conventions.real_accelerators:
            yield (
                f"On {title} the engine runs on CPU; the {role.accelerators} x {device.name} of "
                f"{role_placement.instance.name} that the pool {role.pool} gives each replica of {key_path[-1]} "
                "stay unused."
            )
        if not context.conventions.scales and role.replicas.min != role.replicas.max:
            replicas = compute_fixed_replicas(role).min
            yield f"Nothing scales on {title}: {key_path[-1]} runs {replicas} of {role.replicas} replicas."
    if context.blueprint.roles.router.policy is None:
        yield f"The router's policy is {context.policy}, {_describe_policy(context)}."
    if context.transfer == "host":
        has_rdma = all(role_placement.rdma for _, _, role_placement in placed_roles)
        reason = "as the blueprint asks" if has_rdma else "for the pools have no EFA with GPUDirect RDMA"
        yield (
            f"KV caches go from prefill to decode through the nodes' memory and TCP, {reason}: measure it against "
            "`blueprint baseline` before you pay for it."
        )


def _describe_policy(context: Context) -> str:
    """The share of the prompts that decided the policy, and where it is from."""
    traffic, measured = context.blueprint.traffic, context.environment.measured
    shared_prefix = resolve_shared_prefix(context.blueprint, context.environment)
    threshold = context.router.cache_aware_share
    comparison = f"{'more' if shared_prefix > threshold else 'not more'} than the {threshold:.0%} that it follows"
    if traffic.has_shared_prefix or (measured is None and traffic.data is None):
        statement = (
            f"{shared_prefix:.0%} of each prompt is shared, {comparison}"
            if shared_prefix
            else "its prompts share nothing"
        )
        return f"since by the blueprint's traffic {statement}"
    if measured is None:
        return f"until `blueprint validate` has measured what the prompts of {traffic.data} share"
    return (
        f"since by the validation of {measured.measured_at} earlier prompts begin with {shared_prefix:.0%} of each, "
        f"{comparison}"
    )


def _list_emulated(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[str]:
    devices = dict.fromkeys(
        (role_placement.instance.accelerators.name, role_placement.instance.name)
        for _, _, role_placement in placed_roles
        if role_placement.instance.accelerators and not context.conventions.real_accelerators
    )
    for device, name in devices:
        yield f"The engine runs on this machine's CPU in place of {device} on {name}, at the CPU's speed."
    if any(role_placement.model.random for _, _, role_placement in placed_roles):
        yield models.RANDOM_NOTICE
