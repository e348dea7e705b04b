"""A gateway on AWS: LiteLLM and the meter as containers, RDS and ElastiCache by its stack."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from llm_serving import paths
from llm_serving.catalog import own_image
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.pool import Orchestrator
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.gateway import cloud_program, litellm_settings, meter, meter_program
from llm_serving.kinds.gateway.blueprint import Audit, Blueprint
from llm_serving.kinds.gateway.deployment import GATEWAY, MAX_BODY_MIB, METER, GatewayDeployment
from llm_serving.kinds.gateway.litellm_settings import Place
from llm_serving.kinds.gateway.stack import (
    CACHE_CALL,
    CACHE_NODES,
    CACHE_PORT,
    DATABASE_CALL,
    DATABASE_PORT,
    GatewayStack,
)
from llm_serving.services import addresses, load_balancer, orchestrators, rendered, team_keys
from llm_serving.services.deployments import ENTRY_PORT, USAGE_PORT
from llm_serving.services.environment import Environment
from llm_serving.services.service import (
    ECS_STOP_DELAY_S,
    LOOPBACK,
    MAX_VARIABLE,
    PRE_STOP_S,
    STOP_DELAY_VARIABLE,
    Call,
    Placement,
    Probe,
    Replicas,
    Resources,
    Service,
    Stop,
)
from llm_serving.settings.document import Conflict

IMAGE = "gateway"

ADMIN_PORT = 4000
"""Of LiteLLM itself, at each replica's loopback address."""

DATA_TIERING = re.compile(r"cache\.r\d+gd\..+")
"""Node types with disks. Source: ElastiCache user guide, "Search features and limits" and "Data tiering", 2026-11."""

_BURSTING, _RESERVES, _USUAL_RESERVE = ("t2", "t3", "t4g"), {"micro": 50, "small": 30}, 25
"""Percent of the memory of such nodes that must be set aside where they search, by their size, and of all others.
Source: ElastiCache user guide, "Search features and limits" and "Managing reserved memory", 2026-11."""

MAX_SETTINGS = 48 * 1024
"""Maximum bytes of teams and routes together. A task definition has 64 KiB. Source: ECS developer guide, "Amazon ECS
service quotas", 2026-11."""

MIN_ZONES = 2
"""Zones of the database and its standby."""

CPUS, MEMORY_BYTES = 1, 2 * 2**30
"""Of each container: Fargate's minimum memory for a core. LiteLLM has one process, of up to 0.9 GB under load."""

STOP_S = 120
"""Seconds for requests in flight after the stop signal: Fargate's maximum."""

HEALTH = "/health/liveliness"
"""Answers without a key, and says nothing of the gateway."""

REDIS = {"host": f"os.environ/{cloud_program.CACHE_VARIABLE}", "port": CACHE_PORT, "ssl": True}


def check(settings: Blueprint, fleet: Fleet, environment: Environment, name: str) -> Iterator[Conflict]:
    """Yield what AWS refuses, and what no container reaches."""
    title = environment.conventions.title
    yield from orchestrators.check(fleet, environment.conventions, ("kind",), settings.kind)
    if settings.shared_counts:
        reason = f"on {title} the stack has a cache of its own"
        yield Conflict(("shared_counts",), reason, "remove shared_counts", settings.shared_counts)
    embeddings = litellm_settings.list_embeddings(settings)
    urls = [(place.route, place.backend.url) for place in litellm_settings.list_places(settings)]
    urls += [(route, place.backend.url) for route, place in embeddings.items()]
    for route, url in urls:
        yield from addresses.check_reachable(url, ("routes", route), f"containers on {title} do not reach")
    if embeddings and DATA_TIERING.fullmatch(settings.aws.cache_type):
        reason = (
            "its nodes keep a part of the data on disks, where nothing is searched, and answers are found by meaning"
        )
        yield Conflict(("aws", "cache_type"), reason, "choose one such as cache.r7g.large", settings.aws.cache_type)
    if len(fleet.zones) < MIN_ZONES:
        reason = f"the database takes {MIN_ZONES} zones, and the fleet {fleet.name} has {len(fleet.zones)}"
        yield Conflict(("aws", "database_type"), reason, "add zones to the fleet", settings.aws.database_type)
    yield from names.check_cache_name(fleet, name)
    if not (paths.IMAGES / IMAGE / "rds-ca" / f"{fleet.region}.pem").is_file():
        reason = f"the image has no certificate of RDS's authority of {fleet.region}, by which it knows the database"
        fix = f"add images/{IMAGE}/rds-ca/{fleet.region}.pem of AWS's bundle"
        yield Conflict(("aws", "database_type"), reason, fix, settings.aws.database_type)
    yield from team_keys.check_region(settings.aws.api_key, ("aws", "api_key"), environment, "a gateway")
    if settings.load_balancer:
        on_kubernetes = environment.conventions.is_kubernetes
        yield from load_balancer.check(settings.load_balancer, fleet, on_kubernetes=on_kubernetes)


