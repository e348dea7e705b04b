"""Decides every number of a streaming deployment, once: blueprint + fleet + environment -> `StreamingDeployment`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_serving import paths
from llm_serving.fleet import rented_cost
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.streaming import cloud, operators, programs, prompt
from llm_serving.kinds.streaming.blueprint import Blueprint
from llm_serving.kinds.streaming.deployment import (
    ENDPOINT,
    GENERATOR,
    JOB_MANAGER,
    TASK_MANAGER,
    StreamingDeployment,
    Topics,
)
from llm_serving.kinds.streaming.prompt import EventFiles
from llm_serving.kinds.streaming.servers import CACHE, KAFKA
from llm_serving.services import deployments
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.environment import Environment
from llm_serving.services.service import LOOPBACK, Probe, Resources, Service
from llm_serving.services.tasks import GENERATE
from llm_serving.settings import own_yaml
from llm_serving.settings.document import Document, raise_mistakes

RPC = "jobmanager-rpc"
"""Name of the port on which TaskManagers find the JobManager."""

MOCK_MODEL = "mock"
_FLINK, _SLOTS = Path(__file__).with_name("flink.yaml"), 2
_HEAP_MB = {JOB_MANAGER: 256, TASK_MANAGER: 384, ENDPOINT: 64, GENERATOR: 64}
_JVM_BYTES = 200_000_000
"""Memory of a Java process beside its heap."""

_START_S = 180.0


def list_port_names(blueprint: Blueprint) -> list[str]:
    """List the ports that a target must choose if processes share one machine."""
    return [JOB_MANAGER, RPC, *([ENDPOINT] if blueprint.endpoint.mock else [])]


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> StreamingDeployment:
    """Resolve the blueprint on the fleet.

    Raises:
        InputError: it cannot work; has every reason with its line of the file.
    """
    settings, name, is_local = blueprint.value, resolve_name(blueprint), environment.conventions.is_local
    on_kubernetes = environment.conventions.is_kubernetes
    if on_kubernetes:
        raise_mistakes(blueprint.locate(operators.check(settings, fleet.value, environment)))
    elif not is_local:
        raise_mistakes(blueprint.locate(cloud.check(settings, fleet.value, environment, name)))
    files = prompt.read(blueprint)
    url, model = _find_endpoint(blueprint, fleet, environment)
    brokers, cache_url = _locate_servers(settings, environment, name)
    results_bucket = environment.results_bucket or environment.bucket
    deployment = StreamingDeployment(
        name=name,
        pattern=settings.pattern,
        target=environment.target,
        fleet=fleet.value.name,
        environment=environment,
        url=environment.conventions.url.format(deployment="", namespace="", port=environment.ports[JOB_MANAGER])
        if is_local
        else "",
        brokers=brokers,
        topics=Topics(events=f"{name}-events", results=f"{name}-results", dead_letters=f"{name}-dead-letters"),
        endpoint_url=url,
        model=model,
        answer_files=f"s3://{results_bucket}/streaming/{name}/answers/" if settings.parquet else "",
        cache_url=cache_url,
        checkpoint_s=settings.checkpoint,
        deadline_s=settings.endpoint.deadline,
        limits=settings.limits,
        sample=settings.sample,
        slo=settings.slo,
        notes=tuple(_list_notes(settings)) if is_local else (),
        emulated=environment.emulated,
    )
    job = json.dumps(_build_job_settings(settings, deployment, files), separators=(",", ":"))
    raise_mistakes(blueprint.locate(cloud.find_large_files(settings, job, environment)))
    if is_local:
        return deployment.model_copy(update={"services": tuple(_build_services(settings, deployment, job))})
    if on_kubernetes:
        return deployment.model_copy(update={"operators": operators.resolve(settings, fleet.value, deployment, job)})
    stack = cloud.resolve(settings, fleet.value, deployment, job)
    units = list(cloud.list_units(stack))
    types = {"broker_type": stack.broker_type, "cache_type": stack.cache_type}
    size = ("aws", "brokers"), stack.brokers
    raise_mistakes(blueprint.locate(rented_cost.find_excess(fleet.value, units, "the stream", size, types)))
    cost = rented_cost.describe(fleet.value, units)
    notes = tuple(cloud.list_notes(settings))
    return deployment.model_copy(update={"stack": stack, "cost": cost, "notes": notes})


def _locate_servers(settings: Blueprint, environment: Environment, name: str) -> tuple[str, str]:
    """Return the addresses of Kafka and of the cache; empty on ECS, where the stack's outputs have them."""
    if environment.conventions.is_local:
        return f"{LOOPBACK}:{environment.ports[KAFKA]}", f"redis://{LOOPBACK}:{environment.ports[CACHE]}"
    if environment.conventions.is_kubernetes:
        return f"{name}-kafka-bootstrap:9093", str(settings.eks.cache)  # of Strimzi's Service, in its namespace
    return "", ""


