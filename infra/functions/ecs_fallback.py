"""Lets a role on ECS fall back between its pool's choices, and give way to others: ECS itself does neither.

A task is given to one capacity provider of its service's strategy, by weight, and waits there for an instance: weights
share tasks out and are no order of preference (aws/containers-roadmap#773). A change of the strategy would be a new
deployment: every task of the service is replaced, those that serve among them.

So a role has a service for each choice of its pool, and this function moves counts between them. The first choice keeps
the desired count. Each further one gets the tasks that the one before it finds no instance for, and gives a task
back only once the one before serves in its place. No task that serves is ever stopped for want of another.

What a service must carry: the tags `fallback`, a name that the services of one role share, and `choice`, its place in
the order from 0. Whoever scales a role scales choice 0 only, and whoever makes the services leaves their counts be.

ECS lets 500 tasks of a cluster wait for an instance (PROVISIONING), and starts no other task beyond that. So a choice
that finds no instance has MAX_WAITING tasks waiting at the most, and passes the rest on. The first choice has as many
as the role wants, for that number is its scaling's. Where many wait in first choices, all others share what is left, so
that the last choice of each role can always start tasks. The metric `provisioning`, which is logged here, has an alarm.

ECS has no priorities either: whoever came last waits. A role whose first choice carries the tag `gives-way`, with the
number of tasks that it has while nobody waits, gives tasks up as soon as others of its pool wait for an instance: the
donor goes down before the receiver comes up. It gets them back step by step, once nobody waits. While the tag
`gpu-repair` of the cluster says `stopped`, after a storm of faults, it neither gives nor gets any.

ECS knows no number of tasks that a rollout may stop at once, but the least percent of the desired count that it
keeps, in whole tasks, rounded up. What is right for four tasks lets none of three go, and half of a hundred where it
is for two. So a service with the tag `unavailable`, that number, gets the percent of the tasks that it has, while no
rollout is under way: else no rollout could end while tasks are in two choices, nor the one that takes it back, and one
of a role that scales would stop half of its tasks at the height of the day, or all where it may have none.

Auto Scaling gives up a group for which no start succeeds in a day, as of accelerators that nobody has: it suspends the
group's processes, and only who looks resumes them. Here they are resumed; what a person suspended stays so.

It runs each minute, and at once when an Auto Scaling group could not start an instance. Events:
    {"cluster": NAME, "groups": [NAME of an Auto Scaling group, ...]}
    {"cluster": NAME, "failed_group": NAME of the Auto Scaling group}
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

MACHINE_TIMEOUT = datetime.timedelta(minutes=10)
"""Time after which a task moves on if no instance has started, unless a failed launch moves it earlier.

A new instance takes about five minutes: a minute until managed scaling asks, the start, the agent's registration.
"""


MAX_WAITING, MAX_CLUSTER_WAITING = 50, 450
"""Most tasks that wait for an instance in a choice after the first, and of the cluster: a tenth less than ECS allows,
since tasks come and go between two calls.

Source: ECS developer guide, "Amazon ECS service quotas", "Tasks in the PROVISIONING state per cluster: 500", not
adjustable, 2026-11.
"""

RETURN_SHARE = 0.05
"""Most of its tasks that a role gets back in a call, and one in any case."""

STOP_TAG = {"key": "gpu-repair", "value": "stopped"}
"""Of the cluster, after a storm of faults; see gpu_repair."""

BY_PERSON = "User suspended"
"""How the reason begins of processes that somebody suspended. Source: EC2 Auto Scaling user guide, "Suspend and resume
Amazon EC2 Auto Scaling processes", administrative suspension, 2026-11; DescribeAutoScalingGroups' answers, as recorded
in public projects: "User suspended at 2025-10-20T22:56:42Z"."""

METRIC_NAMESPACE, METRIC = "Fleet/ECS", "provisioning"
"""CloudWatch's namespace and name of the number of tasks that wait for an instance, of all services of the cluster."""


