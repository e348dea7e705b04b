"""What runs of a deployment on ECS: its tasks, what they say of themselves, and their logs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llm_serving import console, processes
from llm_serving.aws import session as clients
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group, format_service_name, list_choices
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as addons
from llm_serving.operations import ecs_tasks, tunnel
from llm_serving.services import rendered
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning, starts
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import container_command
from llm_serving.targets.on_aws import replicas
from llm_serving.targets.on_aws.replicas import ReplicaContainer, ReplicaStatus
from llm_serving.targets.starts import Start
from llm_serving.validation.base import MetricsPage

FILE = "ecs.yaml"
"""The rendered file."""

LAST_LINES = 20
"""Of a log, beside what failed."""

_MAX_LINES = 10_000
"""Most lines of one GetLogEvents. Source: CloudWatch Logs API reference, 2026-11."""

_LATE_S = 30
"""Seconds after which all lines of a moment are in CloudWatch: Docker sends those of each task every 5 s."""

_POLL_INTERVAL_S = 2.0


@dataclass(frozen=True)
class EcsDeployment:
    """A deployment as rendered, and what ECS and its log group have of it."""

    fleet: Fleet
    rendered: Rendered[Any]
    aws: AwsSession

    @property
    def cluster(self) -> str:
        return names.format_cluster_name(self.fleet)

    @property
    def ecs(self) -> Any:
        return self.aws.client("ecs")

    def list_service_names(self, service: Service) -> list[str]:
        """List the ECS services of a service: one for each choice of its pool."""
        choices = list_choices(self.fleet, service.placement.pool, service.node.group if service.node else None)
        return [format_service_name(self.rendered.name, service.name, choice) for choice in range(len(choices))]

    @property
    def all_service_names(self) -> list[str]:
        """The ECS services of all services."""
        return [name for service in self.rendered.services for name in self.list_service_names(service)]

    def describe_services(self) -> Iterator[dict[str, Any]]:
        """Describe the ECS services that run."""
        for ecs_service in ecs_tasks.describe_services(self.ecs, self.cluster, self.all_service_names):
            if ecs_service.get("status") == "ACTIVE":
                yield ecs_service

    def list_tasks(self, service: Service, status: str) -> list[dict[str, Any]]:
        """List the tasks of a service; empty if it or its cluster is not there."""
        return [
            task
            for name in self.list_service_names(service)
            for task in ecs_tasks.list_tasks(self.ecs, self.cluster, serviceName=name, desiredStatus=status)
        ]

    def list_running(self, role: str = "") -> Iterator[tuple[Service, dict[str, Any]]]:
        """List the running tasks of the services of a role, or of all."""
        for service in self.rendered.services:
            if role in ("", service.role):
                yield from ((service, task) for task in self.list_tasks(service, "RUNNING"))

    @property
    def log_group(self) -> str:
        return format_log_group(self.fleet, self.rendered.kind, self.rendered.name)

    def read_last_lines(self, role: str | None, lines: int = LAST_LINES) -> Iterator[str]:
        """Read the last lines of the newest log streams."""
        client, group, stream_names = self.aws.client("logs"), self.log_group, list[str]()
        prefix = f"{role}/" if role else ""
        pages = client.get_paginator("describe_log_streams")
        with clients.ignore_errors("ResourceNotFoundException"):
            streams = pages.paginate(logGroupName=group, orderBy="LastEventTime", descending=True)
            names_in_order = (entry["logStreamName"] for page in streams for entry in page["logStreams"])
            stream_names += itertools.islice((name for name in names_in_order if name.startswith(prefix)), 3)
        for stream in stream_names:
            limit = min(max(1, lines), _MAX_LINES)
            events = client.get_log_events(logGroupName=group, logStreamName=stream, limit=limit)["events"]
            yield from (_format_line(stream, event["message"]) for event in events[:lines])

    def read_recent_events(self, role: str | None, until: float) -> dict[str, dict[str, Any]]:
        """Read what was logged in the seconds before a time when lines may still arrive, and since, by their ids."""
        prefix = {"logStreamNamePrefix": f"{role}/"} if role else {}
        pages = self.aws.client("logs").get_paginator("filter_log_events")
        since = int((until - _LATE_S) * 1000)
        events = (page["events"] for page in pages.paginate(logGroupName=self.log_group, startTime=since, **prefix))
        return {event["eventId"]: event for event in itertools.chain.from_iterable(events)}

    def read_first_events(self, service: Service, task: dict[str, Any]) -> list[dict[str, Any]]:
        """Read the beginning of a task's log, of up to 1 MiB; none where it has logged nothing."""
        stream = f"{service.role}/{service.role}/{shorten_arn(task['taskArn'])}"
        with clients.ignore_errors("ResourceNotFoundException"):
            response = self.aws.client("logs").get_log_events(
                logGroupName=self.log_group, logStreamName=stream, startFromHead=True
            )
            return list(response["events"])
        return []