def check_keys(settings: Blueprint, deployment: GatewayDeployment) -> Iterator[Conflict]:
    """Yield deployments that ask for a key, where the gateway has none."""
    asking = {backend.id: backend.name for backend in deployment.backends if backend.usage_url}
    places = {("routes", place.route, "deployments"): place.id for place in litellm_settings.list_places(settings)}
    for route, place in litellm_settings.list_embeddings(settings).items():
        places["routes", route, "cache"] = place.id
    for key_path, backend_id in places.items() if settings.aws.api_key is None else ():
        if backend_id in asking:
            fix = "set aws: {api_key: {secret: NAME}}"
            yield Conflict(key_path, "it asks for a key of a team", fix, asking[backend_id])


def find_large_settings(deployment: GatewayDeployment) -> Iterator[Conflict]:
    """Yield teams and routes that the environment of a container, or a variable of this machine, cannot hold."""
    sizes = [[len(f"{key}={value}".encode()) for key, value in service.env.items()] for service in deployment.services]
    if deployment.stack:
        size, holder, limit = max(map(sum, sizes)), "a container", MAX_SETTINGS
    else:
        size, holder, limit = max(map(max, sizes)), "a variable", MAX_VARIABLE
    if size > limit:
        reason = f"teams and routes take {size:,} bytes, and {holder} {limit:,}"
        fix = "deploy several gateways, each with some of the teams"
        yield Conflict(("teams",), reason, fix, len(deployment.teams))


def resolve(settings: Blueprint, fleet: Fleet, environment: Environment, name: str) -> GatewayStack:
    balancer = settings.load_balancer
    # On ECS the stack asks for the VPC's own.
    ranges = load_balancer.list_ranges(fleet) if environment.conventions.is_kubernetes else ()
    return GatewayStack(
        orchestrator=cast(Orchestrator, environment.conventions.orchestrator),
        name=names.format_deployment_name(fleet, name),
        place=_format_place(fleet, name),
        database_type=settings.aws.database_type,
        database_gib=math.ceil(settings.aws.database_storage / 2**30),
        backup_days=settings.aws.backup_days,
        cache_type=settings.aws.cache_type,
        cache_reserve_percent=_find_reserve(settings),
        bedrock_guardrail=settings.guardrails.bedrock.id if settings.guardrails.bedrock else "",
        bedrock_models=litellm_settings.list_bedrock_models(settings),
        audit_export=settings.audit.export,
        load_balancer=load_balancer.resolve(balancer, STOP_S, ranges) if balancer else None,
    )


def _find_reserve(settings: Blueprint) -> int:
    """Find the share of memory that nodes set aside.

    Said for all of them: a parameter group that only some have would go while the cache still has it, which ElastiCache
    refuses, where a larger type takes the place of a small one.
    """
    family, _, size = settings.aws.cache_type.removeprefix("cache.").partition(".")
    searches = family in _BURSTING and litellm_settings.list_embeddings(settings)
    return _RESERVES.get(size, _USUAL_RESERVE) if searches else _USUAL_RESERVE


def build_services(
    settings: Blueprint, fleet: Fleet, deployment: GatewayDeployment, env: dict[str, str], places: Iterable[Place[Any]]
) -> tuple[Service, Service]:
    gateway = _build_gateway(settings, fleet, deployment, env, list(places))
    return _build_meter(deployment, gateway, settings.audit), gateway