@dataclass(frozen=True)
class Choice:
    """One service of a role: a place in its order of preference."""

    arn: str
    desired_count: int
    stuck_count: int
    """Tasks for which no instance comes."""

    serving_count: int

    started_count: int = 0
    """Tasks that have an instance, whether they serve yet or not."""

    waiting_count: int = 0
    """Tasks that wait for an instance, however long."""

    most: int | None = None
    """Tasks that a role has while nobody waits, at its first choice; None where it does not give way."""

    providers: frozenset[str] = frozenset()
    """Capacity providers, which all roles of a pool share."""

    unavailable: int | None = None
    """Tasks that a rollout may stop at once; None where a rollout is under way, or the service has no such tag."""

    configuration: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of its rollouts, as ECS has it."""


def handler(event: Mapping[str, Any], _context: Any = None) -> list[dict[str, Any]]:
    """Move the counts of all roles, and log how many tasks wait for an instance; returns what was changed.

    Raises:
        ClientError: AWS refused something of one role; the others were moved all the same.
    """
    ecs = boto3.client("ecs")
    now = datetime.datetime.now(datetime.UTC)
    failed_provider = f"cp-{event['failed_group']}" if event.get("failed_group") else None
    roles: list[list[Choice]] = []
    changed: list[dict[str, Any]] = []
    failure = None
    for services in _group_by_role(_list_services(ecs, event["cluster"])):
        try:
            roles.append([_read_choice(ecs, event["cluster"], service, failed_provider, now) for service in services])
        except ClientError as error:
            failure = error
    max_waiting = compute_max_waiting(roles)
    for choices in roles:
        try:
            changed += _move_tasks(ecs, event["cluster"], choices, max_waiting)
        except ClientError as error:
            failure = error
    if not failure:  # who waits is known of all
        changed += _shift_tasks(ecs, event["cluster"], roles)
    _log_metric(event["cluster"], sum(choice.waiting_count for choices in roles for choice in choices), now)
    if event.get("groups"):
        autoscaling = boto3.client("autoscaling")
        _resume_starts(autoscaling, event["groups"])
    if failure:
        raise failure
    return changed


def compute_max_waiting(roles: Sequence[Sequence[Choice]]) -> int:
    """Most tasks that wait in a choice after the first: what the first choices leave, shared among all others."""
    first_count = sum(choices[0].waiting_count for choices in roles)
    other_count = sum(len(choices) - 1 for choices in roles)
    share = (MAX_CLUSTER_WAITING - first_count) // max(1, other_count)
    return min(MAX_WAITING, max(1, share))


def compute_counts(choices: Sequence[Choice], max_waiting: int = MAX_WAITING) -> list[int]:
    """Desired counts of a role's services, in order.

    A choice has no more than the one before it lacks; it grows by what is stuck there, and shrinks as that one serves.
    What is beyond `max_waiting` tasks that wait is stuck at once.
    """
    desired_counts = [choices[0].desired_count]
    needed, passed_on = choices[0].desired_count, 0
    for previous, following in itertools.pairwise(choices):
        missing = max(0, needed - previous.serving_count)
        needed = min(missing, max(previous.stuck_count + passed_on, following.desired_count))
        desired_counts.append(min(needed, following.started_count + max_waiting))
        passed_on = needed - desired_counts[-1]
    return desired_counts


def compute_least_percent(choice: Choice, count: int) -> int:
    """Least percent of `count` tasks that a rollout keeps: of those with an instance, all but `unavailable`."""
    kept = min(choice.started_count, count) - (choice.unavailable or 0)
    return 100 * max(0, kept) // count


def compute_shifts(roles: Sequence[Sequence[Choice]], ending: Mapping[str, int]) -> dict[str, int]:
    """Return the new counts of first choices that give way, by service.

    Args:
        ending: tasks by service that were given up, and still have their instance.
    """
    donors = [choices for choices in roles if choices[0].most is not None]
    rivals = [choice for choices in roles if choices[0].most is None for choice in choices]
    counts: dict[str, int] = {}
    freed: Counter[frozenset[str]] = Counter()
    for donor in donors:
        freed[_list_providers(donor)] += sum(ending[choice.arn] for choice in donor)
    for donor in donors:
        first, providers = donor[0], _list_providers(donor)
        waiting = sum(rival.waiting_count for rival in rivals if rival.providers & providers)
        started = sum(choice.started_count for choice in donor)
        if waiting:
            given = min(started, max(0, waiting - freed[providers]))
            freed[providers] += given
            counts[first.arn] = min(first.desired_count, started - given)
        elif not any(choice.waiting_count for choice in donor):
            step = max(1, int((first.most or 0) * RETURN_SHARE))
            counts[first.arn] = min(first.most or 0, first.desired_count + step)
    return counts


def _list_providers(choices: Sequence[Choice]) -> frozenset[str]:
    return frozenset[str]().union(*(choice.providers for choice in choices))


def _shift_tasks(ecs: Any, cluster: str, roles: Sequence[Sequence[Choice]]) -> Iterator[dict[str, Any]]:
    donors = [choice for choices in roles if choices[0].most is not None for choice in choices]
    if not donors:
        return
    (described,) = ecs.describe_clusters(clusters=[cluster], include=["TAGS"])["clusters"]
    if STOP_TAG in described.get("tags", ()):
        return
    ending = {donor.arn: _count_ending(ecs, cluster, donor.arn) for donor in donors}
    counts = compute_shifts(roles, ending)
    for donor in donors:
        count = counts.get(donor.arn, donor.desired_count)
        if count != donor.desired_count:
            yield _update_count(ecs, cluster, donor, count)


def _count_ending(ecs: Any, cluster: str, service: str) -> int:
    tasks = _list_tasks(ecs, cluster, service, desiredStatus="STOPPED")
    return sum(task["lastStatus"] != "STOPPED" for task in tasks)


def _resume_starts(autoscaling: Any, groups: Sequence[str]) -> None:
    for described in autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=groups)["AutoScalingGroups"]:
        given_up = [
            process["ProcessName"]
            for process in described["SuspendedProcesses"]
            if not process["SuspensionReason"].startswith(BY_PERSON)
        ]
        if given_up:
            group = described["AutoScalingGroupName"]
            autoscaling.resume_processes(AutoScalingGroupName=group, ScalingProcesses=given_up)
            print(json.dumps({"group": group, "resumed": given_up}))


def _log_metric(cluster: str, waiting_count: int, now: datetime.datetime) -> None:
    """Print it in CloudWatch's embedded metric format, of which CloudWatch makes a metric."""
    metrics = {"Namespace": METRIC_NAMESPACE, "Dimensions": [["cluster"]], "Metrics": [{"Name": METRIC}]}
    envelope = {"Timestamp": int(now.timestamp() * 1000), "CloudWatchMetrics": [metrics]}
    print(json.dumps({"_aws": envelope, "cluster": cluster, METRIC: waiting_count}))


