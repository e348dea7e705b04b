"""What the instances of every group are made from, whoever starts them: AMI, launch template, reservations, EFA group.

A reservation is targeted through a resource group, one for each instance group: further reservations can be put into it
by hand, and neither launch template nor instances change. Karpenter knows no resource groups and selects by tag and id.

A reservation costs the on-demand price from the apply that makes it, instances in it or none. Where EC2 has no such
capacity at that moment, the apply says so and can be run again.

Sources, read 2026-11: EC2 user guide, "Capacity Reservation groups", "Use Capacity Reservations with placement groups";
Resource Groups user guide, "Service configurations for resource groups".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs.fleet_stack import Account, FleetStack, format_expression, keep_until_unused
from infra.constructs.security_group import add_rule, add_security_group
from llm_serving.fleet import names, node_config
from llm_serving.fleet.groups import Group, Volume
from llm_serving.fleet.model import Fleet


@dataclass(frozen=True)
class MachineContext:
    """Network and cluster of the instances."""

    stack: FleetStack
    cluster: aws.eks_cluster.EksCluster | aws.ecs_cluster.EcsCluster
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
        instance_profile_arn: for Auto Scaling groups of our own; a managed node group brings its role itself.
    """
    stack, fleet = context.stack, context.stack.fleet
    image_id = group.ami or _find_image(stack, group, image_parameter)
    efa_groups = [context.efa_group.id] if group.efa and context.efa_group else []
    reserved_and_placed = add_capacity(stack, group)
    return aws.launch_template.LaunchTemplate(
        stack,
        f"{group.name}-template",
        name=f"{fleet.name}-{stack.node.id}-{group.name}",
        update_default_version=True,
        image_id=image_id,
        # A node group takes its type from here, since a Capacity Block asks for that; several types go elsewhere.
        instance_type=group.types[0] if len(group.types) == 1 else None,
        # Terraform encodes, for only it knows the values in the text; its strings take JSON's escapes.
        user_data=format_expression(f"base64encode({json.dumps(text, ensure_ascii=False)})"),
        iam_instance_profile={"arn": instance_profile_arn} if instance_profile_arn else None,
        block_device_mappings=list(_build_volumes(group)),
        metadata_options={
            "http_endpoint": "enabled",
            "http_tokens": "required",
            # The instance itself and no container on it: pods and tasks have roles of their own.
            "http_put_response_hop_limit": 1,
            "instance_metadata_tags": "disabled",
        },
        monitoring={"enabled": True},
        tag_specifications=_build_tags(fleet, group),
        **_build_network(group, [context.security_group_id, *efa_groups]),
        **_build_capacity(stack, group),
        # By name and not by reference: `add_capacity` made it.
        placement={"group_name": names.format_placement_group_name(fleet.name, group.placement_group)}
        if group.placement_group
        else None,
        depends_on=reserved_and_placed,
    )


def _find_image(stack: FleetStack, group: Group, parameter: str) -> str:
    """Return the id of AWS's AMI; adds the data source that looks the pinned release up, once for each AMI."""
    name = f"{group.os}-{group.variant}-{group.arch}"
    image = stack.node.try_find_child(name)
    if not isinstance(image, aws.data_aws_ssm_parameter.DataAwsSsmParameter):
        image = aws.data_aws_ssm_parameter.DataAwsSsmParameter(stack, name, name=parameter)
    # Terraform takes every parameter for a secret; an AMI's id is none, and a plan should show it.
    return format_expression(f"nonsensitive(data.aws_ssm_parameter.{image.friendly_unique_id}.value)")


def _build_tags(fleet: Fleet, group: Group) -> list[aws.launch_template.LaunchTemplateTagSpecifications]:
    """Build tags of their own: the provider's default tags do not reach what EC2 creates from a template."""
    tags = {**names.build_tags(fleet), "pool": group.pool, "Name": f"{fleet.name}-{group.name}"}
    return [
        aws.launch_template.LaunchTemplateTagSpecifications(resource_type=resource_type, tags=tags)
        for resource_type in ("instance", "volume", "network-interface")
    ]


