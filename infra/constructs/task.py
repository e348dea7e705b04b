"""A task definition of ECS: the engine or router, what copies to it from S3, and what reads its metrics."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs import collector
from infra.constructs.collector import Stream
from llm_serving.targets.ecs.manifest import Service

COPIER = "public.ecr.aws/aws-cli/aws-cli:2.31.0"
"""Copies from S3 before the engine starts."""

FETCHED = "/scratch/fetched"
"""Where to: a volume on the disk that holds images, the machine's own NVMe where the pool has that."""

ASK = (
    "import json,sys,urllib.request as u;"
    "r=u.Request(sys.argv[1],sys.argv[2].encode() or None,{'Content-Type':'application/json'});"
    "a=u.build_opener(u.ProxyHandler({})).open(r,timeout=float(sys.argv[3]));"
    "sys.exit(bool(sys.argv[2]) and not json.load(a).get('choices'))"
)
"""Ends with 0 where a completion came, or, without a body to post, where the page is there; as `python3 -c`."""

_ANSWER_S = 25
_MOST_START_S, _MOST_TRIES, _MOST_INTERVAL_S = 300, 10, 300
"""Bounds of ECS. Source: ECS API reference, HealthCheck, 2026-11."""


@dataclass(frozen=True)
class Roles:
    """By whom tasks are started, and as whom they act."""

    execution: Any
    task: Any
    rights: tuple[Any, ...]
    """What both may do, which must be there before a task starts."""


@dataclass(frozen=True)
class Logs:
    """Where containers write to."""

    group: str
    region: str

    def of(self, stream: str) -> dict[str, Any]:
        """A container definition's logConfiguration."""
        options = {"awslogs-group": self.group, "awslogs-region": self.region, "awslogs-stream-prefix": stream}
        # A log that cannot be shipped must not stop an answer.
        return {"logDriver": "awslogs", "options": {**options, "mode": "non-blocking", "max-buffer-size": "25m"}}


def definition(stack: Any, service: Service, *, family: str, roles: Roles, logs: Logs, stream: Stream) -> Any:
    """Adds the task definition of a service."""
    containers = containers_of(service, logs, stream)
    made = aws.ecs_task_definition
    on_fargate = service.pool is None
    return made.EcsTaskDefinition(
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
        volume=[made.EcsTaskDefinitionVolume(name="fetched")] if service.fetches else None,
        runtime_platform=made.EcsTaskDefinitionRuntimePlatform(
            operating_system_family="LINUX", cpu_architecture="X86_64"
        )
        if on_fargate
        else None,
    )


def asking(stack: Any, service: Service, *, family: str, url: str, roles: Roles, logs: Logs) -> Any:
    """Adds the task definition of one question to the deployment, asked as a client in the VPC would.

    Args:
        service: the router.
    """
    assert service.probe
    container = {
        "name": "ask",
        "image": service.image,
        "essential": True,
        "entryPoint": ["python3", "-c", ASK],
        "command": [url + service.probe.path, service.probe.body, "120"],
        "logConfiguration": logs.of("ask"),
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


def containers_of(service: Service, logs: Logs, stream: Stream) -> list[dict[str, Any]]:
    """The container definitions, in the order of starting."""
    reads = [] if service.member and service.member.rank else [collector.container(service, stream, logs.of("metrics"))]
    brings = [_copier(name, where, service.fetch_s, logs) for name, where in service.fetches.items()]
    return [*brings, _main(service, logs), *reads]


def _main(service: Service, logs: Logs) -> dict[str, Any]:
    aside = collector.MEMORY_MIB if service.pool is None else 0
    made: dict[str, Any] = {
        "name": service.role,
        "image": service.image,
        "essential": True,
        "cpu": service.cpus * 1024 - (collector.CPU_UNITS if service.pool is None else 0),
        "memory": service.memory_mib - aside,
        "entryPoint": _entry_point(service),
        "command": list(service.command[0 if service.own_address else 1 :]),
        "environment": [{"name": name, "value": value} for name, value in sorted(service.environment.items())],
        "portMappings": [{"name": "http", "containerPort": service.port, "protocol": "tcp", "appProtocol": "http"}],
        "linuxParameters": _linux(service),
        "stopTimeout": service.stop_s,
        "logConfiguration": logs.of(service.role),
    }
    if service.kind == "engine":
        # Its caches lie in the container's own layer, to which root alone may add; it has no capability all the same.
        made["user"] = "0:0"
    if service.gpus:
        made["resourceRequirements"] = [{"type": "GPU", "value": str(service.gpus)}]
    if service.devices:
        # RDMA pins the memory that it writes to, and so does the Neuron runtime.
        made["ulimits"] = [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    if health := _health(service):
        made["healthCheck"] = health
    if service.fetches:
        made["mountPoints"] = [{"sourceVolume": "fetched", "containerPath": FETCHED, "readOnly": True}]
        made["dependsOn"] = [{"containerName": f"fetch-{name}", "condition": "SUCCESS"} for name in service.fetches]
    return made


def _entry_point(service: Service) -> list[str]:
    """The image's own is not asked for. An address that only the task knows is put into the environment by a shell."""
    if not service.own_address:
        return [service.command[0]]
    exports = " ".join(f'{name}="$address"' for name in service.own_address)
    return ["sh", "-c", f'address=$(hostname -i) && export {exports} && exec "$0" "$@"']


def _linux(service: Service) -> dict[str, Any]:
    # The init process ends what ECS Exec leaves behind. Exec writes into the container's root, so that is no read-only.
    made: dict[str, Any] = {"initProcessEnabled": True, "capabilities": {"drop": ["ALL"]}}
    if service.devices:
        made["capabilities"]["add"] = ["IPC_LOCK"]
        made["devices"] = [
            {"hostPath": device, "containerPath": device, "permissions": ["read", "write", "mknod"]}
            for device in service.devices
        ]
    if service.shared_memory_mib:
        made["sharedMemorySize"] = service.shared_memory_mib
    return made


def _health(service: Service) -> dict[str, Any] | None:
    """A completion for an engine; for the router that it lives, for without engines it has nobody to ask.

    /health will not do: before prefill and decode, vllm-router answers it with 503 until it knows both.
    """
    if service.probe is None:
        return None
    here = f"http://127.0.0.1:{service.port}"
    asked = [f"{here}/liveness", ""] if service.kind == "router" else [here + service.probe.path, service.probe.body]
    start = 60 if service.kind == "router" else service.probe.deadline_s
    late = max(0, start - _MOST_START_S)
    interval = min(_MOST_INTERVAL_S, max(30, math.ceil(late / _MOST_TRIES)))
    return {
        "command": ["CMD", "python3", "-c", ASK, *asked, str(_ANSWER_S - 5)],
        "timeout": _ANSWER_S,
        "startPeriod": min(start, _MOST_START_S),
        "interval": interval,
        "retries": min(_MOST_TRIES, max(3, math.ceil(late / interval))),
    }


def _copier(name: str, where: str, limit_s: int, logs: Logs) -> dict[str, Any]:
    return {
        "name": f"fetch-{name}",
        "image": COPIER,
        "essential": False,
        "cpu": 128,
        "memory": 512,
        "command": ["s3", "cp", "--recursive", "--only-show-errors", where, f"{FETCHED}/{name}"],
        # What waits for it gives up after this; where nothing is said, after the agent's three minutes.
        **({"startTimeout": limit_s} if limit_s else {}),
        "mountPoints": [{"sourceVolume": "fetched", "containerPath": FETCHED}],
        "logConfiguration": logs.of(f"fetch-{name}"),
    }