def read_deployed(plan: DeploymentPlan) -> EcsDeployment:
    document = rendered.read(planning.ensure_rendered(plan, FILE), plan.fleet, Rendered[Any])
    return EcsDeployment(plan.fleet.value, document.value, plan.aws)


@clients.translate_errors()
def list_replicas(plan: DeploymentPlan) -> list[ReplicaStatus]:
    """List the deployment's tasks, by role and name; of a service that should have some and has none, itself."""
    deployed = read_deployed(plan)
    running = list(deployed.list_running())
    rows = [
        *itertools.starmap(_build_replica_status, running),
        *_list_empty(deployed, {row.name for row, _ in running}),
    ]
    return sorted(rows, key=lambda replica: (replica.role, replica.name))


def _list_empty(deployed: EcsDeployment, running: Container[str]) -> Iterator[ReplicaStatus]:
    """Yield a row for each service without a task that ECS should run, such as one that it gave up."""
    empty = [row for row in deployed.rendered.services if row.replicas.min and row.name not in running]
    with clients.ignore_errors("ClusterNotFoundException"):
        described = deployed.describe_services() if empty else ()
        deployments = {row["serviceName"]: row["deployments"] for row in described}
        for service in empty:
            rollouts = [row for name in deployed.list_service_names(service) for row in deployments.get(name, ())]
            if rollouts:
                failed = [row for row in rollouts if row.get("rolloutState") == "FAILED"]
                reason = (failed[0].get("rolloutStateReason") or "failed") if failed else "no task"
                yield ReplicaStatus(service.name, service.role, reason, 0, "")


@clients.translate_errors()
def list_starts(plan: DeploymentPlan) -> list[Start]:
    """List how long the deployment's tasks took to start, by role and name."""
    deployed = read_deployed(plan)
    starts = [
        _build_start(service, task, deployed.read_first_events(service, task), plan.deployment.engine)
        for service, task in deployed.list_running()
    ]
    return sorted(starts, key=lambda start: (start.role, start.name))


@clients.translate_errors()
def list_containers(plan: DeploymentPlan, role: str) -> list[ReplicaContainer]:
    """List the containers of a role's tasks."""
    addons.require_tools(tunnel.TOOLS)
    deployed = read_deployed(plan)
    run = functools.partial(container_command.run, plan.aws, deployed.cluster)
    running = [(service, shorten_arn(task["taskArn"])) for service, task in deployed.list_running(role)]
    return [
        ReplicaContainer(task, not (service.node and service.node.rank), functools.partial(run, task, role))
        for service, task in running
    ]


