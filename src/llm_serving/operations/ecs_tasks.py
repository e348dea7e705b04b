"""Tasks on ECS that run once: where they start, how, and by which address they are reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_serving.fleet import names
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.settings.errors import CheckFailed


def start(client: Any, **request: Any) -> str:
    """Start one task and return its ARN.

    Args:
        request: RunTask's parameters.

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


def find_security_group(ec2: Any, name: str) -> str | None:
    groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])["SecurityGroups"]
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
