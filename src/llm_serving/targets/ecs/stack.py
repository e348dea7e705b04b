"""The Terraform stack KIND-NAME of a deployment on ECS, and the readiness of its services.

An engine's container is healthy once its server answers, which vLLM starts with the engine behind it ready; at the end
a task in the VPC asks for a completion, or whether the Batch API serves, as a client would. ECS rolls back what
fails to what ran before; where nothing did, the next deploy starts it again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_serving import console, processes
from llm_serving.aws import session as clients
from llm_serving.aws.session import AwsSession
from llm_serving.catalog.engines import StartLines
from llm_serving.fleet import names
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.fleet.ecs_services import format_log_group, format_service_name, list_choices
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as addons
from llm_serving.operations import apply, context, ecs_tasks, tunnel
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.services import kinds, rendered
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning, starts
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import container_command
from llm_serving.targets.on_aws import deployment_stack, images, metrics_pages
from llm_serving.targets.on_aws.replica_container import ReplicaContainer
from llm_serving.targets.on_aws.replica_status import ReplicaStatus
from llm_serving.targets.starts import Start
from llm_serving.terraform import stack_folder
from llm_serving.validation.base import MetricsPage

EMULATED = "the embedded AWS stores task definitions and services but runs no tasks: the endpoint does not respond"

_MACHINES_TIMEOUT_S = INSTANCE_START_S

FILE = "ecs.yaml"
"""The rendered file."""

OnProgress = Callable[[str], None]

_VARIABLES = "blueprint.auto.tfvars.json"
"""Values of the stack's variables, in its folder; `infra.constructs.task_service` says what they do."""

_TEST_TIMEOUT_S = 300
_MANAGED_TIMEOUT_S = 600
_POLL_INTERVAL_S = 10.0
_GIVEN_UP = "ECS rolled it back to what ran before; if nothing did, it starts no more tasks until you deploy again"
_LAST_LINES = 20


@dataclass(frozen=True)
class _EcsDeployment:
    """A deployment as rendered, and the ECS services of its roles."""

    fleet: Fleet
    deployment: Rendered[Any]

    @property
    def cluster(self) -> str:
        return names.format_cluster_name(self.fleet)

    def list_service_names(self, service: Service) -> list[str]:
        """List the ECS services of a service: one for each choice of its pool."""
        choices = list_choices(self.fleet, service.placement.pool, service.node.group if service.node else None)
        return [format_service_name(self.deployment.name, service.name, choice) for choice in choices]

    @property
    def all_service_names(self) -> Iterator[str]:
        """The ECS services of all services."""
        return (name for service in self.deployment.services for name in self.list_service_names(service))

    @property
    def log_group(self) -> str:
        """The log group of the tasks."""
        return format_log_group(self.fleet, self.deployment.kind, self.deployment.name)


