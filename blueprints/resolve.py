"""Decides every number of a deployment, once: blueprint + fleet + catalogues -> `Deployment`.

Pure: the same files and the same place give the same deployment. What cannot work is refused with all of its reasons at
once, each at its line of blueprint.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from blueprints import memory
from blueprints.blueprint import Blueprint, Traffic
from blueprints.catalog import engines, models
from blueprints.catalog.models import Model
from blueprints.deployment import Deployment, Place, Probe, Process, Role, Weights
from infra.catalog import instances
from infra.catalog.instances import Instance
from infra.errors import InputError, Mistake
from infra.fleet import Fleet, Name, Pool
from infra.settings import Document
from infra.units import Bounds

HOST = "127.0.0.1"
"""Where processes of the local target listen: no other machine reaches them."""

ROUTER = "vllm-router"

START_LIMIT_S = 600.0
"""A replica that has not answered by then never will; a busy machine of two cores takes a minute or two."""

OPEN_LOOP_REQUESTS = 32
"""Requests that an open loop is taken to have under way at once."""

LEAST_KV_BYTES = 64 * 2**20


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], place: Place) -> Deployment:
    """The blueprint on that fleet, at that place.

    Raises:
        InputError: it cannot work; with every reason at its line of the blueprint.
    """
    wanted = blueprint.value
    model, wrong_model = _model(blueprint)
    chosen, wrong_place = _machines(blueprint, fleet, model)
    if model is None or chosen is None or wrong_model:
        wrong = sorted([*wrong_model, *wrong_place], key=lambda mistake: (mistake.line, mistake.column))
        raise InputError(wrong)
    weights = _weights(wanted, model, place)
    served = served_name(wanted.model)
    workers = Role(
        name="worker",
        pool=wanted.roles.worker.pool,
        instance_type=chosen.name,
        accelerators=wanted.roles.worker.accelerators,
        count=Bounds(wanted.roles.worker.replicas, wanted.roles.worker.replicas),
        processes=tuple(_workers(wanted, model, weights, served, place)),
    )
    router = _router(wanted, workers, served, place)
    return Deployment(
        name=name_of(blueprint),
        pattern=wanted.pattern,
        target=place.target,
        fleet=fleet.value.name,
        model=wanted.model,
        served_model=served,
        engine=wanted.engine,
        weights=weights,
        context=wanted.context,
        workers=workers,
        router=router,
        url=f"http://{HOST}:{router.processes[0].port}",
        traffic=wanted.traffic,
        slo=wanted.slo,
        place=place,
        notes=tuple(_notes(wanted, chosen)),
        emulated=(*_emulated(chosen, model), *place.emulated),
    )


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


def _model(blueprint: Document[Blueprint]) -> tuple[Model | None, list[Mistake]]:
    name = blueprint.value.model
    try:
        model = models.find(name)
    except InputError as error:
        why, _, write = str(error).removeprefix(f"model: now {name!r}: ").removesuffix(".").partition(". Write ")
        return None, [blueprint.mistake(["model"], name, why, write or "another model")]
    if model.task != "generate":
        why = f"it is made to {model.task}, and this pattern serves chat and completions"
        return model, [blueprint.mistake(["model"], name, why, "a model that generates text")]
    if blueprint.value.context > model.max_context:
        why = f"{name} was made for {model.max_context} tokens a request"
        return model, [blueprint.mistake(["context"], blueprint.value.context, why, f"{model.max_context} or less")]
    return model, []


def _machines(
    blueprint: Document[Blueprint], fleet: Document[Fleet], model: Model | None
) -> tuple[Instance | None, list[Mistake]]:
    """The pool's type that holds the workers, the first in its order of preference that can."""
    worker = blueprint.value.roles.worker
    at = ("roles", "worker")
    pool = fleet.value.pools.get(worker.pool)
    if pool is None:
        there = ", ".join(fleet.value.pools)
        why = f"{fleet.path} has no such pool"
        return None, [blueprint.mistake([*at, "pool"], worker.pool, why, f"one of its pools, {there}")]
    known = [instances.load()[name] for name in pool.types if name in instances.load()]
    unknown = [name for name in pool.types if name not in instances.load()]
    if not known:
        why = f"the catalogue has none of the pool's types, {', '.join(unknown)}"
        return None, [blueprint.mistake([*at, "pool"], worker.pool, why, "a pool of types that it has")]
    roomy = [row for row in known if _accelerators(row) >= worker.accelerators]
    if not roomy:
        seen = ", ".join(f"{row.name} has {_accelerators(row) or 'none'}" for row in known)
        why = f"a replica stands on one machine, and of the pool {worker.pool} {seen}"
        most = max(map(_accelerators, known))
        write = f"accelerators: {most} or less, or a pool of larger types" if most else "a pool of types that have some"
        return None, [blueprint.mistake([*at, "accelerators"], worker.accelerators, why, write)]
    if model is None:
        return None, []
    return _placed(blueprint, model, pool, roomy)