def _build_network(group: Group, security_groups: Sequence[str]) -> dict[str, Any]:
    if not group.efa:
        return {"vpc_security_group_ids": list(security_groups)}
    return {
        "network_interfaces": [
            aws.launch_template.LaunchTemplateNetworkInterfaces(
                network_card_index=interface.card,
                device_index=interface.device,
                interface_type=interface.kind,
                security_groups=list(security_groups),
                delete_on_termination="true",
            )
            for interface in group.interfaces
        ]
    }


def _build_volumes(group: Group) -> Iterator[aws.launch_template.LaunchTemplateBlockDeviceMappings]:
    """AWS's own key encrypts: one of ours would have to trust the service-linked roles that start machines."""
    if group.os == "bottlerocket":
        yield _build_volume("/dev/xvda", node_config.BOTTLEROCKET_ROOT)
        yield _build_volume(node_config.SNAPSHOT_DEVICE, group.volume, group.snapshot)
    else:
        yield _build_volume("/dev/xvda", group.volume)
        if group.snapshot:
            yield _build_volume(node_config.SNAPSHOT_DEVICE, group.volume, group.snapshot)


def _build_volume(
    device: str, volume: Volume, snapshot: str | None = None
) -> aws.launch_template.LaunchTemplateBlockDeviceMappings:
    return aws.launch_template.LaunchTemplateBlockDeviceMappings(
        device_name=device,
        ebs={
            "volume_type": "gp3",
            "volume_size": volume.size_gib,
            "throughput": volume.throughput_mib_s,
            "iops": volume.iops,
            "snapshot_id": snapshot,
            "encrypted": "true",
            "delete_on_termination": "true",
        },
    )


def _build_capacity(stack: FleetStack, group: Group) -> dict[str, Any]:
    if group.purchase_option == "reservation":
        resource_group = build_resource_group_arn(stack.fleet, group, stack.account)
        return {
            "capacity_reservation_specification": {
                # Else EC2 would start instances on demand where the group is full; falling back is the next choice's.
                "capacity_reservation_preference": "capacity-reservations-only",
                "capacity_reservation_target": {"capacity_reservation_resource_group_arn": resource_group},
            }
        }
    if group.purchase_option == "capacity-block":
        return {
            "capacity_reservation_specification": {
                "capacity_reservation_target": {"capacity_reservation_id": group.reservation}
            },
            "instance_market_options": {"market_type": "capacity-block"},
        }
    return {}


def add_capacity(stack: FleetStack, group: Group) -> list[ITerraformDependable]:
    """Add the group's placement group and reservations; return what its first instance depends on."""
    placement_groups = _add_placement_group(stack, group)
    if group.purchase_option != "reservation":
        return placement_groups
    reservations = [_add_reservation(stack, group, placement_groups)] if group.reserve else []
    resource_group = _add_resource_group(stack, group) if group.is_auto_scaled else []
    return [*placement_groups, *reservations, *resource_group]


def build_resource_group_arn(fleet: Fleet, group: Group, account: Account) -> str:
    """Return the ARN of the resource group that holds the instance group's reservations."""
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


def add_efa_group(stack: FleetStack, *, vpc_id: str) -> aws.security_group.SecurityGroup:
    """Add the group, one for all of a stack's EFA instances: roles of one model may run in several pools.

    Its rules are for all protocols: EFA's own (SRD) has no number. A rule of egress to 0.0.0.0/0 does not replace its
    second. Source: EC2 user guide, "Get started with EFA and NCCL", step "Prepare an EFA-enabled security group",
    2026-11.
    """
    name = names.format_efa_group_name(stack.fleet.name, stack.node.id)
    description = "EFA traffic between machines of the fleet"
    group = add_security_group(stack, "efa", name=name, description=description, vpc_id=vpc_id)
    keep_until_unused(group)
    for direction, rule, peers in (("in", "ingress", "from"), ("out", "egress", "to")):
        description = f"EFA traffic {peers} machines of this group"
        add_rule(stack, f"efa-{rule}", group, direction, description, peer=group, title=f"{name}-{rule}")
    return group