def _list_services(ecs: Any, cluster: str) -> Iterator[dict[str, Any]]:
    arns = [arn for page in ecs.get_paginator("list_services").paginate(cluster=cluster) for arn in page["serviceArns"]]
    for batch in _split_batches(arns, 10):
        services = ecs.describe_services(cluster=cluster, services=batch, include=["TAGS"])["services"]
        yield from (service for service in services if service["status"] == "ACTIVE")


def _group_by_role(services: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Services of each role in order of preference; one that cannot fall back is a role of its own."""
    services_by_role: dict[str, dict[int, dict[str, Any]]] = {}
    for service in services:
        tags = {tag["key"]: tag["value"] for tag in service.get("tags", [])}
        if "fallback" in tags:
            services_by_role.setdefault(tags["fallback"], {})[int(tags["choice"])] = service
        else:
            yield [service]
    for services_by_choice in services_by_role.values():
        ordered = [services_by_choice[choice] for choice in sorted(services_by_choice)]
        # The first choice holds the desired count. Without it the service is being created or deleted.
        yield from [ordered] if 0 in services_by_choice else ([service] for service in ordered)


def _move_tasks(ecs: Any, cluster: str, choices: Sequence[Choice], max_waiting: int) -> Iterator[dict[str, Any]]:
    for choice, count in zip(choices, compute_counts(choices, max_waiting), strict=True):
        if count != choice.desired_count:
            yield _update_count(ecs, cluster, choice, count)
        if count and choice.unavailable is not None:
            _fit_rollout(ecs, cluster, choice, compute_least_percent(choice, count))


def _fit_rollout(ecs: Any, cluster: str, choice: Choice, percent: int) -> None:
    """Set the percent. This starts no rollout. Source: ECS API reference, UpdateService, deploymentConfiguration."""
    if percent != choice.configuration["minimumHealthyPercent"]:
        kept = ("alarms", "deploymentCircuitBreaker", "maximumPercent")
        configuration = {key: choice.configuration[key] for key in kept if key in choice.configuration}
        configuration["minimumHealthyPercent"] = percent
        ecs.update_service(cluster=cluster, service=choice.arn, deploymentConfiguration=configuration)


def _update_count(ecs: Any, cluster: str, choice: Choice, count: int) -> dict[str, Any]:
    ecs.update_service(cluster=cluster, service=choice.arn, desiredCount=count)
    change = {"service": choice.arn, "from": choice.desired_count, "to": count}
    print(json.dumps(change))
    return change


def _read_choice(
    ecs: Any, cluster: str, service: dict[str, Any], failed_provider: str | None, now: datetime.datetime
) -> Choice:
    tasks = list(_list_tasks(ecs, cluster, service["serviceName"]))
    tags = {tag["key"]: tag["value"] for tag in service.get("tags", [])}
    return Choice(
        arn=service["serviceArn"],
        desired_count=service["desiredCount"],
        stuck_count=sum(_is_stuck(task, failed_provider, now) for task in tasks),
        serving_count=sum(_is_serving(ecs, task) for task in tasks),
        started_count=sum(task["lastStatus"] != "PROVISIONING" for task in tasks),
        waiting_count=sum(task["lastStatus"] == "PROVISIONING" for task in tasks),
        most=int(tags["gives-way"]) if "gives-way" in tags else None,
        providers=frozenset(entry["capacityProvider"] for entry in service.get("capacityProviderStrategy", [])),
        unavailable=int(tags["unavailable"]) if "unavailable" in tags and _is_at_rest(service) else None,
        configuration=service.get("deploymentConfiguration", {}),
    )


def _is_at_rest(service: Mapping[str, Any]) -> bool:
    """Whether no rollout is under way."""
    return [rollout.get("rolloutState") for rollout in service["deployments"]] == ["COMPLETED"]


def _list_tasks(ecs: Any, cluster: str, service: str, **filters: str) -> Iterator[dict[str, Any]]:
    pages = ecs.get_paginator("list_tasks").paginate(cluster=cluster, serviceName=service, **filters)
    arns = [arn for page in pages for arn in page["taskArns"]]
    for batch in _split_batches(arns, 100):
        yield from ecs.describe_tasks(cluster=cluster, tasks=batch)["tasks"]


def _is_stuck(task: Mapping[str, Any], failed_provider: str | None, now: datetime.datetime) -> bool:
    """Whether a task waits for an instance, and none comes."""
    if task["lastStatus"] != "PROVISIONING":
        return False
    has_failed = failed_provider is not None and task.get("capacityProviderName") == failed_provider
    return has_failed or now - task["createdAt"] > MACHINE_TIMEOUT


def _is_serving(ecs: Any, task: Mapping[str, Any]) -> bool:
    """Whether a task runs, and is healthy where its containers say how to tell: loading a model takes minutes."""
    if task["lastStatus"] != "RUNNING":
        return False
    return task.get("healthStatus") == "HEALTHY" or not _has_health_check(ecs, task["taskDefinitionArn"])


@functools.lru_cache(maxsize=1000)
def _has_health_check(ecs: Any, definition: str) -> bool:
    """Return whether a revision has a health check. A revision never changes, so it is fetched once."""
    containers = ecs.describe_task_definition(taskDefinition=definition)["taskDefinition"]["containerDefinitions"]
    return any("healthCheck" in container for container in containers)


def _split_batches(items: Sequence[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(items), size):
        yield list(items[first : first + size])