def diff(plan: DeploymentPlan) -> str:
    """Return what a deploy would change, as Terraform plans it; empty if nothing.

    Raises:
        InputError: the rendered file was edited by hand.
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed.
    """
    file = planning.write_rendered(plan)
    with deployment_stack.lock(plan) as data:
        stack_context = deployment_stack.build_context(plan, file, data)
        with apply.use_plans(stack_context):
            return deployment_stack.describe_changes(_plan(stack_context))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Apply the stack and wait until it is ready; returns whether anything changed.

    What an earlier deploy did not see through shows in no plan: its tasks are waited for, and started again where ECS
    gave them up.

    Args:
        confirm: shows the changes; raises if the user declines.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CheckFailed: an image is missing, or it did not become ready and ECS gave it up.
        CommandFailed: Terraform failed; run the command again to resume.
    """
    file = planning.write_rendered(plan, force=force)
    with deployment_stack.lock(plan) as data:
        stack_context = deployment_stack.build_context(plan, file, data)
        with apply.use_plans(stack_context):
            stack = _plan(stack_context)
            changes = deployment_stack.describe_changes(stack)
            rollouts = {} if stack_context.endpoint else _read_rollouts(plan)
            if not changes and all(rollout.get("rolloutState") == "COMPLETED" for rollout in rollouts.values()):
                return False
            given_up = {name: rollout for name, rollout in rollouts.items() if rollout.get("rolloutState") == "FAILED"}
            if not stack_context.endpoint:
                _require_parts(plan, stack.name)
            if changes or given_up:
                confirm(changes or _describe_restart(given_up))
            if changes:
                apply.apply(stack_context, [stack])
        if stack_context.endpoint:
            console.err.print(f"  {EMULATED}", markup=False)
        elif plan.deployment.services:  # Terraform waits for what AWS runs
            _see_through(plan, given_up, context.read_states(stack_context)[stack.name].outputs)
    return bool(changes or given_up)


def _require_parts(plan: DeploymentPlan, stack_name: str) -> None:
    """Check that all images are there, and that the names of the ECS services are free.

    Raises:
        CheckFailed: an image is missing, or a name is taken.
        Unavailable: AWS cannot be asked.
    """
    deployed = _read_deployed(plan)
    images.require_images(plan, (service.image for service in deployed.deployment.services))
    _require_names(plan, deployed, stack_name)


def _see_through(plan: DeploymentPlan, given_up: Mapping[str, Mapping[str, Any]], outputs: Mapping[str, Any]) -> None:
    """Wait until the tasks are ready, of services that ECS gave up too, and call them once.

    Raises:
        CheckFailed: they are not ready in time, or ECS gave them up; or the call failed.
    """
    deployed, aws = _read_deployed(plan), plan.aws
    _start_again(aws, deployed, given_up)
    _scale_from_zero(aws, deployed)
    timeout_s = _MACHINES_TIMEOUT_S + planning.compute_start_s(deployed.deployment.services)
    with console.step(f"Wait until {plan.deployment.name} is ready (up to {timeout_s / 60:.0f} min)") as step:
        _wait_until_steady(
            aws,
            deployed,
            outputs["definitions"],
            timeout_s,
            lambda text: setattr(step, "note", text),
            past={rollout["id"] for rollout in given_up.values()},
        )
    with console.step("Send a test request"):
        _send_test_request(aws, deployed, outputs["ask"])


def _require_names(plan: DeploymentPlan, deployed: _EcsDeployment, stack_name: str) -> None:
    """Check that no other deployment has an ECS service of these names: `a-b` with a role `c`, and `a` with `b-c`; and
    that no role has the name of another's second choice.

    Raises:
        CheckFailed: some are taken, or would be twice; names all of them.
        Unavailable: AWS cannot be asked.
    """
    cluster, service_names = deployed.cluster, list(deployed.all_service_names)
    if twice := [name for name, count in Counter(service_names).items() if count > 1]:
        raise CheckFailed(
            f"{plan.deployment.name}: two of its ECS services would be {', '.join(twice)}: the second choice of a pool "
            "adds -1 to a role's name. Nothing was changed. Fix: give the other role another name"
        )
    taken: list[str] = []
    with clients.translate_errors():
        for ecs_service in ecs_tasks.describe_services(plan.aws.client("ecs"), cluster, service_names):
            owner = {tag["key"]: tag["value"] for tag in ecs_service.get("tags", [])}.get("stack")
            if ecs_service.get("status") == "ACTIVE" and owner != stack_name:
                taken.append(f"{ecs_service['serviceName']} (of {owner or 'no stack'})")
    if taken:
        raise CheckFailed(
            f"{plan.deployment.name}: its ECS services have names that are taken: {', '.join(taken)}. Nothing was "
            f"changed. Fix: choose another `name` in {plan.blueprint.path}"
        )


def wait_until_managed_run(plan: DeploymentPlan) -> None:
    """Wait until what AWS runs in place of tasks does its work: after a deploy or a failure that takes minutes.

    Raises:
        CheckFailed: it does not in time; says how far it is.
        Unavailable: it is not deployed, or AWS refuses or does not answer.
    """
    name, deadline = plan.deployment.name, time.monotonic() + _MANAGED_TIMEOUT_S
    with console.step(f"Wait until {name} runs (up to {_MANAGED_TIMEOUT_S / 60:.0f} min)") as step:
        while True:
            with clients.translate_errors():
                rows = kinds.get(plan.deployment.kind).list_managed(plan.deployment, plan.aws.client)
            if not rows:
                raise Unavailable(f"{name}: not deployed on ecs. Fix: run blueprint deploy.")
            pending = [f"{row['name']} is {row['state']}" for row in rows if row["state"] != READY]
            if not pending:
                return
            if time.monotonic() > deadline:
                raise CheckFailed(f"{name} does not run: {', '.join(pending)}. Fix: see `blueprint logs`.")
            step.note = ", ".join(pending)
            time.sleep(_POLL_INTERVAL_S)


def list_replicas(plan: DeploymentPlan) -> list[ReplicaStatus]:
    """List the deployment's tasks, by role and name.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    deployed, ecs = _read_deployed(plan), plan.aws.client("ecs")
    with clients.translate_errors():
        tasks = [_build_replica_status(service, task) for service, task in _list_running(ecs, deployed)]
    return sorted(tasks, key=lambda replica: (replica.role, replica.name))


