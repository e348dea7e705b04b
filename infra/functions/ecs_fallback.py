"""Lets a role on ECS fall back between its pool's choices, which ECS itself does not do.

A task is given to one capacity provider of its service's strategy, by weight, and waits there for a machine: weights
share tasks out and are no order of preference (aws/containers-roadmap#773). A change of the strategy would be a new
deployment: every task of the service is replaced, those that serve among them.

So a role has a service for each choice of its pool, and this function moves counts between them. The first choice keeps
what is wanted. Each further one is asked for the tasks that the one before it finds no machine for, and gives a task
back only once the one before serves in its place. No task that serves is ever stopped for want of another.

What a service must carry: the tags `fallback`, a name that the services of one role share, and `choice`, its place in
the order from 0. Whoever scales a role scales choice 0 alone, and whoever makes the services leaves their counts be.

It runs each minute, and at once when an Auto Scaling group could not start a machine. Events:
    {"cluster": NAME}
    {"cluster": NAME, "failed_group": NAME of the Auto Scaling group}
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

PATIENCE = datetime.timedelta(minutes=10)
"""Wait for a machine after which it is taken for not coming, where no failed launch says so earlier.

A machine that comes takes about five minutes: a minute until managed scaling asks, the start, the agent's registration.
"""


@dataclass(frozen=True)
class Choice:
    """One service of a role: a place in its order of preference."""

    arn: str
    wanted: int
    """Its desired count."""

    stuck: int
    """Tasks for which no machine comes."""

    serving: int


def handler(event: Mapping[str, Any], _context: Any = None) -> list[dict[str, Any]]:
    """Moves the counts of all roles; returns what was changed.

    Raises:
        ClientError: AWS refused something of one role; the others were moved all the same.
    """
    ecs = boto3.client("ecs")
    now = datetime.datetime.now(datetime.UTC)
    failed = f"cp-{event['failed_group']}" if event.get("failed_group") else None
    changed: list[dict[str, Any]] = []
    refused: ClientError | None = None
    for services in _roles(ecs, event["cluster"]):
        try:
            changed += _move(ecs, event["cluster"], services, failed, now)
        except ClientError as error:
            refused = error
    if refused:
        raise refused
    return changed


def counts(choices: Sequence[Choice]) -> list[int]:
    """Desired counts of a role's services, in order.

    A choice has no more than the one before it lacks; it grows by what is stuck there, and shrinks as that one serves.
    """
    made = [choices[0].wanted]
    for before, after in itertools.pairwise(choices):
        lacking = max(0, made[-1] - before.serving)
        made.append(min(lacking, max(before.stuck, after.wanted)))
    return made


def _roles(ecs: Any, cluster: str) -> Iterator[list[dict[str, Any]]]:
    """Services of each role that can fall back, in order of preference."""
    arns = [arn for page in ecs.get_paginator("list_services").paginate(cluster=cluster) for arn in page["serviceArns"]]
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for some in _batches(arns, 10):
        for service in ecs.describe_services(cluster=cluster, services=some, include=["TAGS"])["services"]:
            tags = {tag["key"]: tag["value"] for tag in service.get("tags", [])}
            if service["status"] == "ACTIVE" and "fallback" in tags:
                found.setdefault(tags["fallback"], {})[int(tags["choice"])] = service
    for by_choice in found.values():
        # Without its first choice nobody says how many are wanted: it is being made, or taken away.
        if 0 in by_choice and len(by_choice) > 1:
            yield [by_choice[choice] for choice in sorted(by_choice)]


def _move(
    ecs: Any, cluster: str, services: Sequence[dict[str, Any]], failed: str | None, now: datetime.datetime
) -> Iterator[dict[str, Any]]:
    choices = [_choice(ecs, cluster, service, failed, now) for service in services]
    for choice, count in zip(choices, counts(choices), strict=True):
        if count != choice.wanted:
            ecs.update_service(cluster=cluster, service=choice.arn, desiredCount=count)
            change = {"service": choice.arn, "from": choice.wanted, "to": count}
            print(json.dumps(change))
            yield change


def _choice(ecs: Any, cluster: str, service: dict[str, Any], failed: str | None, now: datetime.datetime) -> Choice:
    tasks = list(_tasks(ecs, cluster, service["serviceName"]))
    return Choice(
        arn=service["serviceArn"],
        wanted=service["desiredCount"],
        stuck=sum(_stuck(task, failed, now) for task in tasks),
        serving=sum(_serves(ecs, task) for task in tasks),
    )


def _tasks(ecs: Any, cluster: str, service: str) -> Iterator[dict[str, Any]]:
    pages = ecs.get_paginator("list_tasks").paginate(cluster=cluster, serviceName=service)
    arns = [arn for page in pages for arn in page["taskArns"]]
    for some in _batches(arns, 100):
        yield from ecs.describe_tasks(cluster=cluster, tasks=some)["tasks"]


def _stuck(task: Mapping[str, Any], failed: str | None, now: datetime.datetime) -> bool:
    """Whether a task waits for a machine, and none comes."""
    if task["lastStatus"] != "PROVISIONING":
        return False
    return task.get("capacityProviderName") == failed or now - task["createdAt"] > PATIENCE


def _serves(ecs: Any, task: Mapping[str, Any]) -> bool:
    """Whether a task runs, and is healthy where its containers say how to tell: loading a model takes minutes."""
    if task["lastStatus"] != "RUNNING":
        return False
    return task.get("healthStatus") == "HEALTHY" or not _has_health_check(ecs, task["taskDefinitionArn"])


@functools.lru_cache(maxsize=1000)
def _has_health_check(ecs: Any, definition: str) -> bool:
    """A revision never changes, so it is asked for once."""
    containers = ecs.describe_task_definition(taskDefinition=definition)["taskDefinition"]["containerDefinitions"]
    return any("healthCheck" in container for container in containers)


def _batches(items: Sequence[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(items), size):
        yield list(items[first : first + size])
