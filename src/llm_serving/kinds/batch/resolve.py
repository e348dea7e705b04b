"""Decides every number of a batch deployment, once: blueprint + fleet + environment -> `BatchDeployment`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError

from llm_serving.fleet import aws_limits, rented_cost
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch import cloud, worker_settings
from llm_serving.kinds.batch.blueprint import Blueprint, Endpoint
from llm_serving.kinds.batch.deployment import API, WORKER, BatchDeployment
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE, BatchStack
from llm_serving.kinds.batch.worker_settings import Place
from llm_serving.kinds.serving import blueprint as serving_blueprints
from llm_serving.kinds.serving import context
from llm_serving.kinds.serving import resolve as serving
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.roles import Roles, WorkerRole
from llm_serving.services import deployments, rendered, team_keys
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.deployment import FoundDeployment, Traits
from llm_serving.services.environment import Environment, format_peer_name
from llm_serving.services.service import Probe, Resources, Service
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.document import Document, raise_mistakes
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Bounds

LOCAL_RESOURCES = {WORKER: Resources(memory_bytes=400_000_000), API: Resources(memory_bytes=200_000_000)}
"""On this machine. A worker holds two chunks of 16 MiB with their results for each team that has rows, and Python."""

API_DEADLINE_S = 120.0
RESTART_S = 1
"""Seconds after which a worker counts as started: it may be killed at any time, and restarts."""


def list_port_names(blueprint: Blueprint) -> list[str]:
    """List the ports that a target must choose if processes share one machine."""
    own_serving = _build_serving_settings(blueprint, "batch")
    return [API, *(context.list_port_names(own_serving) if own_serving else [])]


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> BatchDeployment:
    """Resolve the blueprint on the fleet, in the environment of its target.

    Raises:
        InputError: it cannot work; has every reason with its line of the blueprint.
    """
    settings, name = blueprint.value, resolve_name(blueprint)
    raise_mistakes(blueprint.locate(team_keys.check(settings.api.keys, ("api", "keys"), environment)))
    if not environment.conventions.is_local:
        raise_mistakes(blueprint.locate(cloud.check_replicas(settings, environment)))
    own_serving = _resolve_serving(blueprint, fleet, environment, name)
    shared_name = settings.endpoint.deployment
    shared = deployments.require_serving(blueprint, shared_name, fleet, environment) if shared_name else None
    answering = _find_answering(settings.endpoint, own_serving, shared)
    place, stack = _resolve_place(blueprint, fleet.value, environment, name)
    workers, api = _build_programs(blueprint, fleet.value, environment, answering, place, stack)
    if stack:
        units = list(rendered.list_fargate(stack.orchestrator, (*workers, api), name))
        size = ("workers", "count"), settings.workers.count
        raise_mistakes(blueprint.locate(rented_cost.find_excess(fleet.value, units, "the batch", size)))
    own_services = own_serving.services if own_serving else ()
    return BatchDeployment(
        name=name,
        pattern=settings.pattern,
        target=environment.target,
        fleet=fleet.value.name,
        environment=environment,
        url=_format_url(environment, name),
        endpoint_url=answering.url,
        model=own_serving.served_models[0].name if own_serving else "",
        metrics_urls=answering.metrics_urls,
        serving=own_serving,
        usd_h=answering.usd_h,
        bucket=place.bucket,
        prefix=place.prefix,
        teams=dict(settings.teams),
        limits=settings.limits,
        sample=settings.sample,
        slo=settings.slo,
        services=(
            *(service for service in own_services if not service.is_entry),
            *workers,
            *(service for service in own_services if service.is_entry),
            api,
        ),
        stack=stack,
        notes=(
            *(own_serving.notes if own_serving else ()),
            *_list_notes(settings, fleet.value, environment, shared),
        ),
        emulated=(
            *_list_emulated(settings, environment),
            *(own_serving.emulated if own_serving else environment.emulated),
        ),
    )


def _resolve_place(
    blueprint: Document[Blueprint], fleet: Fleet, environment: Environment, name: str
) -> tuple[Place, BatchStack | None]:
    """Resolve where the programs run; in containers with the data of their stack."""
    settings = blueprint.value
    place = Place(name, environment.results_bucket or environment.bucket, worker_settings.build_prefix(name))
    if environment.conventions.is_local:
        return place, None
    raise_mistakes(blueprint.locate(cloud.check(settings, fleet, environment, name)))
    stack, kept_s = cloud.resolve(settings, fleet, environment, name), fleet.storage.results_kept
    return place._replace(name=stack.workflow, drain_s=cloud.DRAIN_S, kept_s=kept_s, has_secrets=True), stack


def _build_programs(
    blueprint: Document[Blueprint],
    fleet: Fleet,
    environment: Environment,
    answering: FoundDeployment,
    place: Place,
    stack: BatchStack | None,
) -> tuple[list[Service], Service]:
    """Build the workers and the Batch API: processes of this machine, or with a stack containers."""
    settings, document = blueprint.value, worker_settings.build(blueprint.value, answering, place)
    api = _build_api(blueprint, environment, document, stack)
    if stack is None:
        return _build_workers(settings, environment, document), api
    build = functools.partial(
        cloud.build_container, settings=settings, fleet=fleet, environment=environment, answering=answering
    )
    return [build(_build_service(environment, WORKER, document))], build(api)


def _locate_keys(blueprint: Document[Blueprint], environment: Environment) -> JsonValue:
    """Return where the Batch API finds the keys of teams; None where it asks for none."""
    keys = blueprint.value.api.keys
    if keys is None:
        return None
    if not environment.conventions.is_local:
        return {"secret": keys.secret or "", "file": ""}
    return {"secret": "", "file": str(blueprint.path.parent.absolute() / (keys.file or ""))}


def _build_workers(settings: Blueprint, environment: Environment, document: dict[str, JsonValue]) -> list[Service]:
    worker = _build_service(environment, WORKER, document)
    return [
        worker.model_copy(update={"name": name, "env": {**worker.env, "BATCH_WORKER": name}})
        for name in (f"{WORKER}-{index}" for index in range(settings.workers.count))
    ]


def _build_api(
    blueprint: Document[Blueprint], environment: Environment, document: dict[str, JsonValue], stack: BatchStack | None
) -> Service:
    keys, port = _locate_keys(blueprint, environment), _choose_port(environment)
    api = _build_service(environment, API, {**document, "team_keys": keys, "cache": None})
    state_machine = (
        {"BATCH_STATE_MACHINE": cloud.format_state_machine(environment, stack.workflow)}
        if stack
        else {"BATCH_STATE_MACHINE_FILE": str(STATE_MACHINE_FILE)}
    )
    address = {"BATCH_API_HOST": environment.conventions.bind_host, "BATCH_API_PORT": str(port)}
    return api.model_copy(
        update={
            "is_entry": True,
            "env": {**api.env, **address, **state_machine},
            "port": port,
            "probe": Probe(path="/health", body={}, health="/health", deadline_s=API_DEADLINE_S),
        }
    )


def _build_service(environment: Environment, program: str, document: dict[str, JsonValue]) -> Service:
    return Service(
        name=program,
        role=program,
        command=environment.image_programs.get(program, (program,)),
        env={**environment.env, **worker_settings.format_variables(document)},
        resources=LOCAL_RESOURCES[program],
        start_s=RESTART_S,
    )


def _choose_port(environment: Environment) -> int:
    """Return the Batch API's port."""
    return environment.ports.get(API, cloud.API_PORT)


