"""Decides every number of a gateway, once: blueprint + fleet + environment -> `GatewayDeployment`."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from llm_serving.fleet import rented_cost
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.gateway import cloud, gateway_program, litellm_settings, meter, meter_program, search
from llm_serving.kinds.gateway.blueprint import Audit, Blueprint, Source
from llm_serving.kinds.gateway.deployment import (
    ADMIN,
    DATABASE,
    GATEWAY,
    MAX_BODY_MIB,
    METER,
    Backend,
    GatewayDeployment,
)
from llm_serving.kinds.gateway.litellm_settings import EMBEDDING, MOCK, Place
from llm_serving.services import deployments, orchestrators
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.deployment import FoundDeployment
from llm_serving.services.deployments import ENTRY_PORT
from llm_serving.services.environment import Environment, format_peer_name
from llm_serving.services.rendered import split_location
from llm_serving.services.service import Probe, Resources, Service
from llm_serving.services.tasks import DRAW, EMBED, GENERATE
from llm_serving.settings.choices import Task
from llm_serving.settings.document import Document, raise_mistakes
from llm_serving.settings.errors import ErrorCollector
from llm_serving.settings.yaml_source import KeyPath

_START_S = 600.0
"""LiteLLM takes 34 CPU-seconds to start the first time (1.106.0 on two shared cores, 2026-11-26: 99 to 172 s)."""

_LITELLM_BYTES, _METER_BYTES = 900_000_000, 60_000_000
"""Memory of the processes, measured at the same time; LiteLLM's under load."""


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> GatewayDeployment:
    """Resolve the blueprint on the fleet, in the environment of its target.

    Raises:
        InputError: it cannot work; has every reason with its line of the file.
    """
    settings, name, is_local = blueprint.value, resolve_name(blueprint), environment.conventions.is_local
    checks = search.check(settings) if is_local else cloud.check(settings, fleet.value, environment, name)
    raise_mistakes(blueprint.locate(checks))
    serving = _find_deployments(blueprint, fleet, environment)
    ports = environment.ports
    places = [_locate(place, serving) for place in litellm_settings.list_sources(settings)]
    backends = [_build_backend(place, serving) for place in places]
    deployment = GatewayDeployment(
        name=name,
        pattern=settings.pattern,
        target=environment.target,
        fleet=fleet.value.name,
        environment=environment,
        url=_format_url(environment, name),
        admin_url=f"http://{environment.hidden_host}:{ports[ADMIN]}" if is_local else "",
        database_port=ports[DATABASE] if is_local else 0,
        stack=None if is_local else cloud.resolve(settings, fleet.value, environment, name),
        teams=dict(settings.teams),
        routes={route: tuple(backend for backend in backends if backend.route == route) for route in settings.routes},
        embeddings=tuple(backend for backend in backends if backend.route == EMBEDDING),
        sample=settings.sample,
        slo=settings.slo,
        notes=tuple(_list_notes(settings, backends, fleet.value, environment)),
        emulated=environment.emulated,
    )
    redis = litellm_settings.parse_redis(settings.shared_counts) if is_local else cloud.REDIS
    region = "" if is_local else fleet.value.region
    config = litellm_settings.build_config(settings, places, redis, region)
    semantic = litellm_settings.build_semantic(settings, places, region)
    env = gateway_program.build_settings(settings, config, semantic)
    if is_local:
        services = (_build_meter(deployment, settings.audit), _build_gateway(deployment, env))
    else:
        services = cloud.build_services(settings, fleet.value, deployment, env, places)
    deployment = deployment.model_copy(update={"services": services})
    refusals = [cloud.find_large_settings(deployment)]
    if stack := deployment.stack:
        units = list(cloud.list_units(stack, services))
        types = {"database_type": stack.database_type, "cache_type": stack.cache_type}
        size = ("aws", "database_type"), stack.database_type
        excess = rented_cost.find_excess(fleet.value, units, "the gateway", size, types)
        refusals += [cloud.check_keys(settings, deployment), excess]
        deployment = deployment.model_copy(update={"cost": rented_cost.describe(fleet.value, units)})
    raise_mistakes(blueprint.locate(itertools.chain(*refusals)))
    return deployment


def _format_url(environment: Environment, name: str) -> str:
    if not environment.conventions.is_local:
        return f"http://{format_peer_name(name, GATEWAY, environment.namespace)}:{ENTRY_PORT}"
    return environment.conventions.url.format(deployment=name, namespace="", port=environment.ports[GATEWAY])


