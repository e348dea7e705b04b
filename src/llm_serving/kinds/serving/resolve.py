"""Decides every number of a deployment, once: blueprint + fleet + catalogs -> `Deployment`.

Pure: the same files and the same environment give the same deployment. What cannot work is refused with all reasons at
once, each at its line of blueprint.yaml.

models -> placement of each role on its pool -> KV transfer -> command lines -> roles and their router
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from llm_serving.fleet.interfaces import EFA_DEVICE
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import (
    adapters,
    answer_parsers,
    kv_tiers,
    measurements,
    notes,
    placement,
    router_policy,
    router_process,
    services,
    sharing,
)
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.checks import engine_arguments, engine_limits, pictures, scaling, targets, turns
from llm_serving.kinds.serving.checks import models as checked_models
from llm_serving.kinds.serving.context import ROUTER_PORT, Context
from llm_serving.kinds.serving.deployment import (
    Parallelism,
    PoolMaster,
    ResolvedLoadBalancer,
    Role,
    ServingDeployment,
)
from llm_serving.kinds.serving.frameworks import base as frameworks
from llm_serving.kinds.serving.frameworks.base import Adapted
from llm_serving.kinds.serving.placed_role import PlacedRole, PlacementError
from llm_serving.kinds.serving.placement import PlacementSearch
from llm_serving.kinds.serving.roles import (
    compute_fixed_replicas,
    get_max_requests,
    get_shared,
    resolve_scale,
)
from llm_serving.kinds.serving.stack import ServingStack
from llm_serving.services import load_balancer
from llm_serving.services.environment import Environment
from llm_serving.services.models import LoadedModel, ServedModel, Weights, build_bucket_prefix, resolve_served_name
from llm_serving.services.service import Resources, Service
from llm_serving.settings.document import Conflict, Document, raise_mistakes
from llm_serving.settings.units import Bounds

ROUTER_CPUS, ROUTER_BYTES = 2, 4 * 2**30
"""Of a router's container: it keeps the prefixes of prompts that it has routed, up to its --max-tree-size."""


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> ServingDeployment:
    """Return the blueprint on the fleet, in the environment of its target.

    Raises:
        InputError: it cannot work; with every reason at its line of the blueprint.
    """
    context = _place_checked_roles(blueprint, fleet, environment)
    if context.copies_cache:
        limited = [placed.limit_cache() for placed in context.placed_roles]
        context = dataclasses.replace(context, placed_roles=limited)
    # What all roles have is reported once.
    written_options = dict.fromkeys(engine_arguments.check_written(context))
    raise_mistakes(blueprint.locate([*written_options, *frameworks.check(context)]))
    engine_roles, engine_services = _fold(context)
    router = _build_router(context)
    router_service = services.build_router_service(context, router, engine_roles, engine_services)
    adapted = frameworks.adapt(context, (*engine_services, router_service))
    deployment = _build_deployment(context, (*engine_roles, router), adapted)
    update = {
        "notes": (
            *notes.list_notes(context, engine_services, adapted.config),
            *measurements.list_shortages(deployment),
        ),
        "stack": _build_stack(context, deployment, engine_services),
    }
    return deployment.model_copy(update=update)