def _build_gateway(
    settings: Blueprint, fleet: Fleet, deployment: GatewayDeployment, env: dict[str, str], places: list[Place[Any]]
) -> Service:
    """Build LiteLLM behind nginx, which lets only the inference API through."""
    environment = deployment.environment
    log = ("--log=json",) if settings.logs == "json" else ()
    options = (f"--listen=0.0.0.0:{ENTRY_PORT}", f"--router={LOOPBACK}:{ADMIN_PORT}", f"--max-body={MAX_BODY_MIB}")
    replicas, api_key = settings.aws.replicas, settings.aws.api_key
    return Service(
        name=GATEWAY,
        role=GATEWAY,
        is_entry=True,
        image=own_image.IMAGES[IMAGE].format_image(environment.registry, environment.image_digests),
        command=("router-front", *options, *log, "--", *build_command("gateway", str(ADMIN_PORT))),
        env={
            **environment.env,
            cloud_program.PLACE_VARIABLE: _format_place(fleet, deployment.name),
            **env,
            **({cloud_program.API_KEY_VARIABLE: api_key.secret} if api_key else {}),
            **({STOP_DELAY_VARIABLE: str(ECS_STOP_DELAY_S)} if environment.conventions.runs_tasks else {}),
        },
        secrets=team_keys.list_read(api_key),
        calls={
            **_list_calls(places),
            DATABASE_CALL: Call(
                purpose="Keys, teams and usage", port=DATABASE_PORT, ranges=load_balancer.list_ranges(fleet)
            ),
            CACHE_CALL: Call(purpose="Counts of limits", port=CACHE_PORT, ranges=load_balancer.list_ranges(fleet)),
        },
        clients=_list_clients(settings, fleet, environment),
        port=ENTRY_PORT,
        probe=Probe(path=HEALTH, body={}, health=HEALTH, deadline_s=600),
        replicas=Replicas(min=replicas, max=replicas),
        resources=Resources(cpus=CPUS, memory_bytes=MEMORY_BYTES),
        # Prisma's engine and the lock of packages are of this architecture.
        placement=Placement(labels={"kubernetes.io/arch": "amd64"}),
        stop=Stop(stop_s=STOP_S, pre_stop_s=PRE_STOP_S if environment.conventions.is_kubernetes else 0),
    )


def _build_meter(deployment: GatewayDeployment, gateway: Service, records: Audit) -> Service:
    metered = meter.list_metered(deployment.backends)
    engines = {
        f"engines-{backend.name}": _build_metrics_call(
            "Metrics", backend.name, addresses.find_port(backend.metrics_urls[0]), "engine"
        )
        for backend in metered
        if backend.is_metered
    }
    routers = {
        f"use-{backend.name}": _build_metrics_call("Use", backend.name, USAGE_PORT, "router")
        for backend in metered
        if backend.usage_url
    }
    env = {
        **deployment.environment.env,
        cloud_program.PLACE_VARIABLE: gateway.env[cloud_program.PLACE_VARIABLE],
        **meter_program.build_settings(metered, records.keep, records.export or ""),
    }
    update = {
        "name": METER,
        "role": METER,
        "is_entry": False,
        "command": build_command("meter"),
        "env": env,
        "secrets": (),
        "calls": {**engines, **routers, DATABASE_CALL: gateway.calls[DATABASE_CALL]},
        "clients": (),
        "port": 0,
        "probe": None,
        "stop": Stop(stop_s=STOP_S),
        "replicas": Replicas(),
    }
    return gateway.model_copy(update=update)


def _build_metrics_call(purpose: str, deployment: str, port: int, role_kind: str) -> Call:
    return Call(
        purpose=f"{purpose} of {deployment}", port=port, deployment=deployment, labels={"inference/kind": role_kind}
    )


def build_command(*words: str) -> tuple[str, ...]:
    return ("python3", "-m", cloud_program.__name__, *words)


def _list_calls(places: list[Place[Any]]) -> dict[str, Call]:
    """List the connections to what answers, each once."""
    calls: dict[str, Call] = {}
    for place in places:
        if name := place.backend.deployment:
            calls[name] = Call(purpose=f"Requests to {name}", port=ENTRY_PORT, deployment=name)
        elif place.backend.url:
            port = addresses.find_port(place.backend.url)
            calls[f"url-{port}"] = Call(purpose="Requests to URLs", port=port, in_network=False)
    return calls


def _list_clients(settings: Blueprint, fleet: Fleet, environment: Environment) -> tuple[str, ...]:
    """List who calls it on EKS where a load balancer does: its addresses, and the deployments' namespace."""
    if settings.load_balancer and environment.conventions.is_kubernetes:
        return (*load_balancer.list_ranges(fleet), environment.namespace)
    return ()


def _format_place(fleet: Fleet, name: str) -> str:
    return f"/{fleet.name}/gateway/{name}"


def list_units(stack: GatewayStack, services: Sequence[Service]) -> Iterator[Units]:
    """Yield what the stack rents; pods run on nodes that the fleet pays for, tasks on Fargate."""
    yield Units(stack.database_type, 1, stack.name)  # a price of two zones
    yield Units("rds-storage-gib", stack.database_gib, stack.name)
    yield Units(stack.cache_type, CACHE_NODES, stack.name)
    yield Units("kms-key", 1, stack.name)
    yield from rendered.list_fargate(stack.orchestrator, services, stack.name)
    if stack.load_balancer:
        yield Units("application-load-balancer", 1, stack.name)
