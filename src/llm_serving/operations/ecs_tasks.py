"""Services and tasks on ECS: listed, described, started once, and where; and by which address tasks are reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_serving.aws import session
from llm_serving.fleet import names
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.settings.errors import CheckFailed

_SERVICES_A_CALL, _TASKS_A_CALL = 10, 100
"""Most of one DescribeServices, and of one DescribeTasks. Source: ECS API reference, 2026-11."""


def list_services(client: Any, cluster: str) -> list[str]:
    """List the ARNs of a cluster's services; none where there is no such cluster."""
    with session.ignore_errors("ClusterNotFoundException"):
        return session.list_all(client, "list_services", "serviceArns", cluster=cluster)
    return []


def describe_services(client: Any, cluster: str, services: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Describe services, by name or ARN, with their tags."""
    for batch in session.split(services, _SERVICES_A_CALL):
        yield from client.describe_services(cluster=cluster, services=batch, include=["TAGS"])["services"]


def list_tasks(client: Any, cluster: str, **filters: str) -> list[dict[str, Any]]:
    """Describe a cluster's tasks, or those of a filter of ListTasks; none where cluster or service is not there."""
    with session.ignore_errors("ClusterNotFoundException", "ServiceNotFoundException"):
        arns = session.list_all(client, "list_tasks", "taskArns", cluster=cluster, **filters)
        return describe_tasks(client, cluster, arns)
    return []


def describe_tasks(client: Any, cluster: str, arns: Sequence[str]) -> list[dict[str, Any]]:
    batches = session.split(arns, _TASKS_A_CALL)
    return [task for batch in batches for task in client.describe_tasks(cluster=cluster, tasks=batch)["tasks"]]


def start(client: Any, **request: Any) -> str:
    """Start one task and return its ARN.

    Raises:
        CheckFailed: ECS started none; with its reasons.
    """
    answer = client.run_task(**request, count=1)
    if not answer["tasks"]:
        reasons = ", ".join(failure.get("reason", "no reason") for failure in answer["failures"])
        raise CheckFailed(f"ECS started no task of {request['taskDefinition']}: {reasons}")
    return str(answer["tasks"][0]["taskArn"])


def get_address(state: dict[str, Any]) -> str:
    """Return the private address of a described task; empty before its interface is attached."""
    details = [
        detail
        for attachment in state.get("attachments", ())
        if attachment["type"] == "ElasticNetworkInterface"
        for detail in attachment["details"]
    ]
    return next((detail["value"] for detail in details if detail["name"] == "privateIPv4Address"), "")


def find_security_group(ec2: Any, fleet: Fleet, name: str) -> str | None:
    """Return the id of the fleet's group of this name, which a group in another fleet's network may have too."""
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "tag:fleet", "Values": [fleet.name]}]
    groups = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return str(groups[0]["GroupId"]) if groups else None


def find_private_subnets(ec2: Any, fleet: Fleet, zones: Sequence[str]) -> list[str]:
    if isinstance(fleet.network, ExistingNetwork):
        return [fleet.network.private_subnets[fleet.zones.index(zone)] for zone in zones]
    return [
        str(subnet["SubnetId"])
        for zone in zones
        for subnet in ec2.describe_subnets(
            Filters=[
                {"Name": f"tag:{key}", "Values": [value]}
                for key, value in names.build_private_subnet_tags(fleet, zone).items()
            ]
        )["Subnets"]
    ]
