"""What the instances of every group are made from, whoever starts them: AMI, reserved capacity, launch template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs.capacity import add_capacity, build_resource_group_arn
from infra.constructs.expression import format_expression
from infra.constructs.fleet_stack import FleetStack
from llm_serving.fleet import names, node_config
from llm_serving.fleet.groups import Group, Volume
from llm_serving.fleet.model import Fleet


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
        instance_profile_arn: for Auto Scaling groups of our own; a managed node group brings its role itself.
    """
    stack, fleet = context.stack, context.stack.fleet
    image_id = group.ami or _find_image(stack, group, image_parameter)
    efa_groups = [context.efa_group.id] if group.efa and context.efa_group else []
    reserved_and_placed = add_capacity(stack, group)
    profile = aws.launch_template.LaunchTemplateIamInstanceProfile
    return aws.launch_template.LaunchTemplate(
        stack,
        f"{group.name}-template",
        name=f"{fleet.name}-{stack.node.id}-{group.name}",
        update_default_version=True,
        image_id=image_id,
        # A node group takes its type from here, since a Capacity Block asks for that; several types go elsewhere.
        instance_type=group.types[0] if len(group.types) == 1 else None,
        user_data=_encode_base64(text),
        iam_instance_profile=profile(arn=instance_profile_arn) if instance_profile_arn else None,
        block_device_mappings=list(_build_volumes(group)),
        metadata_options=_build_metadata_options(),
        monitoring=aws.launch_template.LaunchTemplateMonitoring(enabled=True),
        tag_specifications=_build_tags(fleet, group),
        **_build_network(group, [context.security_group_id, *efa_groups]),
        **_build_capacity(stack, group),
        **_build_placement(fleet, group),
        depends_on=reserved_and_placed,
    )


def _find_image(stack: FleetStack, group: Group, parameter: str) -> str:
    """Id of AWS's AMI; adds the data source that looks the pinned release up, once for each AMI."""
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


def _encode_base64(text: str) -> str:
    """Terraform encodes, for only it knows the values in the text; its strings take JSON's escapes."""
    return format_expression(f"base64encode({json.dumps(text, ensure_ascii=False)})")


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


def _build_metadata_options() -> aws.launch_template.LaunchTemplateMetadataOptions:
    return aws.launch_template.LaunchTemplateMetadataOptions(
        http_endpoint="enabled",
        http_tokens="required",
        # The instance itself and no container on it: pods and tasks have roles of their own.
        http_put_response_hop_limit=1,
        instance_metadata_tags="disabled",
    )


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
    lt = aws.launch_template
    return lt.LaunchTemplateBlockDeviceMappings(
        device_name=device,
        ebs=lt.LaunchTemplateBlockDeviceMappingsEbs(
            volume_type="gp3",
            volume_size=volume.size_gib,
            throughput=volume.throughput_mib_s,
            iops=volume.iops,
            snapshot_id=snapshot,
            encrypted="true",
            delete_on_termination="true",
        ),
    )


def _build_capacity(stack: FleetStack, group: Group) -> dict[str, Any]:
    lt = aws.launch_template
    options: dict[str, Any] = {}
    reservation_target = lt.LaunchTemplateCapacityReservationSpecificationCapacityReservationTarget
    specification = lt.LaunchTemplateCapacityReservationSpecification
    if group.purchase_option == "reservation":
        options["capacity_reservation_specification"] = specification(
            # Else EC2 would start instances on demand where the group is full, and falling back is the next choice's.
            capacity_reservation_preference="capacity-reservations-only",
            capacity_reservation_target=reservation_target(
                capacity_reservation_resource_group_arn=build_resource_group_arn(stack.fleet, group, stack.account)
            ),
        )
    elif group.purchase_option == "capacity-block":
        options["capacity_reservation_specification"] = specification(
            capacity_reservation_target=reservation_target(capacity_reservation_id=group.reservation)
        )
        options["instance_market_options"] = lt.LaunchTemplateInstanceMarketOptions(market_type="capacity-block")
    return options


def _build_placement(fleet: Fleet, group: Group) -> dict[str, Any]:
    if not group.placement_group:
        return {}
    # By name and not by reference: the caller has it made first by depends_on.
    name = names.format_placement_group_name(fleet.name, group.placement_group)
    return {"placement": aws.launch_template.LaunchTemplatePlacement(group_name=name)}
