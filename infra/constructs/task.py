"""A task definition of ECS: one service's container, what copies to it from S3, and containers beside it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import iam
from infra.constructs.fleet_stack import FleetStack
from llm_serving import paths
from llm_serving.catalog.instances import DEVICES
from llm_serving.fleet import aws_limits, image_cache
from llm_serving.services.service import Service

COPIER, FETCH_DIR = "fetch", "/scratch/fetched"
"""Where files of S3 are copied to: a volume on the disk that holds images, the instance's own NVMe where the pool has
that."""

PROBE_PROGRAM = (paths.CHARTS / "inference" / "files" / "probe.py").read_text(encoding="utf-8")
"""The probe as `python3 -c PROBE_PROGRAM URL BODY SECONDS`."""

NODE_PROGRAM = (paths.CHARTS / "inference" / "files" / "node.py").read_text(encoding="utf-8")
"""The check of a node as `python3 -c NODE_PROGRAM ARGUMENTS -- COMMAND`, which then takes its place."""

ContainerDefinition = dict[str, object]

NO_CAPABILITIES = {"capabilities": {"drop": ["ALL"]}}
"""A container's linuxParameters. Fargate drops any too, and adds SYS_PTRACE at most. Source: ECS API reference,
KernelCapabilities, 2026-11."""

_HEALTH_TIMEOUT_S = 25
_READY_S = 120
"""Longest start of a container with a ready file, in seconds, before ECS counts it as failed."""


@dataclass(frozen=True)
class TaskRoles:
    """By whom tasks are started, and as whom they act."""

    execution: aws.iam_role.IamRole
    task: aws.iam_role.IamRole

    @property
    def policies(self) -> list[ITerraformDependable]:
        """Policies of both roles, which tasks depend on."""
        return [*iam.list_policies(self.execution), *iam.list_policies(self.task)]


@dataclass(frozen=True)
class LogDestination:
    """Where containers write to."""

    group: str
    region: str

    def build_configuration(self, stream: str) -> dict[str, object]:
        """Return a container definition's logConfiguration."""
        options = {"awslogs-group": self.group, "awslogs-region": self.region, "awslogs-stream-prefix": stream}
        # A log that cannot be shipped must not stop an answer.
        return {"logDriver": "awslogs", "options": {**options, "mode": "non-blocking", "max-buffer-size": "25m"}}


def add_definition(
    stack: FleetStack,
    service: Service,
    *,
    family: str,
    roles: TaskRoles,
    logs: LogDestination,
    image_prefixes: Mapping[str, str],
    sidecars: Sequence[ContainerDefinition] = (),
    disk_bytes: int = 0,
) -> aws.ecs_task_definition.EcsTaskDefinition:
    """Add the task definition of a service.

    Args:
        image_prefixes: of the fleet's image cache, by the host that each replaces.
        sidecars: containers beside the service's own.
        disk_bytes: of the disk on Fargate; 0 for the 20 GiB that each task has there.
    """
    # In the order of starting.
    containers = [*_build_copy_containers(service, logs), _build_main_container(service, logs, sidecars), *sidecars]
    containers = [
        {**container, "image": image_cache.rewrite(str(container["image"]), image_prefixes)} for container in containers
    ]
    task_definition = aws.ecs_task_definition
    on_fargate = not service.placement.pool
    return task_definition.EcsTaskDefinition(
        stack,
        f"{service.name}-task",
        family=family,
        network_mode="awsvpc",
        requires_compatibilities=["FARGATE" if on_fargate else "EC2"],
        cpu=str(service.resources.cpus * 1024) if on_fargate else None,
        memory=str(_count_mebibytes(service.resources.memory_bytes)) if on_fargate else None,
        execution_role_arn=roles.execution.arn,
        task_role_arn=roles.task.arn,
        container_definitions=json.dumps(containers),
        volume=_build_volumes(service) or None,
        ephemeral_storage={"size_in_gib": math.ceil(disk_bytes / 2**30)} if disk_bytes else None,
        runtime_platform={"operating_system_family": "LINUX", "cpu_architecture": "X86_64"} if on_fargate else None,
        # Else Terraform deregisters the one before as it starts, and ECS takes a rollout that fails back to that: no
        # service may be updated to an inactive definition from ten minutes on. Source: ECS API reference,
        # DeregisterTaskDefinition, 2026-11.
        skip_destroy=True,
    )


