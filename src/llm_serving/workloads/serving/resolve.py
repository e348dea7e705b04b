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
from llm_serving.workloads.serving import adapters, placement, processes
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.checks import engine_limits, targets
from llm_serving.workloads.serving.deployment import Deployment, Fetched, Place, Resources, Role, Served, Weights
from llm_serving.workloads.serving.placement import Placed, Placement, Refused
from llm_serving.workloads.serving.processes import Context
from llm_serving.workloads.serving.roles import Engine, Policy, always, scale_of

ROUTER_CPUS, ROUTER_BYTES = 2, 4 * 2**30
"""Of a router's container: it keeps the beginnings of prompts that it has seen, up to its --max-tree-size."""

SCRATCH_BYTES = 40 * 2**30
"""Of the disk, for what an engine caches and for adapters, beside weights that are copied there."""

FETCH_LIMIT_S, COPY_BYTES_S = 300, 100e6
"""Longest that copying a little from S3 may take, and the least bytes a second that more is taken to be copied with."""

SHARED_ENOUGH = 0.3
"""Share of a prompt above which the router follows cached beginnings, unless told otherwise.

vllm-router 0.1.17's cache_aware follows none of 30% of a prompt or less (`--cache-threshold`, its default). What
following takes off the mean end to end of load alone, simulated (scripts/benchmarks/replay.py, 2026-11-21): with short
caches 1 to 4% where 25% is shared, 7% at 40%, 10% at 50%, about 20% at 80%; with ample ones 0 to 3%; nothing at 0%."""


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], place: Place) -> Deployment:
    """The blueprint on that fleet, at that place.

    Raises:
        InputError: it cannot work; with every reason at its line of the blueprint.
    """
    wanted = blueprint.value
    placed, wrong = _placed(blueprint, fleet, place)
    wrong += adapters.wrong(blueprint, place.target)
    if not wrong:
        wrong = [*placement.overfull(blueprint, fleet, placed), *targets.of(blueprint, fleet, place, placed)]
    if wrong:
        in_order: list[Mistake | str] = [*sorted(wrong, key=lambda mistake: (mistake.line, mistake.column))]
        raise InputError(in_order)
    context = Context(wanted, name_of(blueprint), place, policy(wanted, place), transfer(wanted, placed, place))
    roles = [_role(context, blueprint, at[-1], role, found) for at, role, found in placed]
    router = _router(context, roles)
    return Deployment(
        name=context.name,
        pattern=wanted.pattern,
        target=place.target,
        fleet=fleet.value.name,
        engine=wanted.engine,
        framework=wanted.framework,
        roles=(*roles, router),
        url=_url(context, router),
        disruption=wanted.disruption,
        traffic=wanted.traffic,
        slo=wanted.slo,
        place=place,
        notes=tuple(_notes(context, placed)),
        emulated=(*_emulated(context, placed), *place.emulated),
    )


def ports(blueprint: Blueprint) -> list[str]:
    """Names of the ports that a place where all processes share one address must choose."""
    return processes.port_names(blueprint, {name: always(role).least for name, role in blueprint.roles.engines.items()})


def name_of(blueprint: Document[Blueprint]) -> str:
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
        why = "the folder's name stands in for it, and is none"
        raise InputError([blueprint.mistake(["name"], folder, why, "name: NAME, 2 to 32 of a-z, 0-9 and -")]) from None


def served_name(model: str) -> str:
    """What clients put in `model`: the name in the catalogue or on the hub, or the folder's own."""
    return Path(model).expanduser().name if Path(model).expanduser().is_dir() else model


def prefix_of(model: str) -> str:
    """Where a model lies in the fleet's model bucket."""
    return f"models/{served_name(model)}"


def policy(wanted: Blueprint, place: Place) -> Policy:
    """How the router chooses: as written, else by cached beginnings where the traffic's prompts share enough."""
    follows = share(wanted, place) > SHARED_ENOUGH
    return wanted.roles.router.policy or ("cache-aware" if follows else "load-aware")


def share(wanted: Blueprint, place: Place) -> float:
    """What a prompt has in common with others: as the blueprint states it, else as it was measured."""
    if wanted.traffic.states_share or place.measured is None:
        return wanted.traffic.shared_prefix
    return place.measured.shared