def list_starts(plan: DeploymentPlan) -> list[Start]:
    """List how long the deployment's tasks took to start, by role and name.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    deployed, ecs, logs = _read_deployed(plan), plan.aws.client("ecs"), plan.aws.client("logs")
    lines = starts.find_lines(plan.deployment.engine)
    with clients.translate_errors():
        found = [
            _build_start(service, task, _read_first_events(logs, deployed, service, task), lines)
            for service, task in _list_running(ecs, deployed)
        ]
    return sorted(found, key=lambda start: (start.role, start.name))


def list_containers(plan: DeploymentPlan, role: str) -> list[ReplicaContainer]:
    """List the containers of a role's tasks.

    Raises:
        Unavailable: the AWS command line or its session plugin is missing, or AWS refuses or does not answer.
    """
    addons.require_tools(tunnel.TOOLS)
    deployed, aws = _read_deployed(plan), plan.aws
    cluster, ecs = deployed.cluster, aws.client("ecs")
    with clients.translate_errors():
        tasks = [(service, _shorten_arn(task["taskArn"])) for service, task in _list_running(ecs, deployed, role)]
    return [
        ReplicaContainer(
            task,
            not (service.node and service.node.rank),
            functools.partial(container_command.run, aws, cluster, task, role),
        )
        for service, task in tasks
    ]


def show_logs(plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
    """Print the tasks' logs, each line with its role and task.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    deployed, client = _read_deployed(plan), plan.aws.client("logs")
    since = 0
    with clients.translate_errors():
        for line in _read_last_lines(client, deployed, role, lines):
            console.out.print(line, markup=False)
        while follow:
            since = since or int(time.time() * 1000)
            time.sleep(2)
            for event in _list_events(client, deployed, role, since):
                since = max(since, event["timestamp"] + 1)
                console.out.print(_format_line(event["logStreamName"], event["message"]), markup=False)


