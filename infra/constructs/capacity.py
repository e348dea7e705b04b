"""Where an instance group's capacity comes from beside the open market: placement groups and on-demand reservations.

A reservation is targeted through a resource group, one for each instance group: further reservations can be put into it
by hand, and neither launch template nor instances change. Karpenter knows no resource groups and selects by tag and id.

A reservation costs the on-demand price from the apply that makes it, instances in it or none. Where EC2 has no such
capacity at that moment, the apply says so and can be run again.

Sources, read 2026-11: EC2 user guide, "Capacity Reservation groups", "Use Capacity Reservations with placement groups";
Resource Groups user guide, "Service configurations for resource groups".
"""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs.account import Account
from infra.constructs.expression import format_expression
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.lifecycle import keep_until_unused
from llm_serving.fleet import names
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet


def add_capacity(stack: FleetStack, group: Group) -> list[ITerraformDependable]:
    """Add the group's placement group and reservations; return what its first instance depends on."""
    placement_groups = _add_placement_group(stack, group)
    if group.purchase_option != "reservation":
        return placement_groups
    reservations = [_add_reservation(stack, group, placement_groups)] if group.reserve else []
    resource_group = _add_resource_group(stack, group) if group.is_auto_scaled else []
    return [*placement_groups, *reservations, *resource_group]


def build_resource_group_arn(fleet: Fleet, group: Group, account: Account) -> str:
    """ARN of the resource group that holds the instance group's reservations."""
    return account.build_arn("resource-groups", f"group/{names.format_reservation_name(fleet.name, group.name)}")


def _add_placement_group(stack: FleetStack, group: Group) -> list[ITerraformDependable]:
    """Add the cluster placement group of the pool and zone, once; none where the group has none."""
    if not group.placement_group:
        return []
    name = f"placement-{group.placement_group}"
    existing = stack.node.try_find_child(name)
    if isinstance(existing, aws.placement_group.PlacementGroup):
        return [existing]
    ec2_name = names.format_placement_group_name(stack.fleet.name, group.placement_group)
    placement_group = aws.placement_group.PlacementGroup(stack, name, name=ec2_name, strategy="cluster")
    keep_until_unused(placement_group)
    return [placement_group]


def _add_reservation(
    stack: FleetStack, group: Group, placement_groups: list[ITerraformDependable]
) -> aws.ec2_capacity_reservation.Ec2CapacityReservation:
    """Create the reservation inside the placement group, if any: EC2 cannot move one into it later."""
    group_name = group.placement_group and names.format_placement_group_name(stack.fleet.name, group.placement_group)
    return aws.ec2_capacity_reservation.Ec2CapacityReservation(
        stack,
        f"{group.name}-reservation",
        instance_type=group.types[0],
        instance_platform="Linux/UNIX",
        availability_zone=group.zones[0],
        instance_count=group.reserve,
        # Nobody else's instances of the same type may take it.
        instance_match_criteria="targeted",
        end_date_type="unlimited",
        placement_group_arn=stack.account.build_arn("ec2", f"placement-group/{group_name}") if group_name else None,
        tags={"Name": names.format_reservation_name(stack.fleet.name, group.name), "pool": group.pool},
        depends_on=placement_groups,
    )


def _add_resource_group(stack: FleetStack, group: Group) -> list[ITerraformDependable]:
    rg = aws.resourcegroups_group
    name = f"{group.name}-reservations"
    resource_group = rg.ResourcegroupsGroup(
        stack,
        name,
        name=names.format_reservation_name(stack.fleet.name, group.name),
        description=f"Capacity reservations of the pool {group.pool}",
        configuration=[
            rg.ResourcegroupsGroupConfiguration(type="AWS::EC2::CapacityReservationPool"),
            rg.ResourcegroupsGroupConfiguration(
                type="AWS::ResourceGroups::Generic",
                parameters=[
                    rg.ResourcegroupsGroupConfigurationParameters(
                        name="allowed-resource-types", values=["AWS::EC2::CapacityReservation"]
                    )
                ],
            ),
        ],
    )
    membership = aws.resourcegroups_resource.ResourcegroupsResource(
        stack,
        f"{name}-member",
        group_arn=build_resource_group_arn(stack.fleet, group, stack.account),
        resource_arn=_build_reservation_arn(group, stack.account),
        depends_on=[resource_group],
    )
    return [membership]


def _build_reservation_arn(group: Group, account: Account) -> str:
    if group.reservation:
        return account.build_arn("ec2", f"capacity-reservation/{group.reservation}")
    # By a splat, so that a rehearsal may leave the reservation out.
    return format_expression(f"one(aws_ec2_capacity_reservation.{group.name}-reservation[*].arn)")
