"""A task definition of ECS: the engine or router, what copies to it from S3, and what reads its metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformStack
from infra.constructs import collector
from infra.constructs.collector import MetricStream
from llm_serving.catalog import images
from llm_serving.fleet import image_cache
from llm_serving.targets import group, probe
from llm_serving.targets.ecs.manifest import Service, TaskService

COPY_IMAGE = images.pin(images.COPIER)
"""Copies from S3 before the engine starts."""

FETCH_DIR = "/scratch/fetched"
"""Where to: a volume on the disk that holds images, the instance's own NVMe where the pool has that."""

PROBE_PROGRAM = Path(probe.__file__).read_text(encoding="utf-8")
"""The probe as `python3 -c PROBE_PROGRAM URL BODY SECONDS`."""

GROUP_PROGRAM = Path(group.__file__).read_text(encoding="utf-8")
"""What ends a task whose engine stopped answering, or whose replica lost a node, as `python3 -c GROUP_PROGRAM ...`."""

WATCH = "watch"
"""The container that runs it."""

_WATCH_MEMORY_MIB, _WATCH_STOP_S = 128, 10

_GROUP_PORT = 5701
"""Where a leader waits for its followers; engines reach one another by any port."""

_HEALTH_TIMEOUT_S = 25
_MAX_START_S, _MAX_RETRIES, _MAX_INTERVAL_S = 300, 10, 300
"""Bounds of ECS. Source: ECS API reference, HealthCheck, 2026-11."""


@dataclass(frozen=True)
class TaskRoles:
    """By whom tasks are started, and as whom they act."""

    execution: aws.iam_role.IamRole
    task: aws.iam_role.IamRole
    policies: tuple[ITerraformDependable, ...]
    """Policies of both roles, which tasks depend on."""


@dataclass(frozen=True)
class Replica:
    """The other nodes of a replica that spans several."""

    leader: str = ""
    """Name of the node that answers requests; empty for that node itself."""

    followers: int = 0
    """Its further nodes."""


@dataclass(frozen=True)
class LogDestination:
    """Where containers write to."""

    group: str
    region: str

    def build_configuration(self, stream: str) -> dict[str, object]:
        """A container definition's logConfiguration."""
        options = {"awslogs-group": self.group, "awslogs-region": self.region, "awslogs-stream-prefix": stream}
        # A log that cannot be shipped must not stop an answer.
        return {"logDriver": "awslogs", "options": {**options, "mode": "non-blocking", "max-buffer-size": "25m"}}


def add_definition(
    stack: TerraformStack,
    service: Service,
    *,
    family: str,
    replica: Replica,
    roles: TaskRoles,
    logs: LogDestination,
    stream: MetricStream,
    image_prefixes: Mapping[str, str],
) -> aws.ecs_task_definition.EcsTaskDefinition:
    """Add the task definition of a service.

    Args:
        image_prefixes: of the fleet's image cache, by the host that each replaces.
    """
    containers = [
        {**container, "image": image_cache.rewrite(str(container["image"]), image_prefixes)}
        for container in build_containers(service, replica, logs, stream)
    ]
    task_definition = aws.ecs_task_definition
    on_fargate = service.pool is None
    return task_definition.EcsTaskDefinition(
        stack,
        f"{service.name}-task",
        family=family,
        network_mode="awsvpc",
        requires_compatibilities=["FARGATE" if on_fargate else "EC2"],
        cpu=str(service.cpus * 1024) if on_fargate else None,
        memory=str(service.memory_mib) if on_fargate else None,
        execution_role_arn=roles.execution.arn,
        task_role_arn=roles.task.arn,
        container_definitions=json.dumps(containers),
        volume=_build_volumes(service) or None,
        runtime_platform=task_definition.EcsTaskDefinitionRuntimePlatform(
            operating_system_family="LINUX", cpu_architecture="X86_64"
        )
        if on_fargate
        else None,
    )


def add_test_request_definition(
    stack: TerraformStack, service: TaskService, *, family: str, url: str, roles: TaskRoles, logs: LogDestination
) -> aws.ecs_task_definition.EcsTaskDefinition:
    """Add the task definition that sends a test request, as a client in the VPC would.

    Args:
        service: what clients call.
    """
    assert service.probe
    container = {
        "name": "ask",
        "image": service.image,
        "essential": True,
        "entryPoint": ["python3", "-c", PROBE_PROGRAM],
        "command": [url + service.probe.path, service.probe.body, "120"],
        "logConfiguration": logs.build_configuration("ask"),
    }
    return aws.ecs_task_definition.EcsTaskDefinition(
        stack,
        "ask-task",
        family=family,
        network_mode="awsvpc",
        requires_compatibilities=["FARGATE"],
        cpu="256",
        memory="512",
        execution_role_arn=roles.execution.arn,
        container_definitions=json.dumps([container]),
    )