def list_metrics_pages(plan: DeploymentPlan) -> list[MetricsPage]:
    """List the metrics pages of the deployment's tasks, by their addresses in the VPC.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    deployed, ecs = _read_deployed(plan), plan.aws.client("ecs")
    with clients.translate_errors():
        addresses = [
            (_shorten_arn(task["taskArn"]), service.role, ecs_tasks.get_address(task))
            for service, task in _list_running(ecs, deployed)
            if service.metrics_path and not (service.node and service.node.rank)
        ]
    return metrics_pages.build(plan.deployment.services, [entry for entry in addresses if entry[-1]])


@contextlib.contextmanager
def open_tunnel(plan: DeploymentPlan, port: int = 0) -> Iterator[str]:
    """Forward a port of this machine to a task that clients call; suits trials, not thousands of requests per second.

    Args:
        port: another one of the task than that of clients.

    Raises:
        Unavailable: the AWS command line or its session plugin is missing, or no such task runs.
    """
    planning.require_endpoint(plan)
    addons.require_tools(tunnel.TOOLS)
    deployed, aws = _read_deployed(plan), plan.aws
    entry = deployed.deployment.entry
    with clients.translate_errors():
        tasks = [task for _, task in _list_running(aws.client("ecs"), deployed, entry.role)]
    containers = [
        (_shorten_arn(task["taskArn"]), container["runtimeId"])
        for task in tasks
        for container in task["containers"]
        if container["name"] == entry.role and container.get("runtimeId")
    ]
    if not containers:
        raise Unavailable(f"{plan.deployment.name}: no {entry.role} task is running")
    task, container = containers[0]
    command = [
        "aws",
        "ssm",
        "start-session",
        "--region",
        aws.region,
        "--target",
        f"ecs:{deployed.cluster}_{task}_{container}",
    ]
    [near_port] = processes.claim_free_ports(1)
    command += ["--document-name", "AWS-StartPortForwardingSession"]
    command += ["--parameters", f"portNumber={port or entry.port},localPortNumber={near_port}"]
    console.show_command(command, environment=aws.child_env)
    with tunnel.run(command, near_port, aws, plan.directory.logs):
        yield f"http://127.0.0.1:{near_port}"


def destroy(plan: DeploymentPlan) -> bool:
    """Destroy the stack and wait until its tasks are gone; returns whether there was one.

    Raises:
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed; run the command again to resume.
    """
    with deployment_stack.lock(plan) as data:
        stack_context = deployment_stack.build_context(plan, planning.ensure_rendered(plan, FILE), data)
        return deployment_stack.destroy(plan, stack_context)


def _plan(stack_context: FleetContext) -> StackPlan:
    """Plan the stack; where services would be replaced, as for other capacity providers, move their tasks instead."""
    [folder] = stack_context.folders.values()
    declared = stack_folder.read_stack(folder).get("variable", {})
    for force in (False, True):
        values = {name: value for name, value in {"force_new_deployment": force}.items() if name in declared}
        (folder / _VARIABLES).write_text(json.dumps(values), encoding="utf-8")
        [stack] = fleet_plans.create(stack_context)
        if not any(
            address.startswith("aws_ecs_service.") and change.verb == "replaced"
            for address, change in stack.plan.resources.items()
        ):
            break
    return stack


def _read_deployed(plan: DeploymentPlan) -> _EcsDeployment:
    return _EcsDeployment(
        plan.fleet.value, rendered.read(planning.ensure_rendered(plan, FILE), plan.fleet, Rendered[Any]).value
    )


def _count_initial(service: Service) -> int:
    """Return the number of tasks that a service starts with, and that a deploy waits for."""
    return max(1, service.replicas.min)


def _read_rollouts(plan: DeploymentPlan) -> dict[str, dict[str, Any]]:
    """Read the last deployment of each ECS service that is there, by the service's name."""
    deployed, ecs = _read_deployed(plan), plan.aws.client("ecs")
    with clients.translate_errors():
        services = list(ecs_tasks.describe_services(ecs, deployed.cluster, [*deployed.all_service_names]))
    return {
        service["serviceName"]: rollout
        for service in services
        for rollout in service["deployments"]
        if service.get("status") == "ACTIVE" and rollout["status"] == "PRIMARY"
    }


def _describe_restart(given_up: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"  {name}: {rollout.get('rolloutStateReason') or 'failed'}" for name, rollout in given_up.items()]
    return "\n".join(("no change, but ECS gave up an earlier deploy; its tasks will be started again:", *lines))


def _start_again(aws: AwsSession, deployed: _EcsDeployment, given_up: Mapping[str, Mapping[str, Any]]) -> None:
    """Start the tasks of services anew where ECS gave up; a failed deployment starts none (ECS API reference, 2026-11).

    A service that Terraform just changed has a new deployment already.
    """
    ecs, cluster = aws.client("ecs"), deployed.cluster
    for name, rollout in given_up.items():
        with clients.translate_errors():
            [ecs_service] = ecs.describe_services(cluster=cluster, services=[name])["services"]
            if any(
                found["status"] == "PRIMARY" and found["id"] == rollout["id"] for found in ecs_service["deployments"]
            ):
                ecs.update_service(cluster=cluster, service=name, forceNewDeployment=True)


def _scale_from_zero(aws: AwsSession, deployed: _EcsDeployment) -> None:
    """Start one replica of each role that scaled to zero, so that the test request gets a response."""
    ecs, cluster = aws.client("ecs"), deployed.cluster
    for service in deployed.deployment.scale_to_zero_services:
        service_name = deployed.list_service_names(service)[0]
        with clients.translate_errors():
            [ecs_service] = ecs.describe_services(cluster=cluster, services=[service_name])["services"]
            if ecs_service["desiredCount"] == 0:
                ecs.update_service(cluster=cluster, service=service_name, desiredCount=_count_initial(service))