def _build_deployment(context: Context, roles: tuple[Role, ...], adapted: Adapted) -> ServingDeployment:
    """Build all of a deployment but its notes and its stack, which follow from the rest."""
    settings, environment = context.blueprint, context.environment
    shared_prefix = router_policy.resolve_shared_prefix(settings, environment)
    return ServingDeployment(
        name=context.name,
        pattern=settings.pattern,
        task=settings.task,
        target=environment.target,
        fleet=context.fleet.name,
        engine=settings.engine,
        framework=settings.framework,
        objects=settings.framework_row.objects,
        framework_config=dict(adapted.config),
        workload=settings.framework_row.workload,
        image_user=context.pair.image_user if context.pair else None,
        tuning=settings.tuning,
        roles=roles,
        services=tuple(adapted.services),
        url=context.conventions.url.format(
            deployment=context.name,
            namespace=environment.namespace,
            port=context.select_port("router", ROUTER_PORT),
        ),
        door=context.door,
        request_timeout_s=math.ceil(settings.roles.router.request_timeout),
        pool_master=_build_pool_master(context, roles),
        is_monitored=context.conventions.is_kubernetes and context.fleet.add_ons.observability,
        load_balancer=_build_load_balancer(context),
        balancer_ranges=_list_balancer_ranges(context),
        disruption=settings.disruption,
        traffic=settings.traffic,
        slo=settings.held_slo,
        admitted=settings.roles.admitted,
        unused_keys=settings.unused_keys,
        environment=environment,
        emulated=(*notes.list_emulated(context), *environment.emulated),
        cached_prompts=tuple(
            line for placed in context.placed_roles for line in kv_tiers.describe(placed, shared_prefix)
        ),
    )


def _fold(context: Context) -> tuple[list[Role], list[Service]]:
    """Return the roles that have replicas, and their services: those of models that share them are folded into them."""
    roles = context.blueprint.roles
    by_name = {placed.name: placed for placed in context.placed_roles}
    built_roles = {name: _build_role(context, placed) for name, placed in by_name.items()}
    engine_roles, engine_services = [], []
    for placed in context.replicated:
        head, *others = [built_roles[name] for name in (placed.name, *roles.sharers.get(placed.name, ()))]
        if others:
            sleepers = {role.name: role.served_model for role in others}
            head = head.model_copy(update={"sleepers": sleepers, "switch": roles.get_switch(placed.name)})
        engine_roles.append(head)
        built = [services.build_engine_services(context, by_name[role.name], role) for role in (head, *others)]
        for first, *models in zip(*built, strict=True):
            engine_services.append(sharing.fold_service(context, first, models) if models else first)
    return engine_roles, engine_services


def _build_stack(
    context: Context, deployment: ServingDeployment, engine_services: Sequence[Service]
) -> ServingStack | None:
    """Build the data of the stack: of tasks all that it makes, of pods only the routers' role; None without one."""
    if context.conventions.is_kubernetes and context.door:
        return ServingStack(orchestrator="eks", reads=())
    if not context.conventions.runs_tasks:
        return None
    tiers = context.blueprint.tuning.kv_tiers
    row, balancer = context.blueprint.load_balancer, deployment.load_balancer
    adapters = [location for model in deployment.served_models for location in model.adapters.values()]
    return ServingStack(
        reads=(*(model.weights.uri for model in deployment.loaded_models), *adapters),
        caches=(tiers.s3.bucket,) if tiers and tiers.s3 else (),
        errors=deployment.slo.errors,
        request_timeout_s=deployment.request_timeout_s,
        router_container=router_process.build_router_container(context, engine_services),
        load_balancer=load_balancer.resolve(row, balancer.drain_s) if row and balancer else None,
    )