def build_containers(
    service: Service, replica: Replica, logs: LogDestination, stream: MetricStream
) -> list[dict[str, object]]:
    """The container definitions, in the order of starting."""
    collectors = (
        []
        if service.member and service.member.rank
        else [collector.build_container(service, stream, logs.build_configuration("metrics"))]
    )
    copy_containers = [_build_copy_container(name, uri, service.fetch_s, logs) for name, uri in service.fetches.items()]
    watchers = [_build_watch_container(service, replica, logs)] if service.kind == "engine" else []
    return [*copy_containers, _build_main_container(service, logs), *watchers, *collectors]


def _build_main_container(service: Service, logs: LogDestination) -> dict[str, object]:
    collector_mib = collector.MEMORY_MIB if service.pool is None else 0
    container: dict[str, object] = {
        "name": service.role,
        "image": service.image,
        "essential": True,
        "cpu": service.cpus * 1024 - (collector.CPU_UNITS if service.pool is None else 0),
        "memory": service.memory_mib - collector_mib,
        "entryPoint": _build_entry_point(service),
        "command": list(service.command[0 if service.own_address else 1 :]),
        "environment": [
            {"name": name, "value": value}
            for name, value in sorted({**service.environment, **_build_discovery_env(service, logs)}.items())
        ],
        "portMappings": [{"name": "http", "containerPort": service.port, "protocol": "tcp", "appProtocol": "http"}],
        "linuxParameters": _build_linux_parameters(service),
        "stopTimeout": service.stop_s,
        "logConfiguration": logs.build_configuration(service.role),
    }
    if service.kind == "engine":
        # Its caches lie in the container's own layer, to which root alone may add; it has no capability all the same.
        container["user"] = "0:0"
    if service.gpus:
        container["resourceRequirements"] = [{"type": "GPU", "value": str(service.gpus)}]
    if service.devices:
        # RDMA pins the memory that it writes to, and so does the Neuron runtime.
        container["ulimits"] = [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    if health_check := _build_health_check(service):
        container["healthCheck"] = health_check
    mounts: list[dict[str, object]] = []
    if service.compile_cache:
        mounts.append({"sourceVolume": "compile-cache", "containerPath": service.compile_cache.path, "readOnly": False})
    if service.fetches:
        mounts.append({"sourceVolume": "fetched", "containerPath": FETCH_DIR, "readOnly": True})
        container["dependsOn"] = [
            {"containerName": f"fetch-{name}", "condition": "SUCCESS"} for name in service.fetches
        ]
    if mounts:
        container["mountPoints"] = mounts
    return container


def _build_discovery_env(service: Service, logs: LogDestination) -> dict[str, str]:
    """What images/router's discovery needs: Cloud Map's region, and what an engine must answer before it counts."""
    if service.kind != "router" or service.probe is None:
        return {}
    engine_probe = {"path": service.probe.path, "body": json.loads(service.probe.body)}
    return {"CLOUD_MAP_REGION": logs.region, "ENGINE_PROBE": json.dumps(engine_probe)}


def _build_volumes(service: Service) -> list[aws.ecs_task_definition.EcsTaskDefinitionVolume]:
    volume = aws.ecs_task_definition.EcsTaskDefinitionVolume
    cache = service.compile_cache
    caches = [volume(name="compile-cache", host_path=cache.node_path)] if cache else []
    return [*caches, *([volume(name="fetched")] if service.fetches else [])]


def _build_entry_point(service: Service) -> list[str]:
    """The entry point, whatever the image's own. A shell sets variables with the address that only the task knows."""
    if not service.own_address:
        return [service.command[0]]
    exports = " ".join(f'{name}="$address"' for name in service.own_address)
    return ["sh", "-c", f'address=$(hostname -i) && export {exports} && exec "$0" "$@"']


def _build_linux_parameters(service: Service) -> dict[str, object]:
    # The init process ends what ECS Exec leaves behind. Exec writes into the container's root, so that is no read-only.
    capabilities = {"drop": ["ALL"]}
    parameters: dict[str, object] = {"initProcessEnabled": True, "capabilities": capabilities}
    if service.devices:
        capabilities["add"] = ["IPC_LOCK"]
        parameters["devices"] = [
            {"hostPath": device, "containerPath": device, "permissions": ["read", "write", "mknod"]}
            for device in service.devices
        ]
    if service.shared_memory_mib:
        parameters["sharedMemorySize"] = service.shared_memory_mib
    return parameters


def _build_health_check(service: Service) -> dict[str, object] | None:
    """The engine's own health, which a full queue does not change; liveness for the router.

    The router's /health will not do: before prefill and decode, vllm-router answers it with 503 until it knows both.
    """
    if service.probe is None:
        return None
    base_url = f"http://127.0.0.1:{service.port}"
    arguments = [f"{base_url}/liveness", ""] if service.kind == "router" else [base_url + service.probe.health, ""]
    return build_health_check(arguments, 60 if service.kind == "router" else service.probe.deadline_s)


def build_health_check(arguments: Sequence[str], start_s: int) -> dict[str, object]:
    """A health check that sends the probe's request, for a container that may take `start_s` seconds to start.

    Args:
        arguments: of the probe: URL and body.
    """
    remaining_s = max(0, start_s - _MAX_START_S)
    interval = min(_MAX_INTERVAL_S, max(30, math.ceil(remaining_s / _MAX_RETRIES)))
    return {
        "command": ["CMD", "python3", "-c", PROBE_PROGRAM, *arguments, str(_HEALTH_TIMEOUT_S - 5)],
        "timeout": _HEALTH_TIMEOUT_S,
        "startPeriod": min(start_s, _MAX_START_S),
        "interval": interval,
        "retries": min(_MAX_RETRIES, max(3, math.ceil(remaining_s / interval))),
    }


def _build_watch_container(service: Service, replica: Replica, logs: LogDestination) -> dict[str, object]:
    """The group program beside an engine. It is essential, so that its end is the task's.

    ECS stops containers in the reverse order of `dependsOn`: a follower's engine runs on until the program has ended.
    Source: ECS API reference, ContainerDefinition, dependsOn, and Task, healthStatus (every essential container counts,
    and one without a health check is UNKNOWN), 2026-11.
    """
    return {
        "name": WATCH,
        "image": service.image,
        "essential": True,
        "cpu": 32,
        "memory": _WATCH_MEMORY_MIB,
        "entryPoint": ["python3", "-c", GROUP_PROGRAM],
        "command": list(_list_group_arguments(service, replica)),
        "dependsOn": [{"containerName": service.role, "condition": "START"}],
        "healthCheck": {"command": ["CMD", "python3", "-c", ""], "interval": 30, "timeout": 10, "retries": 3},
        "stopTimeout": service.stop_s if replica.leader else _WATCH_STOP_S,
        "readonlyRootFilesystem": True,
        "linuxParameters": {"capabilities": {"drop": ["ALL"]}},
        "logConfiguration": logs.build_configuration(WATCH),
    }


def _list_group_arguments(service: Service, replica: Replica) -> Iterator[str]:
    if replica.leader:
        yield from ("follow", "--leader", replica.leader, "--port", str(_GROUP_PORT))
        yield from ("--requests", str(service.port), "--drain", str(service.stop_s - _WATCH_STOP_S))
        return
    assert service.probe
    yield from ("lead", "--health", f"http://127.0.0.1:{service.port}{service.probe.health}")
    if replica.followers:
        yield from ("--port", str(_GROUP_PORT), "--followers", str(replica.followers))


def _build_copy_container(name: str, uri: str, limit_s: int, logs: LogDestination) -> dict[str, object]:
    return {
        "name": f"fetch-{name}",
        "image": COPY_IMAGE,
        "essential": False,
        "cpu": 128,
        "memory": 512,
        "command": ["s3", "cp", "--recursive", "--only-show-errors", uri, f"{FETCH_DIR}/{name}"],
        # Dependent containers stop waiting after this; the agent's default is three minutes.
        **({"startTimeout": limit_s} if limit_s else {}),
        "mountPoints": [{"sourceVolume": "fetched", "containerPath": FETCH_DIR}],
        "logConfiguration": logs.build_configuration(f"fetch-{name}"),
    }