def _format_url(environment: Environment, name: str) -> str:
    conventions, port = environment.conventions, _choose_port(environment)
    if conventions.is_local:
        return conventions.url.format(deployment=name, namespace=environment.namespace, port=port)
    return f"http://{format_peer_name(name, API, environment.namespace)}:{port}"


def _list_notes(
    settings: Blueprint, fleet: Fleet, environment: Environment, shared: FoundDeployment | None
) -> Iterator[str]:
    if shared:
        yield from _describe_back_off(shared, environment)
    if shared and shared.usd_h is not None and settings.endpoint.usd_per_hour is None:
        yield f"Jobs cost their share of {shared.name}, {shared.usd_h:,.2f} USD/h on demand: {shared.price}."
    if settings.schedules and not environment.conventions.is_local:
        days = aws_limits.convert_to_days(fleet.storage.results_kept)
        end = f"{days} days after it was written"
        yield f"S3 deletes a schedule's file {end}: write it again before. See storage.results_kept."
    if settings.api.keys is None and not environment.conventions.is_local:
        yield "The Batch API asks for no key: whoever reaches it sees and cancels the jobs of every team. See api.keys."


def _list_emulated(settings: Blueprint, environment: Environment) -> Iterator[str]:
    if not environment.conventions.is_local:
        return
    if settings.schedules:
        yield f"The embedded AWS fires no schedules: no jobs here by {', '.join(settings.schedules)}."
    if secrets := cloud.list_secrets(settings):
        keys = " and ".join(".".join(key_path) for key_path, _ in secrets)
        yield f"The embedded AWS has no secrets of yours: here environment variables take the place of {keys}."


