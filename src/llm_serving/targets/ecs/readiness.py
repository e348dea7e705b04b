"""Waiting for a deployment on ECS.

An engine's container is healthy once its server answers, which vLLM starts with the engine behind it ready; at the end
a task in the VPC asks for a completion, or whether the Batch API serves, as a client would.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from typing import Any

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.operations import ecs_tasks
from llm_serving.services import kinds
from llm_serving.services.service import Service
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import tasks
from llm_serving.targets.ecs.tasks import EcsDeployment

_TEST_TIMEOUT_S = 300
_MANAGED_TIMEOUT_S = 600
_POLL_INTERVAL_S = 10.0
_GIVEN_UP = "ECS rolled it back to what ran before; if nothing did, it starts no more tasks until you deploy again"


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


def count_initial(service: Service) -> int:
    """Return the number of tasks that a service starts with, and that a deploy waits for."""
    return max(1, service.replicas.min)


def wait_until_steady(deployed: EcsDeployment, definitions: Mapping[str, str], *, past: Container[str]) -> None:
    """Wait until every service has all of its tasks, of the new definitions, and each is ready.

    Tasks may run on any choice of their pool: if the first has no instances, another one serves. An upgrade replaces a
    few at a time, and each has its start.

    Args:
        past: IDs of ECS deployments that failed before, and may still be listed.

    Raises:
        CheckFailed: one failed and was rolled back, or is not ready in time; with its reason and log.
    """
    name, services = deployed.rendered.name, deployed.rendered.services
    timeout_s = planning.compute_start_s(services)
    deadline, most_ready = time.monotonic() + timeout_s, 0
    with console.step(f"Wait until {name} is ready (up to {timeout_s / 60:.0f} min)") as step:
        while True:
            pending, total_ready = [], 0
            for service in services:
                with clients.translate_errors():
                    failure = _find_failure(deployed, service, definitions[service.name], past)
                    ready = _count_ready_tasks(deployed, service, definitions[service.name])
                if failure:
                    raise CheckFailed(_describe_failure(deployed, service, failure, _GIVEN_UP))
                pending += [(service, ready)] if ready < count_initial(service) else []
                total_ready += ready
            step.note = (
                ", ".join(f"{service.name} {ready} of {count_initial(service)}" for service, ready in pending) or "done"
            )
            if not pending:
                return
            if total_ready > most_ready:
                deadline, most_ready = time.monotonic() + timeout_s, total_ready
            if time.monotonic() > deadline:
                hint = "ECS keeps trying; see `blueprint logs --follow`"
                raise CheckFailed(_describe_failure(deployed, pending[0][0], "timed out", hint))
            time.sleep(_POLL_INTERVAL_S)


def _find_failure(deployed: EcsDeployment, service: Service, definition: str, past: Container[str]) -> str:
    """Return why ECS gave up a service's deployment; empty if it did not."""
    names = deployed.list_service_names(service)
    for ecs_service in ecs_tasks.describe_services(deployed.ecs, deployed.cluster, names):
        for rollout in ecs_service["deployments"]:
            if rollout.get("rolloutState") == "FAILED" and rollout["id"] not in past:
                return rollout.get("rolloutStateReason") or "the deployment failed"
            if rollout["status"] == "PRIMARY" and rollout["taskDefinition"] != definition:
                return f"ECS rolled back to {tasks.shorten_arn(rollout['taskDefinition'])}"
    return ""


def _count_ready_tasks(deployed: EcsDeployment, service: Service, definition: str) -> int:
    running = deployed.list_tasks(service, "RUNNING")
    return sum(tasks.is_ready(service, task) for task in running if task["taskDefinitionArn"] == definition)


def _describe_failure(deployed: EcsDeployment, service: Service, reason: str, outcome: str) -> str:
    """Describe a service that is not ready: why its last tasks stopped, and their log."""
    lines = [f"{service.name} is not ready: {reason}; {outcome}"]
    try:
        with clients.translate_errors():
            for task in deployed.list_tasks(service, "STOPPED")[:3]:
                lines.append(f"  {tasks.shorten_arn(task['taskArn'])}: {task.get('stoppedReason', '')}")
            lines += deployed.read_last_lines(service.role)
    except Unavailable as error:
        lines.append(f"log cannot be read: {error}")
    return "\n".join(lines)


@clients.translate_errors()
def send_test_request(deployed: EcsDeployment, settings: dict[str, Any]) -> None:
    """Run a task in the VPC that sends the router a completion request.

    Raises:
        CheckFailed: the request failed; with the task's log.
    """
    ecs, cluster = deployed.ecs, deployed.cluster
    network = {"subnets": settings["subnets"], "securityGroups": [settings["group"]], "assignPublicIp": "DISABLED"}
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
        log_lines = "\n".join(deployed.read_last_lines("ask"))
        raise CheckFailed(f"the test request failed: {task.get('stoppedReason', 'timed out')}\n{log_lines}")