def _find_endpoint(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> tuple[str, str]:
    endpoint = blueprint.value.endpoint
    if endpoint.mock:
        return f"http://{environment.hidden_host}:{environment.ports[ENDPOINT]}", endpoint.model or MOCK_MODEL
    if endpoint.url:
        return endpoint.url.rstrip("/").removesuffix("/v1"), str(endpoint.model)
    serving = deployments.require_serving(blueprint, str(endpoint.deployment), fleet, environment, tasks=(GENERATE,))
    return serving.url, endpoint.model or next(iter(serving.models), "")


def _list_notes(settings: Blueprint) -> Iterator[str]:
    if settings.endpoint.mock:
        yield "The endpoint is a mock, which says the same to every prompt. See endpoint.deployment."
    if settings.endpoint.api_key:
        yield "The embedded AWS has no secrets of yours: here BLUEPRINT_API_KEY takes the place of endpoint.api_key."
    yield "Redis takes the place of ElastiCache for Valkey, and one broker of Kafka that of MSK."


def _build_services(settings: Blueprint, deployment: StreamingDeployment, job: str) -> Iterator[Service]:
    environment, topics = deployment.environment, deployment.topics
    if settings.endpoint.mock:
        host, port = environment.hidden_host, environment.ports[ENDPOINT]
        command = ("stream.load.MockEndpoint", host, str(port), str(to_ms(settings.endpoint.mock.latency)))
        body = {"model": MOCK_MODEL, "messages": [{"role": "user", "content": "ready?"}]}
        probe = Probe(path="/v1/chat/completions", body=body, deadline_s=_START_S)
        yield _build_java(ENDPOINT, command, environment.env, host=host, port=port, probe=probe)
    env = environment.env
    if deployment.answer_files:  # Flink's file system of S3
        env = {**env, "FLINK_PLUGINS_DIR": str(programs.locate_plugins())}
    main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
    yield _build_java(TASK_MANAGER, (main, *_build_flink_arguments(deployment, TASK_MANAGER)), env)
    if settings.generator.rate:
        generator = settings.generator
        arguments = (deployment.brokers, topics.events, f"{generator.rate:g}", str(generator.shoppers))
        yield _build_java(GENERATOR, ("stream.load.Generator", *arguments), environment.env)
    own = ("stream.LocalCluster", _locate_checkpoints(deployment), "--job-classname", "stream.StreamJob")
    yield _build_java(
        JOB_MANAGER,
        (*own, *_build_flink_arguments(deployment, JOB_MANAGER)),
        {**env, cloud.SETTINGS_VARIABLE: job},
        is_entry=True,
        port=environment.ports[JOB_MANAGER],
        probe=Probe(path="/jobs/overview", body={}, deadline_s=_START_S),
    )


def _build_java(role: str, command: Sequence[str], env: Mapping[str, str], **fields: Any) -> Service:
    """Build a process of Java from its class and arguments; `fields` are further fields of the service."""
    heap_mb = _HEAP_MB[role]
    return Service(
        name=role,
        role=role,
        command=programs.build_command(*command, heap_mb=heap_mb),
        env=dict(env),
        start_s=1,
        resources=Resources(memory_bytes=heap_mb * 2**20 + _JVM_BYTES),
        **fields,
    )


def _build_flink_arguments(deployment: StreamingDeployment, role: str) -> tuple[str, ...]:
    environment = deployment.environment
    values = {
        "host": environment.hidden_host,
        "port": environment.ports[JOB_MANAGER],
        "rpc_port": environment.ports[RPC],
        "folder": environment.data_folder,
        "checkpoints": _locate_checkpoints(deployment),
        "slots": _SLOTS,
        "s3_endpoint": environment.s3_endpoint,
        "region": environment.region,
    }
    groups, names = own_yaml.read(_FLINK), ("all", *(["s3"] if deployment.answer_files else []), role)
    options = {key: text.format(**values) for name in names for key, text in groups[name].items()}
    folder = str(paths.IMAGES / "stream-job" / "conf")
    return ("--configDir", folder, *(f"-D{key}={value}" for key, value in options.items()))


def _locate_checkpoints(deployment: StreamingDeployment) -> str:
    return f"{deployment.environment.data_folder}/checkpoints"


def _build_job_settings(settings: Blueprint, deployment: StreamingDeployment, files: EventFiles) -> dict[str, object]:
    endpoint, topics, secret = settings.endpoint, deployment.topics, settings.endpoint.api_key
    is_local, region = deployment.environment.conventions.is_local, deployment.environment.region
    api_key = None
    if secret and not is_local:
        api_key = {"secret": secret.secret, "field": secret.field or "", "region": region}
    return {
        "name": deployment.name,
        "kafka": {
            "brokers": deployment.brokers,
            "events": topics.events,
            "results": topics.results,
            "deadLetters": topics.dead_letters,
            "partitions": settings.partitions,
            "replicas": 1 if is_local else cloud.REPLICAS,
            "properties": list_kafka_properties(deployment.environment),
        },
        "endpoint": {
            "url": deployment.endpoint_url,
            "model": deployment.model,
            "outputTokens": endpoint.output_tokens,
            "deadlineMs": to_ms(endpoint.deadline),
            "inFlight": endpoint.in_flight,
            "attempts": endpoint.attempts,
            "overtake": endpoint.overtake,
            "apiKey": api_key,
        },
        "session": {"timeoutMs": to_ms(settings.session.timeout), "events": settings.session.events},
        "limits": {
            "eventBytes": settings.limits.event,
            "lateMs": to_ms(settings.limits.late),
            "futureMs": to_ms(settings.limits.future),
        },
        "shed": {"afterMs": to_ms(settings.shed.after), "keep": settings.shed.keep} if settings.shed else None,
        "cache": {"url": deployment.cache_url, "ttlS": round(settings.cache.ttl)},
        "prompt": _encode(files.prompt),
        "eventSchema": _encode(files.schema),
        # Managed Flink's file system that can write. Source: aws-samples, examples of sinks to S3, 2026-11.
        "answerFiles": deployment.answer_files.replace("s3:", "s3:" if is_local else "s3a:"),
        "checkpointMs": to_ms(settings.checkpoint),
        "logsRequests": settings.logs == "json",
    }


def list_kafka_properties(environment: Environment) -> Mapping[str, str]:
    """Return what a client of Kafka needs to log in."""
    if environment.conventions.is_local:
        return {}
    return operators.KAFKA_PROPERTIES if environment.conventions.is_kubernetes else cloud.KAFKA_PROPERTIES


def _encode(text: str) -> str:
    """Encode a file in base64: variables of supervisord hold no line breaks and not both quotes."""
    return base64.b64encode(text.encode()).decode()


def to_ms(seconds: float) -> int:
    """Return whole milliseconds."""
    return round(1000 * seconds)