def _find_deployments(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment
) -> dict[str, FoundDeployment]:
    serving: dict[str, FoundDeployment] = {}

    def require(name: str, key_path: KeyPath, *tasks: Task) -> None:
        serving[name] = deployments.require_serving(blueprint, name, fleet, environment, key_path, tasks)

    collect = ErrorCollector()
    for place in litellm_settings.list_places(blueprint.value):
        if name := place.backend.deployment:
            single_path = ("routes", place.route, "deployments", "deployment")
            list_path = ("routes", place.route, "deployments", place.number, "deployment")
            key_path: KeyPath = single_path if single_path in blueprint.positions else list_path
            collect(functools.partial(require, name, key_path, GENERATE, EMBED, DRAW))
    for route, embedding in litellm_settings.list_embeddings(blueprint.value).items():
        if name := embedding.backend.deployment:
            key_path = ("routes", route, "cache", "semantic", "embedding", "deployment")
            collect(functools.partial(require, name, key_path, EMBED))
    collect.raise_if_any()
    return serving


def _build_backend(place: Place[Any], serving: dict[str, FoundDeployment]) -> Backend:
    name = litellm_settings.name_backend(place.backend)
    if place.backend.deployment is None:
        return Backend(id=place.id, route=place.route, name=name)
    deployment = serving[place.backend.deployment]
    return Backend(
        id=place.id,
        route=place.route,
        name=name,
        task=deployment.task,
        usd_h=deployment.usd_h,
        metrics_urls=deployment.metrics_urls,
        prompt_tokens=deployment.metrics.get("prompt-tokens", ""),
        output_tokens=deployment.metrics.get("output-tokens", ""),
        usage_url=f"http://{deployment.door.usage_address}/metrics" if deployment.door else "",
    )


def _locate(place: Place[Any], serving: dict[str, FoundDeployment]) -> Place[Any]:
    backend: Source = place.backend
    deployment = (
        serving[backend.deployment] if backend.deployment else FoundDeployment(name=MOCK, url="", models=(MOCK,))
    )
    return place._replace(
        url=(backend.url or deployment.url).rstrip("/").removesuffix("/v1"),
        model=backend.model or next(iter(deployment.models), ""),
        is_keyed=bool(backend.url or deployment.door),
        traits=deployment.traits.model_dump(exclude_defaults=True),
    )


def _list_notes(settings: Blueprint, backends: list[Backend], fleet: Fleet, environment: Environment) -> Iterator[str]:
    yield from orchestrators.describe_missing_nodes(fleet, environment.conventions, "The gateway")
    if any(backend.name == MOCK for backend in backends):
        yield "A mock says the same to every request, and costs its route's list price. See routes.NAME.deployments."
    routed = [backend for backend in backends if backend.route != EMBEDDING]
    unpriced = sorted({backend.name for backend in routed if not backend.is_metered and backend.name != MOCK})
    if unpriced:
        yield f"What requests to {', '.join(unpriced)} cost is by the route's list price: no price an hour is known."
    if environment.conventions.is_local:
        yield "Postgres takes the place of RDS."
        yield from search.describe(settings)
        for model in sorted({backend.name for backend in routed} & {*litellm_settings.list_bedrock_models(settings)}):
            yield f"A mock takes the place of {model} of Bedrock."
        if settings.guardrails.bedrock:
            yield "Requests pass no guardrail of Bedrock, which this machine does not have."


def _build_meter(deployment: GatewayDeployment, records: Audit) -> Service:
    backends = meter.list_metered(deployment.backends)
    arguments = (str(deployment.database_port), deployment.environment.data_folder)
    # In the bucket of the embedded AWS, which has no other.
    bucket, prefix = split_location(records.export or "")
    export = f"s3://{deployment.environment.bucket}/{prefix}" if bucket else ""
    return Service(
        name=METER,
        role=METER,
        command=(sys.executable, meter_program.__file__, *arguments),
        env={**deployment.environment.env, **meter_program.build_settings(backends, records.keep, export)},
        start_s=1,
        resources=Resources(memory_bytes=_METER_BYTES),
    )


def _build_gateway(deployment: GatewayDeployment, env: dict[str, str]) -> Service:
    """Build LiteLLM behind nginx, which lets only the inference API through."""
    environment = deployment.environment
    host, port = environment.hidden_host, environment.ports[ADMIN]
    front = (
        *environment.image_programs.get("router-front", ("router-front",)),
        f"--listen={environment.conventions.bind_host}:{environment.ports[GATEWAY]}",
        f"--router={host}:{port}",
        f"--max-body={MAX_BODY_MIB}",
        "--",
    )
    arguments = (host, str(port), str(deployment.database_port), environment.data_folder)
    return Service(
        name=GATEWAY,
        role=GATEWAY,
        is_entry=True,
        command=(*front, sys.executable, gateway_program.__file__, *arguments),
        env={**environment.env, **env},
        host=host,
        port=port,
        probe=Probe(path="/health/readiness", body={}, deadline_s=_START_S),
        start_s=1,
        resources=Resources(memory_bytes=_LITELLM_BYTES),
    )
