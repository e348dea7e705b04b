"""What the machines of every group are made from, whoever starts them: AMI, reserved capacity, launch template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs.account import Account
from infra.constructs.capacity import capacity, resource_group_arn
from infra.constructs.expression import expression
from infra.constructs.launch_template import launch_template
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet


@dataclass(frozen=True)
class Place:
    """Where a cluster's machines stand."""

    fleet: Fleet
    account: Account
    cluster: Any
    subnets: Mapping[str, str]
    """Ids by zone."""

    security_group_id: str
    """The group that every machine is in."""

    efa_group: Any | None

    def subnets_of(self, group: Group) -> list[str]:
        """Ids of the subnets that the group's machines may stand in."""
        return [self.subnets[zone] for zone in group.zones]


def template(
    stack: Any, place: Place, group: Group, *, text: str, image: str, instance_profile_arn: str | None = None
) -> Any:
    """Adds the group's launch template, and before it the capacity that it names.

    Args:
        text: user data, in the clear, with Terraform's references and no tokens of CDKTF's.
        image: name of the SSM parameter that holds the pinned AMI's id; the user's own AMI goes before it.
    """
    efa = [place.efa_group.id] if group.efa and place.efa_group else []
    return launch_template(
        stack,
        f"{group.name}-template",
        fleet=place.fleet,
        group=group,
        image_id=group.ami or _image(stack, group, image),
        text=text,
        security_groups=[place.security_group_id, *efa],
        instance_profile_arn=instance_profile_arn,
        reservations_arn=resource_group_arn(place.fleet, group, place.account),
        depends_on=capacity(stack, place.fleet, group, account=place.account),
    )


def _image(stack: Any, group: Group, parameter: str) -> str:
    """Id of AWS's AMI; adds the data source that looks the pinned release up, once for each AMI."""
    name = f"{group.os}-{group.variant}-{group.arch}"
    there = stack.node.try_find_child(name)
    found = there or aws.data_aws_ssm_parameter.DataAwsSsmParameter(stack, name, name=parameter)
    # Terraform takes every parameter for a secret; an AMI's id is none, and a plan should show it.
    return expression(f"nonsensitive(data.aws_ssm_parameter.{found.friendly_unique_id}.value)")
