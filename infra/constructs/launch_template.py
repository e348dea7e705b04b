"""A launch template made from a machine group: interfaces, volumes, metadata, capacity and placement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from infra.bindings import aws
from infra.constructs.expression import expression
from llm_serving.fleet import names, node_config
from llm_serving.fleet.groups import Group, Volume
from llm_serving.fleet.model import Fleet


def launch_template(
    stack: Any,
    name: str,
    *,
    fleet: Fleet,
    group: Group,
    image_id: str,
    text: str,
    security_groups: Sequence[str],
    instance_profile_arn: str | None = None,
    reservations_arn: str,
    depends_on: Sequence[Any] = (),
) -> Any:
    """Adds the template.

    Args:
        text: user data, in the clear, with Terraform's references and no tokens of CDKTF's.
        security_groups: ids, for every interface; the EFA group among them where the group has EFA.
        instance_profile_arn: for Auto Scaling groups of our own; a managed node group brings its role itself.
        reservations_arn: the resource group with the group's reservations; it counts only where the group has any.
    """
    lt = aws.launch_template
    return lt.LaunchTemplate(
        stack,
        name,
        name=f"{fleet.name}-{stack.node.id}-{group.name}",
        update_default_version=True,
        image_id=image_id,
        # A node group takes its type from here, since a Capacity Block asks for that; several types go elsewhere.
        instance_type=group.types[0] if len(group.types) == 1 else None,
        user_data=_base64(text),
        iam_instance_profile=(
            lt.LaunchTemplateIamInstanceProfile(arn=instance_profile_arn) if instance_profile_arn else None
        ),
        block_device_mappings=list(_volumes(group)),
        metadata_options=_metadata(),
        monitoring=lt.LaunchTemplateMonitoring(enabled=True),
        tag_specifications=[
            lt.LaunchTemplateTagSpecifications(
                # What EC2 makes by itself gets no tags of the provider's.
                resource_type=kind,
                tags={**fleet.tags, "fleet": fleet.name, "pool": group.pool, "Name": f"{fleet.name}-{group.name}"},
            )
            for kind in ("instance", "volume", "network-interface")
        ],
        **_network(group, security_groups),
        **_capacity(group, reservations_arn),
        **_placement(fleet, group),
        depends_on=list(depends_on),
    )


def _base64(text: str) -> str:
    """Terraform encodes, for only it knows the values in the text; its strings take JSON's escapes."""
    return expression(f"base64encode({json.dumps(text, ensure_ascii=False)})")


def _network(group: Group, security_groups: Sequence[str]) -> dict[str, Any]:
    if not group.efa:
        return {"vpc_security_group_ids": list(security_groups)}
    return {
        "network_interfaces": [
            aws.launch_template.LaunchTemplateNetworkInterfaces(
                network_card_index=one.card,
                device_index=one.device,
                interface_type=one.kind,
                security_groups=list(security_groups),
                delete_on_termination="true",
            )
            for one in group.interfaces
        ]
    }


def _metadata() -> Any:
    return aws.launch_template.LaunchTemplateMetadataOptions(
        http_endpoint="enabled",
        http_tokens="required",
        # The machine itself and no container on it: pods and tasks have roles of their own.
        http_put_response_hop_limit=1,
        instance_metadata_tags="disabled",
    )


def _volumes(group: Group) -> Iterator[Any]:
    """AWS's own key encrypts: one of ours would have to trust the service-linked roles that start machines."""
    if group.os == "bottlerocket":
        yield _volume("/dev/xvda", node_config.BOTTLEROCKET_ROOT)
        yield _volume(node_config.SNAPSHOT_DEVICE, group.volume, group.snapshot)
    else:
        yield _volume("/dev/xvda", group.volume)
        if group.snapshot:
            yield _volume(node_config.SNAPSHOT_DEVICE, group.volume, group.snapshot)


def _volume(device: str, volume: Volume, snapshot: str | None = None) -> Any:
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


def _capacity(group: Group, reservations_arn: str) -> dict[str, Any]:
    lt = aws.launch_template
    made: dict[str, Any] = {}
    target = lt.LaunchTemplateCapacityReservationSpecificationCapacityReservationTarget
    specification = lt.LaunchTemplateCapacityReservationSpecification
    if group.bought == "reservation":
        made["capacity_reservation_specification"] = specification(
            # Else EC2 would start machines on demand where the group is full, and falling back is the next choice's.
            capacity_reservation_preference="capacity-reservations-only",
            capacity_reservation_target=target(capacity_reservation_resource_group_arn=reservations_arn),
        )
    elif group.bought == "capacity-block":
        made["capacity_reservation_specification"] = specification(
            capacity_reservation_target=target(capacity_reservation_id=group.reservation)
        )
        made["instance_market_options"] = lt.LaunchTemplateInstanceMarketOptions(market_type="capacity-block")
    return made


def _placement(fleet: Fleet, group: Group) -> dict[str, Any]:
    if not group.placement_group:
        return {}
    # By name and not by reference: the caller has it made first by depends_on.
    name = names.placement_group(fleet.name, group.placement_group)
    return {"placement": aws.launch_template.LaunchTemplatePlacement(group_name=name)}