@clients.translate_errors()
def show_logs(plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
    """Print the tasks' logs, each line with its role and task.

    Raises:
        CheckFailed: there is none, and none is waited for.
    """
    deployed, last_read = read_deployed(plan), time.time()
    shown = deployed.read_recent_events(role, last_read) if follow else {}
    last_lines = list(deployed.read_last_lines(role, lines))
    for line in last_lines:
        console.print_log(line)
    if not (last_lines or follow) and lines:
        raise replicas.build_no_logs(plan, role)
    while follow:
        time.sleep(_POLL_INTERVAL_S)
        until, last_read = last_read, time.time()
        events = deployed.read_recent_events(role, until)
        for event in (event for event_id, event in events.items() if event_id not in shown):
            console.print_log(_format_line(event["logStreamName"], event["message"]))
        shown = events


@clients.translate_errors()
def list_metrics_pages(plan: DeploymentPlan) -> list[MetricsPage]:
    """List the metrics pages of the deployment's tasks, by their addresses in the VPC."""
    addresses = [
        (shorten_arn(task["taskArn"]), service.role, ecs_tasks.get_address(task))
        for service, task in read_deployed(plan).list_running()
        if service.metrics_path and not (service.node and service.node.rank)
    ]
    return replicas.build_pages(plan.deployment.services, [entry for entry in addresses if entry[-1]])


@contextlib.contextmanager
def open_tunnel(plan: DeploymentPlan, port: int = 0) -> Iterator[str]:
    """Forward a port of this machine to a task that clients call; suits trials, not thousands of requests a second."""
    planning.require_endpoint(plan)
    addons.require_tools(tunnel.TOOLS)
    deployed, aws = read_deployed(plan), plan.aws
    entry = deployed.rendered.entry
    with clients.translate_errors():
        containers = [
            (shorten_arn(task["taskArn"]), container["runtimeId"])
            for _, task in deployed.list_running(entry.role)
            for container in task["containers"]
            if container["name"] == entry.role and container.get("runtimeId")
        ]
    if not containers:
        raise Unavailable(f"{plan.deployment.name}: no {entry.role} task is running")
    target = f"ecs:{deployed.cluster}_{'_'.join(containers[0])}"
    [near_port] = processes.claim_free_ports(1)
    command = ["aws", "ssm", "start-session", "--region", aws.region, "--target", target]
    command += ["--document-name", "AWS-StartPortForwardingSession"]
    command += ["--parameters", f"portNumber={port or entry.port},localPortNumber={near_port}"]
    console.show_command(command, environment=aws.child_env)
    with tunnel.run(command, near_port, aws, plan.directory.logs):
        yield f"http://127.0.0.1:{near_port}"


def _build_replica_status(service: Service, task: dict[str, Any]) -> ReplicaStatus:
    pending_reason = "not healthy yet" if task["lastStatus"] == "RUNNING" else task["lastStatus"].lower()
    return ReplicaStatus(
        name=shorten_arn(task["taskArn"]),
        role=service.role,
        state=READY if is_ready(service, task) else pending_reason,
        restarts=0,
        machine=shorten_arn(task.get("containerInstanceArn", "")) or task.get("launchType", "").lower(),
    )


def _build_start(service: Service, task: dict[str, Any], events: Sequence[dict[str, Any]], engine: str) -> Start:
    """Build a task's start; its first answer is the first to the probe's request in the access log, text or JSON."""
    answer = re.compile(rf'"POST {re.escape(service.probe.path)} HTTP/1\.1\\?" 200') if service.probe else None
    answered = next((event["timestamp"] / 1000 for event in events if answer and answer.search(event["message"])), None)
    load_s, compile_s = starts.read_log((event["message"] for event in events), engine)
    is_pulled = "pullStoppedAt" in task
    return Start(
        name=shorten_arn(task["taskArn"]),
        role=service.role,
        pull_s=(task["pullStoppedAt"] - task["pullStartedAt"]).total_seconds() if is_pulled else None,
        load_s=load_s,
        compile_s=compile_s,
        first_answer_s=answered - task["createdAt"].timestamp() if answered else None,
    )


def is_ready(service: Service, task: dict[str, Any]) -> bool:
    """Return whether a task runs, and is healthy if it is checked."""
    is_checked = service.probe is not None or bool(service.ready_file)
    healthy = task.get("healthStatus") == "HEALTHY" or not is_checked
    return bool(task["lastStatus"] == "RUNNING" and healthy)


def _format_line(stream: str, message: str) -> str:
    """Format a line with its role and task; streams are named ROLE/CONTAINER/TASK."""
    role, _, container_and_task = stream.partition("/")
    return f"{role} {shorten_arn(container_and_task)[:8]} | {message.rstrip()}"


def shorten_arn(arn: str) -> str:
    return arn.rpartition("/")[2]