def transfer(wanted: Blueprint, placed: Sequence[Placed], place: Place) -> str:
    """Which of the engine's transfers hands caches from prefill to decode; empty where none do."""
    if wanted.pattern != "disaggregated":
        return ""
    if place.target == "local":
        return "loopback"
    rdma = all(found.rdma for _, _, found in placed)
    return "rdma" if rdma and wanted.tuning.kv_transfer != "host" else "host"


def _placed(blueprint: Document[Blueprint], fleet: Document[Fleet], place: Place) -> tuple[list[Placed], list[Mistake]]:
    """Each engine role with its machines, and all that stands against them."""
    wanted, found, wrong = blueprint.value, [], []
    seen: dict[str, tuple[Model | None, list[Mistake]]] = {}
    for name, role in wanted.roles.engines.items():
        at, written = wanted.at(name), wanted.served_by(role)
        named = written.model or ""
        where = wanted.written_at(at, role, "model")
        new = named not in seen
        model, mistakes = seen.setdefault(named, _model(blueprint, where, named, written.context))
        wrong += mistakes if new else []
        nowhere = [] if place.target == "local" else list(engine_limits.pool(blueprint, fleet, at, role))
        if nowhere:
            wrong += nowhere
            continue
        try:
            if model is None:
                placement.require_pool(blueprint, fleet, at, role)
            else:
                found.append((at, role, placement.place(blueprint, fleet, at, role, model, written.context)))
        except Refused as refused:
            wrong += [mistake for mistake in refused.mistakes if mistake not in wrong]
    return found, wrong


def _model(
    blueprint: Document[Blueprint], where: Sequence[str], name: str, context: int
) -> tuple[Model | None, list[Mistake]]:
    try:
        model = models.find(name)
    except InputError as error:
        why, _, write = str(error).removeprefix(f"model: now {name!r}: ").removesuffix(".").partition(". Write ")
        return None, [blueprint.mistake(where, name, why, write or "another model")]
    if model.task != "generate":
        why = f"it is made to {model.task}, and this pattern serves chat and completions"
        return model, [blueprint.mistake(where, name, why, "a model that generates text")]
    if context > model.max_context:
        why = f"{name} was made for {model.max_context} tokens a request"
        at = [*where[:-1], "context"]
        return model, [blueprint.mistake(at, context, why, f"{model.max_context} or less")]
    return model, []


def _role(context: Context, blueprint: Document[Blueprint], name: str, role: Engine, found: Placement) -> Role:
    serves = _served(context, blueprint, name, role, found)
    # EFA joins a replica's machines and hands caches on; nothing else goes over it.
    over_efa = found.resources.efa > 0 and (found.machines > 1 or context.transfer == "rdma")
    return Role(
        name=name,
        kind="engine",
        image="" if context.local else _image(context, found, over_efa),
        serves=serves,
        pool=role.pool,
        instance_types=tuple(row.name for row in found.types),
        zones=found.zones,
        labels=found.labels,
        tolerations=found.tolerations,
        accelerators=role.accelerators,
        machines=found.machines,
        split=found.split,
        resources=found.resources if over_efa else found.resources.model_copy(update={"efa": 0, "machine_efa": 0}),
        count=always(role) if context.local else role.replicas,
        scale=None if context.local else scale_of(name, role),
        fetched=_fetched(context, found, serves),
        ports=_further_ports(context, found),
        processes=tuple(processes.engine(context, name, role, found, serves)),
    )


def _image(context: Context, found: Placement, over_efa: bool) -> str:
    row = context.row
    own = row.own_image.replace("{registry}", context.place.registry)
    engines_own = own if over_efa or context.policy == "kv-aware" else row.image
    return context.blueprint.image or found.platform.image or engines_own


def _fetched(context: Context, found: Placement, serves: Served) -> Fetched | None:
    places = processes.fetches(context, found, serves)
    size = serves.weights.bytes if processes.WEIGHTS in places else 0
    limit_s = math.ceil(FETCH_LIMIT_S + size / COPY_BYTES_S)
    return Fetched(places=places, limit_s=limit_s, disk_bytes=size + SCRATCH_BYTES) if places else None


def _further_ports(context: Context, found: Placement) -> dict[str, int]:
    wanted = {
        "side": bool(context.transfer),
        "events": context.policy == "kv-aware",
        "replay": context.policy == "kv-aware",
        "master": found.machines > 1,
        "data": found.machines > 1 and found.split.data > 1,
    }
    return {} if context.local else {name: processes.PORTS[name] for name, there in wanted.items() if there}