def _describe_back_off(shared: FoundDeployment, environment: Environment) -> Iterator[str]:
    """Describe what slows rows down in favor of the shared deployment's own requests."""
    fed, is_known = shared.name, bool(shared.kind)  # of another, the blueprint is not here
    if worker_settings.find_headers(shared):
        condition = "" if is_known else ", if it has classes"
        yield f"{fed} holds rows back while people's requests wait: they are of its class low{condition}."
    if limits := [f"{limit.name} < {limit.ms:g} ms" for limit in worker_settings.list_limits(shared)]:
        yield f"Rows give way where {fed} misses {', '.join(limits)}."
    elif shared.metrics_urls:
        reason = "its metrics show no percentile of its SLO" if is_known else "no blueprint here tells its SLO"
        yield f"Rows give way only to a queue at {fed}: {reason}."
    elif not environment.conventions.is_local:
        title = environment.conventions.title
        yield f"On {title} workers see no metrics of {fed}: rows give way to its answers 429 and 503, not to its SLO."


def _find_answering(
    endpoint: Endpoint, own_serving: ServingDeployment | None, shared: FoundDeployment | None
) -> FoundDeployment:
    """Find what answers the rows, at the price that the blueprint says, if it says one."""
    usd_h = endpoint.usd_per_hour
    if shared:
        return shared.model_copy(update={"usd_h": usd_h or shared.usd_h})
    if own_serving:
        return FoundDeployment(
            name=own_serving.name,
            url=own_serving.url,
            metrics_urls=tuple(own_serving.metrics_urls.values()),
            metrics=dict(own_serving.engine_row.metrics),
            usd_h=usd_h,
        )
    url, traits = str(endpoint.url).rstrip("/").removesuffix("/v1"), Traits(has_priority=endpoint.priority)
    return FoundDeployment(name="", url=url, metrics_urls=endpoint.metrics, traits=traits, usd_h=usd_h)


def _resolve_serving(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment, name: str
) -> ServingDeployment | None:
    """Resolve the batch's own replicas, as the kind `serving` does; None if it has none.

    Raises:
        InputError: they cannot work; at the lines of this blueprint.
    """
    try:
        settings = _build_serving_settings(blueprint.value, name)
        if settings is None:
            return None
        document = _ReplicasDocument(blueprint.path, settings, blueprint.positions)
        return serving.resolve(document, fleet, environment)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise InputError([blueprint.build_mistake(("endpoint",), None, reason, "other settings")]) from None


class _ReplicasDocument(Document[serving_blueprints.Blueprint]):
    """A batch's file, read as the settings of its own replicas: what they are asked for stands in `endpoint`."""

    def build_mistake(self, key_path: Sequence[str | int], value: Any, reason: str, fix: str) -> Mistake:
        key = key_path[-1:] if key_path[-1] in Endpoint.model_fields else ()
        return super().build_mistake(("endpoint", *key), value, reason, fix)


def _build_serving_settings(batch: Blueprint, name: str) -> serving_blueprints.Blueprint | None:
    endpoint = batch.endpoint
    if not endpoint.model:
        return None
    role = WorkerRole(
        pool=str(endpoint.pool),
        replicas=Bounds(endpoint.replicas, endpoint.replicas),
        accelerators=endpoint.accelerators,
    )
    return serving_blueprints.Blueprint(
        name=name,
        pattern="aggregated",
        model=endpoint.model,
        context=endpoint.context,
        roles=Roles(worker=role),
        traffic=Traffic(users=64, input_tokens=Bounds(1, endpoint.context // 2), output_tokens=Bounds(1, 1)),
        slo=Slo(),
        logs=batch.logs,
    )
