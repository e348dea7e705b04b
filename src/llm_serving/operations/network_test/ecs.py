"""The network test on ECS: one task an instance, rank 0 first, since the others ask it for its key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from llm_serving import console
from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import groups, names, network_test
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.operations import ecs_tasks
from llm_serving.settings.errors import CheckFailed, Unavailable

_POLL_S = 5.0
_NO_ADDRESS = "0.0.0.0"


def run(aws: AwsSession, fleet: Fleet, group: Group, *, nodes: int, limit_s: int) -> str:
    """Run the tasks, return rank 0's output, and stop what still runs.

    Raises:
        CheckFailed: the tasks did not finish in time, or could not be started.
        Unavailable: AWS refuses, or the fleet is not applied.
    """
    deadline = time.monotonic() + limit_s
    client, started = aws.client("ecs"), list[str]()
    with session.translate_errors():
        network = _find_network(aws, fleet, group)
        try:
            with console.step("Start rank 0") as step:
                leader = _start(client, fleet, group, network, _build_overrides(group, nodes, limit_s, 0))
                started.append(leader)
                address = _wait_for_address(client, fleet, leader, deadline, step)
            with console.step("Run nccl-tests") as step:
                for rank in range(1, nodes):
                    overrides = _build_overrides(group, nodes, limit_s, rank, address)
                    started.append(_start(client, fleet, group, network, overrides))
                _wait_until_stopped(client, fleet, started, deadline, step)
            return _read_log(aws, fleet, leader)
        finally:
            for task in started:
                client.stop_task(cluster=names.format_cluster_name(fleet), task=task, reason="network test ended")


def _find_network(aws: AwsSession, fleet: Fleet, group: Group) -> dict[str, list[str]]:
    ec2 = aws.client("ec2")
    security_group = ecs_tasks.find_security_group(ec2, fleet, names.format_efa_group_name(fleet.name, "ecs"))
    if security_group is None:
        name = names.format_efa_group_name(fleet.name, "ecs")
        raise Unavailable(f"the security group {name} does not exist. Fix: run `blueprint fleet apply`.")
    return {"subnets": ecs_tasks.find_private_subnets(ec2, fleet, group.zones), "securityGroups": [security_group]}


def _build_overrides(group: Group, nodes: int, limit_s: int, rank: int, leader: str = _NO_ADDRESS) -> dict[str, Any]:
    variables = {**network_test.build_variables(group, nodes, limit_s), "RANK": str(rank), "LEADER": leader}
    environment = [{"name": name, "value": value} for name, value in variables.items()]
    return {"containerOverrides": [{"name": network_test.NAME, "environment": environment}]}


def _start(client: Any, fleet: Fleet, group: Group, network: dict[str, list[str]], overrides: dict[str, Any]) -> str:
    """Start one task on the group's instances, and return its ARN; ECS starts the instance where there is none."""
    return ecs_tasks.start(
        client,
        cluster=names.format_cluster_name(fleet),
        taskDefinition=network_test.format_task_family(fleet, group.pool),
        capacityProviderStrategy=[{"capacityProvider": groups.format_provider_name(fleet, group), "weight": 1}],
        placementConstraints=[{"type": "distinctInstance"}],
        networkConfiguration={"awsvpcConfiguration": {**network, "assignPublicIp": "DISABLED"}},
        overrides=overrides,
    )


def _wait_for_address(client: Any, fleet: Fleet, task: str, deadline: float, step: console.Step) -> str:
    """Return the private address of a task, once its interface is attached and its container runs."""
    while time.monotonic() < deadline:
        # ECS is eventually consistent: right after the start it may not know the task yet.
        for state in ecs_tasks.describe_tasks(client, names.format_cluster_name(fleet), [task]):
            step.note = state["lastStatus"]
            if state["lastStatus"] == "STOPPED":
                raise CheckFailed(f"rank 0 ended before the test: {state.get('stoppedReason', 'no reason')}")
            address = ecs_tasks.get_address(state)
            if state["lastStatus"] == "RUNNING" and address:
                return address
        time.sleep(_POLL_S)
    raise CheckFailed(f"rank 0 did not start in time: its task is {step.note}. Fix: raise --minutes, or add capacity.")


def _wait_until_stopped(client: Any, fleet: Fleet, tasks: Sequence[str], deadline: float, step: console.Step) -> None:
    """Wait until rank 0, the first task, has stopped."""
    while time.monotonic() < deadline:
        described = ecs_tasks.describe_tasks(client, names.format_cluster_name(fleet), tasks)
        states = {state["taskArn"]: state["lastStatus"] for state in described}
        step.note = ", ".join(states[task] for task in tasks if task in states)
        if states.get(tasks[0]) == "STOPPED":
            return
        time.sleep(_POLL_S)
    raise CheckFailed(f"nccl-tests did not finish in time: tasks are {step.note}")


def _read_log(aws: AwsSession, fleet: Fleet, task: str) -> str:
    stream = f"pool/{network_test.NAME}/{task.rpartition('/')[2]}"
    query = {"logGroupName": network_test.format_log_group(fleet), "logStreamNames": [stream]}
    events = session.list_all(aws.client("logs"), "filter_log_events", "events", **query)
    return "\n".join(event["message"] for event in events)
