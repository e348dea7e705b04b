"""What the instances of every group are made from, whoever starts them: AMI, reserved capacity, launch template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infra.bindings import aws
from infra.constructs.capacity import add_capacity, build_resource_group_arn
from infra.constructs.expression import format_expression
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.launch_template import add_launch_template
from llm_serving.fleet.groups import Group


@dataclass(frozen=True)
class MachineContext:
    """Network and cluster of the instances."""

    stack: FleetStack
    cluster: aws.eks_cluster.EksCluster
    subnets: Mapping[str, str]
    """Ids by zone."""

    security_group_id: str
    """The group that every instance is in."""

    efa_group: aws.security_group.SecurityGroup | None

    def select_subnets(self, group: Group) -> list[str]:
        """Ids of the subnets that the group may start instances in."""
        return [self.subnets[zone] for zone in group.zones]


def add_template(
    context: MachineContext, group: Group, *, text: str, image_parameter: str, instance_profile_arn: str | None = None
) -> aws.launch_template.LaunchTemplate:
    """Add the group's launch template, and before it the capacity that it names.

    Args:
        text: user data, in the clear, with Terraform's references and no tokens of CDKTF's.
        image_parameter: name of the SSM parameter that holds the pinned AMI's id; the user's own AMI goes before it.
    """
    efa_groups = [context.efa_group.id] if group.efa and context.efa_group else []
    return add_launch_template(
        context.stack,
        f"{group.name}-template",
        group=group,
        image_id=group.ami or _find_image(context.stack, group, image_parameter),
        text=text,
        security_groups=[context.security_group_id, *efa_groups],
        instance_profile_arn=instance_profile_arn,
        reservations_arn=build_resource_group_arn(context.stack.fleet, group, context.stack.account),
        depends_on=add_capacity(context.stack, group),
    )


def _find_image(stack: FleetStack, group: Group, parameter: str) -> str:
    """Id of AWS's AMI; adds the data source that looks the pinned release up, once for each AMI."""
    name = f"{group.os}-{group.variant}-{group.arch}"
    image = stack.node.try_find_child(name)
    if not isinstance(image, aws.data_aws_ssm_parameter.DataAwsSsmParameter):
        image = aws.data_aws_ssm_parameter.DataAwsSsmParameter(stack, name, name=parameter)
    # Terraform takes every parameter for a secret; an AMI's id is none, and a plan should show it.
    return format_expression(f"nonsensitive(data.aws_ssm_parameter.{image.friendly_unique_id}.value)")