def _served(context: Context, blueprint: Document[Blueprint], name: str, role: Engine, found: Placement) -> Served:
    wanted, place, model = context.blueprint, context.place, found.model
    written = wanted.served_by(role)
    named = written.model or ""
    uri = written.weights if written.weights != "s3" else f"s3://{place.bucket}/{prefix_of(named)}"
    folder = blueprint.path.resolve().parent
    return Served(
        model=named,
        # Of many models each is called as its role is: the same model may be there twice, with other settings.
        name=served_name(named) if written is wanted else name,
        weights=Weights(
            uri=f"{uri.rstrip('/')}/",
            loader=context.row.streaming.loader if context.platform(found).streams else "auto",
            bytes=model.weight_bytes,
            random=model.random,
        ),
        context=written.context,
        adapters={
            adapter: where if where.startswith("s3://") else str(folder / where)
            for adapter, where in role.adapters.items()
        },
    )


def _router(context: Context, roles: Sequence[Role]) -> Role:
    serves = next(role.serves for role in roles if role.serves)
    count = 1 if context.local else context.blueprint.roles.router.replicas
    row = engines.routers()[processes.ROUTER]
    return Role(
        name="router",
        kind="router",
        image=_router_image(context, row),
        resources=Resources(cpus=ROUTER_CPUS, memory_bytes=ROUTER_BYTES),
        ports={} if context.local else {"metrics": processes.METRICS_PORT},
        count=Bounds(count, count),
        processes=(processes.router(context, roles, serves),),
    )


def _router_image(context: Context, row: engines.Router) -> str:
    if context.local:
        return ""
    following = row.following_image.replace("{registry}", context.place.registry)
    return following if processes.finds(context) == "names" else row.image


def _url(context: Context, router: Role) -> str:
    port = router.processes[0].port
    if context.local:
        return f"http://{processes.LOOPBACK}:{port}"
    if context.place.target == "eks":
        return f"http://{context.name}.{context.place.namespace}.svc:{port}"
    return f"http://{context.name}-router.{context.place.namespace}:{port}"


def _notes(context: Context, placed: Sequence[Placed]) -> Iterator[str]:
    for at, role, found in placed if context.local else ():
        device = found.instance.accelerators
        if device:
            yield (
                f"On this machine the engine runs on CPU; the {role.accelerators} x {device.name} of "
                f"{found.instance.name} that the pool {role.pool} would give each replica of {at[-1]} stay unused."
            )
        if role.replicas.least != role.replicas.most:
            count = always(role).least
            yield f"Nothing scales on this machine: {at[-1]} runs {count} of {role.replicas} replicas."
    if context.blueprint.roles.router.policy is None:
        yield f"The router's policy is {context.policy}, {_why(context)}."
    if context.transfer == "host":
        rdma = all(found.rdma for _, _, found in placed)
        why = "as the blueprint asks" if rdma else "for the pools have no EFA with GPUDirect RDMA"
        yield (
            f"Caches go from prefill to decode through the machines' memory and TCP, {why}: measure it against "
            "`blueprint twin` before it is worth its price."
        )


def _why(context: Context) -> str:
    """Which share of the prompts decided on the policy, and who says so."""
    traffic, measured = context.blueprint.traffic, context.place.measured
    shared = share(context.blueprint, context.place)
    beside = f"{'more' if shared > SHARED_ENOUGH else 'not more'} than the {SHARED_ENOUGH:.0%} that it follows"
    if traffic.states_share or (measured is None and traffic.data is None):
        said = f"{shared:.0%} of each prompt is shared, {beside}" if shared else "its prompts share nothing"
        return f"since by the blueprint's traffic {said}"
    if measured is None:
        return f"until `blueprint validate` has measured what the prompts of {traffic.data} share"
    return f"since by the validation of {measured.at} earlier prompts begin with {shared:.0%} of each, {beside}"


def _emulated(context: Context, placed: Sequence[Placed]) -> Iterator[str]:
    devices = dict.fromkeys(
        (found.instance.accelerators.name, found.instance.name)
        for _, _, found in placed
        if context.local and found.instance.accelerators
    )
    for device, name in devices:
        yield f"The engine runs on this machine's CPU in place of {device} on {name}, at the CPU's speed."
    if any(found.model.random for _, _, found in placed):
        yield models.RANDOM_NOTICE