def add_test_request_definition(
    stack: FleetStack, service: Service, *, family: str, url: str, roles: TaskRoles, logs: LogDestination
) -> aws.ecs_task_definition.EcsTaskDefinition:
    """Add the task definition that sends a test request to a service, as a client in the VPC would."""
    assert service.probe
    body = json.dumps(service.probe.body, sort_keys=True) if service.probe.body else ""
    # JSON within the rendered file: its escapes may hide what Terraform would evaluate, and that may read files here.
    body = body.replace("${", "$${").replace("%{", "%%{")
    container = {
        "name": "ask",
        "image": service.image,
        "essential": True,
        "entryPoint": ["python3", "-c", PROBE_PROGRAM],
        "command": [url + service.probe.path, body, "120"],
        "linuxParameters": NO_CAPABILITIES,
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


def build_companion(service: Service, logs: LogDestination) -> ContainerDefinition:
    """Return a container beside another one, which both end the task; it is reached in the task only."""
    container = _build_main_container(service, logs, ())
    container.pop("portMappings", None)
    return container


def _build_main_container(
    service: Service, logs: LogDestination, sidecars: Sequence[ContainerDefinition]
) -> ContainerDefinition:
    # The containers of a task on Fargate share what the task has.
    shared = [] if service.placement.pool else sidecars
    container: ContainerDefinition = {
        "name": service.role,
        "image": service.image,
        "essential": True,
        "cpu": service.resources.cpus * 1024 - sum(int(str(sidecar["cpu"])) for sidecar in shared),
        "memory": _count_mebibytes(service.resources.memory_bytes)
        - sum(int(str(sidecar["memory"])) for sidecar in shared),
        "entryPoint": _build_entry_point(service),
        "command": _build_command(service)[0 if service.address_variables else 1 :],
        "environment": [{"name": name, "value": value} for name, value in sorted(service.env.items())],
        "linuxParameters": _build_linux_parameters(service),
        "stopTimeout": service.stop.stop_s,
        "logConfiguration": logs.build_configuration(service.role),
    }
    if service.port:
        container["portMappings"] = [
            {"name": "http", "containerPort": service.port, "protocol": "tcp", "appProtocol": "http"}
        ]
    if service.is_root:
        container["user"] = "0:0"  # it has no capability all the same
    if service.resources.device == DEVICES["gpu"]:
        container["resourceRequirements"] = [{"type": "GPU", "value": str(service.resources.accelerators)}]
    if service.resources.device_files:
        # RDMA pins the memory that it writes to, and so does the Neuron runtime.
        container["ulimits"] = [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    if health_check := _build_health_check(service):
        container["healthCheck"] = health_check
    if dependencies := _list_dependencies(service, sidecars):
        container["dependsOn"] = dependencies
    if mounts := _list_mounts(service):
        container["mountPoints"] = mounts
    return container


def _list_dependencies(service: Service, sidecars: Sequence[ContainerDefinition]) -> list[dict[str, str]]:
    """List what the main container waits for: its companions, and the copies of its files.

    A companion starts before it and ends after it, with the requests under way: ECS reverses the order as it stops a
    task. Source: ECS API reference, ContainerDefinition, dependsOn, 2026-11.
    """
    conditions = {str(sidecar["name"]): "START" for sidecar in sidecars if _is_companion(sidecar)}
    if service.prefetch:
        conditions[COPIER] = "SUCCESS"
    return [{"containerName": name, "condition": condition} for name, condition in conditions.items()]


def _list_mounts(service: Service) -> list[dict[str, object]]:
    mounts: list[dict[str, object]] = [
        {"sourceVolume": name, "containerPath": mount.path, "readOnly": False} for name, mount in service.mounts.items()
    ]
    if service.prefetch:
        mounts.append({"sourceVolume": "fetched", "containerPath": FETCH_DIR, "readOnly": True})
    return mounts


def _is_companion(sidecar: ContainerDefinition) -> bool:
    """Return whether the task ends with it, and it waits for no other container."""
    return bool(sidecar["essential"]) and "dependsOn" not in sidecar


def _build_volumes(service: Service) -> list[aws.ecs_task_definition.EcsTaskDefinitionVolume]:
    volume = aws.ecs_task_definition.EcsTaskDefinitionVolume
    mounts = [volume(name=name, host_path=mount.node_path) for name, mount in service.mounts.items()]
    return [*mounts, *([volume(name="fetched")] if service.prefetch else [])]


def _build_entry_point(service: Service) -> list[str]:
    """Return the entry point, whatever the image's own; a shell sets variables with the task's own address."""
    if not service.address_variables:
        return _build_command(service)[:1]
    exports = " ".join(f'{name}="$address"' for name in service.address_variables)
    return ["sh", "-c", f'address=$(hostname -i) && export {exports} && exec "$0" "$@"']


def _build_command(service: Service) -> list[str]:
    """Return the command, after the check of the node: GPUs of another container would be GPUs of its own."""
    check = ["python3", "-c", NODE_PROGRAM, *service.node_check, "--"] if service.node_check else []
    return [*check, *service.command]


def _build_linux_parameters(service: Service) -> dict[str, object]:
    # The init process ends what ECS Exec leaves behind. Exec writes into the container's root, so that is no read-only.
    capabilities = {"drop": ["ALL"]}
    parameters: dict[str, object] = {"initProcessEnabled": True, "capabilities": capabilities}
    if service.resources.device_files:
        capabilities["add"] = ["IPC_LOCK"]
        parameters["devices"] = [
            {"hostPath": device, "containerPath": device, "permissions": ["read", "write", "mknod"]}
            for device in service.resources.device_files
        ]
    if service.resources.shared_memory_bytes:
        parameters["sharedMemorySize"] = _count_mebibytes(service.resources.shared_memory_bytes)
    return parameters


def _build_health_check(service: Service) -> dict[str, object] | None:
    """Return the check of the service's own health, which a full queue does not change; None if nothing proves it."""
    if service.ready_file:
        check = {"interval": 10, "timeout": 5, "retries": 3, "startPeriod": _READY_S}
        return {"command": ["CMD", "test", "-e", service.ready_file], **check}
    if service.probe is None:
        return None
    start_s = math.ceil(service.probe.deadline_s)
    remaining_s = max(0, start_s - aws_limits.HEALTH_START_S)
    interval = min(aws_limits.HEALTH_INTERVAL_S, max(30, math.ceil(remaining_s / aws_limits.HEALTH_RETRIES)))
    url = f"http://127.0.0.1:{service.port}{service.probe.health or service.probe.path}"
    return {
        "command": ["CMD", "python3", "-c", PROBE_PROGRAM, url, "", str(_HEALTH_TIMEOUT_S - 5)],
        "timeout": _HEALTH_TIMEOUT_S,
        "startPeriod": min(start_s, aws_limits.HEALTH_START_S),
        "interval": interval,
        "retries": min(aws_limits.HEALTH_RETRIES, max(3, math.ceil(remaining_s / interval))),
    }


def _build_copy_containers(service: Service, logs: LogDestination) -> list[ContainerDefinition]:
    """Return what copies files of S3 before the service starts: one container, for a task has ten at the most."""
    prefetch = service.prefetch
    if prefetch is None:
        return []
    skipped = "".join(f" --exclude {shlex.quote(files)}" for files in prefetch.skip)
    copy = f'aws s3 cp --recursive --only-show-errors{skipped} "$1" "$2"'
    return [
        {
            "name": COPIER,
            "image": prefetch.image,
            "essential": False,
            "cpu": 128,
            "memory": 512,
            "entryPoint": ["sh", "-ec", f"while [ $# -gt 0 ]; do {copy}; shift 2; done", COPIER],
            "command": [word for name, uri in prefetch.uris.items() for word in (uri, f"{FETCH_DIR}/{name}")],
            # The AWS CLI's three would not outlast S3's 503 while many tasks start, and the next task begins anew.
            "environment": [{"name": "AWS_MAX_ATTEMPTS", "value": "10"}],
            # Dependent containers stop waiting after this; the agent's default is three minutes.
            "startTimeout": prefetch.timeout_s * len(prefetch.uris),
            "linuxParameters": NO_CAPABILITIES,
            "mountPoints": [{"sourceVolume": "fetched", "containerPath": FETCH_DIR}],
            "logConfiguration": logs.build_configuration(COPIER),
        }
    ]


def _count_mebibytes(count: int) -> int:
    return count // 2**20