def _place_checked_roles(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> Context:
    """Return the blueprint with the nodes of each engine role."""
    settings, conventions = blueprint.value, environment.conventions
    raise_mistakes(
        blueprint.locate(
            [
                *engine_limits.check_engine(settings, environment),
                *engine_arguments.check(settings),
                *checked_models.check_draft(settings),
            ]
        )
    )
    placed_roles, conflicts = _place_roles(settings, fleet.value, environment)
    conflicts += adapters.check(settings, blueprint.path.resolve().parent, environment.target, conventions)
    raise_mistakes(blueprint.locate(conflicts))
    policy = router_policy.resolve_policy(settings, environment, [placed.model for placed in placed_roles])
    context = Context(blueprint, fleet.value, environment, placed_roles, policy)
    conflicts = [
        *sharing.check(placed_roles),
        *scaling.check_sizes(context),
        *targets.check(context),
        *pictures.check(context),
        *(conflict for placed in placed_roles for conflict in answer_parsers.check(placed)),
        *turns.check(context),
    ]
    raise_mistakes([*blueprint.locate(conflicts), *fleet.locate(engine_limits.check_drivers(context))])
    return context


def _place_roles(
    settings: Blueprint, fleet: Fleet, environment: Environment
) -> tuple[list[PlacedRole], list[Conflict]]:
    placed_roles: list[PlacedRole] = []
    conflicts: list[Conflict] = []
    for name, role in settings.roles.engine_roles.items():
        key_path, model_settings = settings.find_key_path(name), settings.select_model_settings(role)
        model, model_conflicts = checked_models.find_model(settings, key_path, role)
        conflicts += model_conflicts
        if not environment.conventions.is_local:
            pool_conflicts = list(engine_limits.check_pool(settings, fleet, key_path, role))
            conflicts += pool_conflicts if not get_shared(role) else []
            if pool_conflicts:
                continue
        try:
            if model is None:
                placement.require_pool(fleet, key_path, role)
                continue
            search = PlacementSearch(settings, fleet, key_path, role, model, model_settings.context)
            placed_roles.append(search.find_placement())
        except PlacementError as error:
            if not (get_shared(role) and error.conflict.key_path[-1] == "pool"):  # which the shared role reports
                conflicts.append(error.conflict)
    return placed_roles, list(dict.fromkeys(conflicts))  # roles may share a model


def _build_role(context: Context, placed: PlacedRole) -> Role:
    role = placed.role
    conventions, resources = context.conventions, placed.resources
    # EFA joins a replica's nodes and carries KV caches; nothing else uses it.
    uses_efa = resources.efa > 0 and (placed.nodes > 1 or context.transfer == "rdma")
    return Role(
        name=placed.name,
        kind="engine",
        image=_select_image(context, placed, uses_efa) if not conventions.is_local else "",
        served_model=_build_served_model(context, placed),
        pool=role.pool,
        instance_types=tuple(instance.name for instance in placed.instances),
        gives_way=role.gives_way,
        accelerators=role.accelerators,
        nodes=placed.nodes,
        parallelism=Parallelism(tensor=role.tensor, pipeline=role.pipeline, data=role.data, expert=role.expert),
        resources=resources if uses_efa else _leave_out_efa(resources),
        replicas=role.replicas if not conventions.is_local else compute_fixed_replicas(role),
        weight=context.blueprint.roles.get_weight(placed.name),
        scale=resolve_scale(placed.name, role) if not conventions.is_local else None,
        kv_block=context.select_platform(placed).kv_block,
        batch=placed.batch,
        cache_tokens=placed.fit.cache_tokens if placed.fit else 0,
        cache_bytes=placed.fit.cache_bytes if placed.fit else 0,
        engine_arguments=context.blueprint.merge_arguments(role),
        metrics=dict(context.engine.metrics),
    )


def _leave_out_efa(resources: Resources) -> Resources:
    files = tuple(file for file in resources.device_files if not file.startswith(EFA_DEVICE))
    return resources.model_copy(update={"efa": 0, "huge_page_bytes": 0, "device_files": files})


def _select_image(context: Context, placed: PlacedRole, uses_efa: bool) -> str:
    engine = context.engine
    takes_turns = context.blueprint.roles.takes_turns(placed.name)
    needs_own = uses_efa or context.policy == "kv-aware" or get_max_requests(placed.role) or takes_turns
    engine_image = engine.fleet_image if engine.fleet_image and needs_own else engine.image
    return context.pin_image(context.blueprint.image or placed.platform.image or engine_image)


def _build_served_model(context: Context, placed: PlacedRole) -> ServedModel:
    settings, model, model_settings = context.blueprint, placed.model, placed.model_settings
    model_name = model_settings.model or ""
    _, location = settings.locate_weights(placed.role)
    uri = _build_bucket_uri(context, model_name) if location == "s3" else location
    folder = context.document.path.resolve().parent
    # With many models each has its role's name or its own: the same model may be served twice, with other settings.
    served_name = resolve_served_name(model_name)
    if not isinstance(model_settings, Blueprint):
        served_name = model_settings.served_name or placed.name
    if settings.framework_row.names_models_by_folder:
        served_name = served_name.rpartition("/")[2]
    return ServedModel(
        model=model_name,
        name=served_name,
        weights=Weights(
            uri=f"{uri.rstrip('/')}/",
            format=context.engine.weights_format,
            loader=_select_loader(context, placed),
            bytes=model.weight_bytes,
            random=model.random,
            revision=model_settings.revision or "",
            memory_computed=model.is_known,
        ),
        context=model_settings.context,
        adapters={
            adapter: location if location.startswith("s3://") else str(folder / location)
            for adapter, location in placed.role.adapters.items()
        },
        draft=_build_draft(context, placed),
    )


def _build_draft(context: Context, placed: PlacedRole) -> LoadedModel | None:
    speculative = context.blueprint.tuning.speculative
    if speculative is None or speculative.model is None:
        return None
    model = context.blueprint.tuning.find_draft()
    weights = Weights(
        uri=f"{_build_bucket_uri(context, speculative.model)}/",
        loader=_select_loader(context, placed),
        bytes=model.weight_bytes if model else 0,
        random=bool(model and model.random),
    )
    return LoadedModel(model=speculative.model, weights=weights)


def _build_bucket_uri(context: Context, model: str) -> str:
    return f"s3://{context.environment.bucket}/{build_bucket_prefix(model, context.engine.weights_format)}"


def _select_loader(context: Context, placed: PlacedRole) -> str:
    return context.engine.streaming.loader if context.engine.streaming and context.streams(placed) else "auto"


def _build_router(context: Context) -> Role:
    conventions = context.conventions
    replicas = 1 if conventions.is_local else context.blueprint.roles.router.replicas
    beside = context.router.beside
    return Role(
        name="router",
        kind="router",
        image=context.pin_image(context.router.image) if not conventions.is_local else "",
        resources=Resources(cpus=ROUTER_CPUS, memory_bytes=ROUTER_BYTES + (beside.memory_bytes if beside else 0)),
        replicas=Bounds(replicas, replicas),
        metrics=dict(
            context.router.metrics.get("disaggregated" if context.blueprint.is_disaggregated else "aggregated", {})
        ),
    )


def _build_pool_master(context: Context, engine_roles: Sequence[Role]) -> PoolMaster | None:
    """Build what knows where a pool has prompts; it is in the engine's image."""
    keeper = context.blueprint.tuning.keeper
    if keeper is None or not keeper.master:
        return None
    blocks = kv_tiers.count_pool_blocks(context.placed_roles)
    return PoolMaster(
        name=keeper.master,
        image=engine_roles[0].image,
        port=keeper.master_port,
        memory_bytes=keeper.master_bytes + keeper.master_block_bytes * blocks,
    )


def _build_load_balancer(context: Context) -> ResolvedLoadBalancer | None:
    row = context.blueprint.load_balancer
    if row is None or context.conventions.is_local:
        return None
    drain_s = min(load_balancer.MAX_DRAIN_S, math.ceil(context.blueprint.disruption.drain))
    stack = load_balancer.resolve(row, drain_s, () if row.public else load_balancer.list_ranges(context.fleet))
    return ResolvedLoadBalancer(**dict(stack), public=row.public, gateway=row.gateway or "")


def _list_balancer_ranges(context: Context) -> tuple[str, ...]:
    has_balancer = context.blueprint.load_balancer or context.fleet.add_ons.gateway
    return load_balancer.list_ranges(context.fleet) if context.conventions.is_kubernetes and has_balancer else ()