def _placed(
    blueprint: Document[Blueprint], model: Model, pool: Pool, types: Sequence[Instance]
) -> tuple[Instance | None, list[Mistake]]:
    """Of the types with enough accelerators, the first that holds the model and, with its like, all replicas."""
    worker = blueprint.value.roles.worker
    split = memory.indivisible(model, worker.accelerators)
    if split:
        ways = [ways for ways in range(1, worker.accelerators) if not memory.indivisible(model, ways)]
        write = f"accelerators: {' or '.join(map(str, ways[-3:]))}"
        return None, [blueprint.mistake(["roles", "worker", "accelerators"], worker.accelerators, split, write)]
    context = min(blueprint.value.context, model.max_context)
    fits = {row.name: memory.fit(model, row, worker.accelerators, context=context) for row in types}
    holding = [row for row in types if fits[row.name].fits]
    if not holding:
        alike = {fit.why: [name for name in fits if fits[name].why == fit.why] for fit in fits.values()}
        seen = "; ".join(f"on {' and '.join(names)} {reason}" for reason, names in alike.items())
        one = "accelerator" if worker.accelerators == 1 else "accelerators"
        why = f"it does not fit into {worker.accelerators} {one} of the pool {worker.pool}: {seen}"
        write = _what_holds(model, worker.accelerators, context)
        return None, [blueprint.mistake(["model"], blueprint.value.model, why, write)]
    enough = [row for row in holding if _replicas(row, worker.accelerators) * pool.size.most >= worker.replicas]
    if not enough:
        most = max(_replicas(row, worker.accelerators) for row in holding) * pool.size.most
        machines = -(-worker.replicas // max(_replicas(row, worker.accelerators) for row in holding))
        why = f"the pool {worker.pool} grows to {pool.size.most} machines, which hold {most}"
        write = f"replicas: {most} or less, or size: {pool.size.least}..{machines} in the pool"
        return None, [blueprint.mistake(["roles", "worker", "replicas"], worker.replicas, why, write)]
    return enough[0], []


def _accelerators(row: Instance) -> int:
    return memory.ranks(row.accelerators) if row.accelerators else 0


def _replicas(row: Instance, accelerators: int) -> int:
    """Replicas on one machine."""
    return _accelerators(row) // accelerators


def _what_holds(model: Model, accelerators: int, context: int) -> str:
    """The smallest way to hold a model: more accelerators, or types with more memory."""
    candidates = [
        (ways * memory.rank_bytes(row.accelerators), ways, row.name)
        for row in instances.load().values()
        if row.accelerators and row.accelerators.kind == "gpu"
        for ways in memory.sizes(model, row)
        if memory.fit(model, row, ways, context=context).fits
    ]
    if not candidates:
        return "a smaller or more strongly quantized model: no single machine of the catalogue holds this one"
    same = sorted(one for one in candidates if one[1] == accelerators)[:1]
    shown = [f"accelerators: {ways} on {name}" for _, ways, name in dict.fromkeys([*same, *sorted(candidates)[:1]])]
    return f"{' or '.join(shown)}, or a smaller model"


def _weights(wanted: Blueprint, model: Model, place: Place) -> Weights:
    own = wanted.weights != "s3"
    uri = wanted.weights if own else f"s3://{place.bucket}/{prefix_of(wanted.model)}"
    loader = engines.engines()[wanted.engine].streaming.loader
    return Weights(uri=f"{uri.rstrip('/')}/", loader=loader, bytes=model.weight_bytes, random=model.random)


def prefix_of(model: str) -> str:
    """Where a model lies in the fleet's model bucket."""
    return f"models/{served_name(model)}"


def _workers(wanted: Blueprint, model: Model, weights: Weights, served: str, place: Place) -> Iterator[Process]:
    """One process a replica, on CPU: on this machine the accelerators that the blueprint asks for are not there."""
    engine = engines.engines()[wanted.engine]
    platform = engine.platforms["cpu"]
    kv_bytes = _kv_bytes(wanted, model, platform.kv_block)
    other = (engine.other_s3,) if place.s3_endpoint else ()
    parts = (engine.streaming, *other, platform)
    for number in range(wanted.roles.worker.replicas):
        name = f"worker-{number}"
        values: engines.Values = {
            "weights": weights.uri,
            "served_model": served,
            "host": HOST,
            "port": place.ports[name],
            "context": wanted.context,
            "kv_bytes": kv_bytes,
            "threads": max(1, place.cores // wanted.roles.worker.replicas),
            "cache": f"{place.data}/cache/{name}",
            "sockets": place.sockets,
        }
        command = engines.arguments((*engine.command, *(text for part in parts for text in part.arguments)), values)
        environment = engines.environment((engine.environment, *(part.environment for part in parts)), values)
        yield Process(
            name=name,
            command=(_executable(place, command[0]), *command[1:]),
            environment={**place.environment, **environment},
            port=place.ports[name],
            probe=_probe(served),
            memory_bytes=int(platform.base_bytes + platform.weight_copies * weights.bytes + kv_bytes),
        )


def _kv_bytes(wanted: Blueprint, model: Model, block: int) -> int:
    """Room for one request of the full context and all those under way at once, should one replica take them all."""
    traffic = wanted.traffic
    longest = traffic.input_tokens.most + traffic.output_tokens.most
    lengths = [wanted.context, *[longest] * _under_way(traffic)]
    blocks = sum(-(-length // block) for length in lengths)
    # The engine keeps one block to itself.
    return max(LEAST_KV_BYTES, (blocks + 1) * block * memory.kv_bytes_per_token(model))


def _under_way(traffic: Traffic) -> int:
    """Requests under way at once, all replicas together."""
    return traffic.users or OPEN_LOOP_REQUESTS


def _imbalance(wanted: Blueprint) -> int:
    """How many requests more than another a replica may have before a cached beginning counts less than the queue."""
    return max(1, _under_way(wanted.traffic) // (2 * wanted.roles.worker.replicas))


def _router(wanted: Blueprint, workers: Role, served: str, place: Place) -> Role:
    router = engines.routers()[ROUTER]
    values: engines.Values = {
        "host": HOST,
        "port": place.ports["router"],
        "metrics_port": place.ports["router-metrics"],
        "policy": router.policies[wanted.roles.router.policy],
        "imbalance": _imbalance(wanted),
        "deadline_s": math.ceil(wanted.traffic.deadline),
        "workers": tuple(f"http://{HOST}:{process.port}" for process in workers.processes),
    }
    command = engines.arguments(router.command, values)
    process = Process(
        name="router",
        command=(_executable(place, command[0]), *command[1:]),
        environment=engines.environment((router.environment,), values),
        port=place.ports["router"],
        probe=_probe(served),
        memory_bytes=router.base_bytes,
    )
    return Role(name="router", pool="", instance_type="", accelerators=0, count=Bounds(1, 1), processes=(process,))


def _executable(place: Place, name: str) -> str:
    return f"{place.engine}/{name}" if place.engine else name


def _probe(served: str) -> Probe:
    body: dict[str, str | int] = {"model": served, "prompt": "ready?", "max_tokens": 1}
    return Probe(path="/v1/completions", body=body, deadline_s=START_LIMIT_S)


def _notes(wanted: Blueprint, chosen: Instance) -> Iterator[str]:
    worker = wanted.roles.worker
    device = chosen.accelerators
    if device:
        yield (
            f"On this machine the engine runs on CPU; the {worker.accelerators} x {device.name} of {chosen.name} "
            f"that the pool {worker.pool} would give each replica stay unused."
        )


def _emulated(chosen: Instance, model: Model) -> Iterator[str]:
    device = chosen.accelerators
    if device:
        yield f"The engine runs on this machine's CPU in place of {device.name} on {chosen.name}, at the CPU's speed."
    if model.random:
        yield models.RANDOM_NOTICE
