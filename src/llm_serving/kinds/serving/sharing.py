"""Several models in the same replicas: their engines are one service.

images/vllm/model_switch.py, which each replica starts, lets them take turns on the accelerators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from llm_serving.kinds.serving import engine_process
from llm_serving.kinds.serving.context import Context, resolve_executable
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import get_shared
from llm_serving.services.service import Prefetch, Probe, Service
from llm_serving.settings.document import Conflict

PROGRAM = "model_switch.py"
"""In the folder of the engine's modules."""

MAX_BODIES_BYTES = 512 * 2**20
"""Memory of the bodies of requests that wait at a replica: eight of the largest, thousands without pictures."""


def check(placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield models that do not fit into all types that the replicas which they share may run on."""
    placements = {placed.name: placed for placed in placed_roles}
    for placed in placed_roles:
        head = placements.get(get_shared(placed.role))
        types = [row.name for row in head.instances if row not in placed.instances] if head else []
        if head and types:
            reason = f"its replicas may run on {' and '.join(types)}, into which {placed.model.name} does not fit"
            fix = "use a pool of types that hold each of the models, or another model"
            yield placed.refuse("shares", reason, fix)


def fold_service(context: Context, head: Service, sharers: Sequence[Service]) -> Service:
    """Return the service of which each replica has the engines of all; they start one after the other."""
    engines = (head, *sharers)
    drain = context.blueprint.disruption.drain
    env = {name: value for name, value in head.env.items() if all(engine.env.get(name) == value for engine in sharers)}
    return head.model_copy(
        update={
            "command": (
                resolve_executable(context.environment, "python3"),
                f"{engine_process.locate_modules(context)}/{PROGRAM}",
                *_format_options(context, head),
                *(word for engine in engines for word in ("--engine", *_build_command(engine, env))),
            ),
            "env": env if context.conventions.is_local else env | {"DRAIN_S": str(math.ceil(drain))},
            "probe": _build_probe(context, engines),
            "prefetch": _join_prefetches(engines),
            **(_build_local(engines) if context.conventions.is_local else {}),
        }
    )


def _join_prefetches(engines: Sequence[Service]) -> Prefetch | None:
    copied = [engine.prefetch for engine in engines if engine.prefetch]
    if not copied:
        return None
    update = {
        "uris": {folder: uri for row in copied for folder, uri in row.uris.items()},
        "timeout_s": max(row.timeout_s for row in copied),
        "disk_bytes": sum(row.disk_bytes for row in copied),
    }
    return copied[0].model_copy(update=update)


def _build_local(engines: Sequence[Service]) -> dict[str, object]:
    memory_bytes = sum(engine.resources.memory_bytes for engine in engines) + MAX_BODIES_BYTES
    return {
        "resources": engines[0].resources.model_copy(update={"memory_bytes": memory_bytes}),
        "caches": tuple(engine.name for engine in engines),
        "metrics": {**engines[0].metrics, "awake": "model_switch_awake"},
    }


def _format_options(context: Context, head: Service) -> Iterator[str]:
    switch = context.blueprint.roles.get_switch(head.role)
    yield from ("--listen", f"{context.environment.member_host}:{head.port}")
    yield from ("--max-waiting", str(switch.waiting), "--max-bytes", str(MAX_BODIES_BYTES))
    yield from () if context.blueprint.logs == "text" else ("--log", context.blueprint.logs)
    yield from ("--least-awake", f"{switch.least_awake:g}", "--finish", f"{switch.finish:g}")


def _build_command(engine: Service, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return an engine's command, with the variables that are not those of all."""
    own = (f"{name}={value}" for name, value in engine.env.items() if name not in env)
    return ("env", *own, *engine.command)


def _build_probe(context: Context, engines: Sequence[Service]) -> Probe:
    """Build a request that a model answers once all are loaded.

    Here, where it is sent again later, it names none: it wakes no model that sleeps.
    """
    probes = [engine.probe for engine in engines if engine.probe]  # each has one: their replicas have one node
    body = {key: value for key, value in probes[0].body.items() if key != "model" or not context.conventions.is_local}
    return probes[0].model_copy(update={"deadline_s": sum(probe.deadline_s for probe in probes), "body": body})