def _wait_until_steady(
    aws: AwsSession,
    deployed: _EcsDeployment,
    definitions: Mapping[str, str],
    timeout_s: float,
    on_progress: OnProgress,
    *,
    past: Container[str],
) -> None:
    """Wait until every service has all of its tasks, of the new definitions, and each is ready.

    Tasks may run on any choice of their pool: if the first has no instances, another one serves.

    Args:
        past: IDs of ECS deployments that failed before, and may still be listed.

    Raises:
        CheckFailed: one failed and was rolled back, or is not ready in time; with its reason and log.
    """
    ecs, deadline = aws.client("ecs"), time.monotonic() + timeout_s
    while True:
        pending = []
        for service in deployed.deployment.services:
            with clients.translate_errors():
                failure = _find_failure(ecs, deployed, service, definitions[service.name], past)
                ready = _count_ready_tasks(ecs, deployed, service, definitions[service.name])
            if failure:
                raise CheckFailed(_describe_failure(aws, deployed, service, failure, _GIVEN_UP))
            pending += [(service, ready)] if ready < _count_initial(service) else []
        on_progress(
            ", ".join(f"{service.name} {ready} of {_count_initial(service)}" for service, ready in pending) or "done"
        )
        if not pending:
            return
        if time.monotonic() > deadline:
            hint = "ECS keeps trying; see `blueprint logs --follow`"
            raise CheckFailed(_describe_failure(aws, deployed, pending[0][0], "timed out", hint))
        time.sleep(_POLL_INTERVAL_S)


def _find_failure(ecs: Any, deployed: _EcsDeployment, service: Service, definition: str, past: Container[str]) -> str:
    """Return why ECS gave up a service's deployment; empty if it did not."""
    described = ecs.describe_services(cluster=deployed.cluster, services=deployed.list_service_names(service))
    for ecs_service in described["services"]:
        for rollout in ecs_service["deployments"]:
            if rollout.get("rolloutState") == "FAILED" and rollout["id"] not in past:
                return rollout.get("rolloutStateReason") or "the deployment failed"
            if rollout["status"] == "PRIMARY" and rollout["taskDefinition"] != definition:
                return f"ECS rolled back to {_shorten_arn(rollout['taskDefinition'])}"
    return ""


def _count_ready_tasks(ecs: Any, deployed: _EcsDeployment, service: Service, definition: str) -> int:
    tasks = _list_tasks(ecs, deployed, service, "RUNNING")
    return sum(_is_ready(service, task) for task in tasks if task["taskDefinitionArn"] == definition)


def _describe_failure(aws: AwsSession, deployed: _EcsDeployment, service: Service, reason: str, outcome: str) -> str:
    """Describe a service that is not ready: why its last tasks stopped, and their log."""
    lines = [f"{service.name} is not ready: {reason}; {outcome}"]
    try:
        with clients.translate_errors():
            ecs = aws.client("ecs")
            stopped = _list_tasks(ecs, deployed, service, "STOPPED")
            lines += [f"  {_shorten_arn(task['taskArn'])}: {task.get('stoppedReason', '')}" for task in stopped[:3]]
            lines += list(_read_last_lines(aws.client("logs"), deployed, service.role, _LAST_LINES))
    except Unavailable as error:
        lines.append(f"log cannot be read: {error}")
    return "\n".join(lines)


def _send_test_request(aws: AwsSession, deployed: _EcsDeployment, settings: dict[str, Any]) -> None:
    """Run a task in the VPC that sends the router a completion request.

    Raises:
        CheckFailed: the request failed; with the task's log.
    """
    ecs, cluster = aws.client("ecs"), deployed.cluster
    network = {"subnets": settings["subnets"], "securityGroups": [settings["group"]], "assignPublicIp": "DISABLED"}
    with clients.translate_errors():
        arn = ecs_tasks.start(
            ecs,
            cluster=cluster,
            taskDefinition=settings["task_definition"],
            launchType="FARGATE",
            networkConfiguration={"awsvpcConfiguration": network},
        )
        deadline = time.monotonic() + _TEST_TIMEOUT_S
        task: dict[str, Any] = {}
        while time.monotonic() < deadline and task.get("lastStatus") != "STOPPED":
            # ECS is eventually consistent: right after the start it may not know the task yet.
            described = ecs.describe_tasks(cluster=cluster, tasks=[arn])["tasks"]
            task = described[0] if described else task
            time.sleep(_POLL_INTERVAL_S / 2)
        if not task or task["containers"][0].get("exitCode") != 0:
            log_lines = "\n".join(_read_last_lines(aws.client("logs"), deployed, "ask", _LAST_LINES))
            raise CheckFailed(f"the test request failed: {task.get('stoppedReason', 'timed out')}\n{log_lines}")


def _list_running(ecs: Any, deployed: _EcsDeployment, role: str = "") -> Iterator[tuple[Service, dict[str, Any]]]:
    """List the running tasks of the services of a role, or of all."""
    for service in deployed.deployment.services:
        if role in ("", service.role):
            yield from ((service, task) for task in _list_tasks(ecs, deployed, service, "RUNNING"))


def _list_tasks(ecs: Any, deployed: _EcsDeployment, service: Service, status: str) -> list[dict[str, Any]]:
    """List the tasks of a service; empty if it or its cluster is not there."""
    return [
        task
        for name in deployed.list_service_names(service)
        for task in ecs_tasks.list_tasks(ecs, deployed.cluster, serviceName=name, desiredStatus=status)
    ]


def _build_replica_status(service: Service, task: dict[str, Any]) -> ReplicaStatus:
    pending_reason = "not healthy yet" if task["lastStatus"] == "RUNNING" else task["lastStatus"].lower()
    return ReplicaStatus(
        name=_shorten_arn(task["taskArn"]),
        role=service.role,
        state=READY if _is_ready(service, task) else pending_reason,
        restarts=0,
        machine=_shorten_arn(task.get("containerInstanceArn", "")) or task.get("launchType", "").lower(),
    )


def _build_start(
    service: Service, task: dict[str, Any], events: Sequence[dict[str, Any]], lines: StartLines | None
) -> Start:
    """Build a task's start; its first answer is the first to the probe's request in the access log, text or JSON."""
    answer = re.compile(rf'"POST {re.escape(service.probe.path)} HTTP/1\.1\\?" 200') if service.probe else None
    answered = next((event["timestamp"] / 1000 for event in events if answer and answer.search(event["message"])), None)
    load_s, compile_s = starts.read_log((event["message"] for event in events), lines)
    is_pulled = "pullStoppedAt" in task
    return Start(
        name=_shorten_arn(task["taskArn"]),
        role=service.role,
        pull_s=(task["pullStoppedAt"] - task["pullStartedAt"]).total_seconds() if is_pulled else None,
        load_s=load_s,
        compile_s=compile_s,
        first_answer_s=answered - task["createdAt"].timestamp() if answered else None,
    )


def _read_first_events(
    client: Any, deployed: _EcsDeployment, service: Service, task: dict[str, Any]
) -> list[dict[str, Any]]:
    """Read the beginning of a task's log, of up to 1 MiB; none where it has logged nothing."""
    stream = f"{service.role}/{service.role}/{_shorten_arn(task['taskArn'])}"
    with clients.ignore_errors("ResourceNotFoundException"):
        response = client.get_log_events(logGroupName=deployed.log_group, logStreamName=stream, startFromHead=True)
        return list(response["events"])
    return []


def _is_ready(service: Service, task: dict[str, Any]) -> bool:
    """Return whether a task runs, and is healthy if it is checked."""
    is_checked = service.probe is not None or bool(service.ready_file)
    healthy = task.get("healthStatus") == "HEALTHY" or not is_checked
    return bool(task["lastStatus"] == "RUNNING" and healthy)


def _read_last_lines(client: Any, deployed: _EcsDeployment, role: str | None, lines: int) -> Iterator[str]:
    """Read the last lines of the newest log streams."""
    group, stream_names = deployed.log_group, list[str]()
    with clients.ignore_errors("ResourceNotFoundException"):
        streams = client.describe_log_streams(logGroupName=group, orderBy="LastEventTime", descending=True)
        stream_names = [entry["logStreamName"] for entry in streams["logStreams"]]
    for stream in [entry for entry in stream_names if role is None or entry.startswith(f"{role}/")][:3]:
        events = client.get_log_events(logGroupName=group, logStreamName=stream, limit=max(1, lines))["events"]
        yield from (_format_line(stream, event["message"]) for event in events[:lines])


def _list_events(client: Any, deployed: _EcsDeployment, role: str | None, since: int) -> Iterator[dict[str, Any]]:
    group = deployed.log_group
    prefix = {"logStreamNamePrefix": f"{role}/"} if role else {}
    for page in client.get_paginator("filter_log_events").paginate(logGroupName=group, startTime=since, **prefix):
        yield from page["events"]


def _format_line(stream: str, message: str) -> str:
    """Format a line with its role and task; streams are named ROLE/CONTAINER/TASK."""
    role, _, container_and_task = stream.partition("/")
    return f"{role} {_shorten_arn(container_and_task)[:8]} | {message.rstrip()}"


def _shorten_arn(arn: str) -> str:
    return arn.rpartition("/")[2]
