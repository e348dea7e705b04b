"""Managed node groups: the system's own, and one for each instance group of the pools that node groups keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformStack
from infra.constructs import machines, policy
from infra.constructs.account import Account
from infra.constructs.eks_cluster import select_service_cidr
from infra.constructs.expression import format_reference
from infra.constructs.role import add_role
from llm_serving.catalog import eks
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import interfaces, names, node_config
from llm_serving.fleet.groups import BASELINE_VOLUME, Group
from llm_serving.fleet.model import Fleet

NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore")
"""AWS's own policies of a node. The CNI's is not among them: its pods have a role of their own."""

_SYSTEM_TYPES = (("m8g.xlarge", "arm64"), ("m7i.xlarge", "x86_64"))
"""For CoreDNS, controllers and metrics, in order of preference; the second is in every region."""

_CAPACITY_TYPES = {
    "on-demand": "ON_DEMAND",
    "reservation": "ON_DEMAND",
    "spot": "SPOT",
    "capacity-block": "CAPACITY_BLOCK",
}


@dataclass(frozen=True)
class NodeGroupContext(machines.MachineContext):
    """Network of the nodes, and what they need to join the cluster."""

    node_role: aws.iam_role.IamRole
    dependencies: Sequence[ITerraformDependable]
    """What the first node depends on: the add-ons that nodes need to join, and the node role's policies."""


def add_node_role(stack: TerraformStack, name: str, fleet: Fleet, account: Account) -> aws.iam_role.IamRole:
    """Add a role for nodes; it can do nothing that a pod should do."""
    return add_role(
        stack,
        name,
        fleet=fleet.name,
        account=account,
        description=f"Lets nodes join the cluster {names.format_cluster_name(fleet)}",
        trust=policy.build_trust_policy("ec2.amazonaws.com"),
        managed=NODE_POLICIES,
    )


def build_system_group(fleet: Fleet, catalogue: Catalogue) -> Group:
    """The system's own group: one small node a zone, and never less than two."""
    instance_type, arch, zones = _select_system_type(fleet, catalogue)
    count = max(2, len(zones))
    return Group(
        name="system",
        pool="system",
        orchestrator="eks",
        kind="node-group",
        types=(instance_type,),
        zones=zones,
        purchase_option="on-demand",
        reservation=None,
        reserve=0,
        choice=0,
        min_size=count,
        max_size=2 * count,
        warm=0,
        accelerators=0,
        interfaces=(interfaces.Interface(0, 0, "interface"),),
        efa=0,
        placement_group=None,
        labels={"fleet/pool": "system"},
        taints=(),
        images="plain",
        snapshot=None,
        volume=BASELINE_VOLUME,
        nvme=False,
        os="al2023",
        variant="standard",
        arch=arch,
        ami=None,
    )


def _select_system_type(fleet: Fleet, catalogue: Catalogue) -> tuple[str, eks.Arch, tuple[str, ...]]:
    first, second = _SYSTEM_TYPES
    offered = catalogue[first[0]].zones.get(fleet.region, ()) if first[0] in catalogue else ()
    zones = tuple(zone for zone in fleet.zones if zone in offered)
    return (first[0], "arm64", zones) if zones else (second[0], "x86_64", fleet.zones)


def add_node_group(stack: TerraformStack, context: NodeGroupContext, group: Group) -> aws.eks_node_group.EksNodeGroup:
    """Add a node group with its launch template, and the capacity that it starts in."""
    template = machines.add_template(
        stack,
        context,
        group,
        text=node_config.render(group, _build_cluster_data(context)),
        image_parameter=_select_image_parameter(context.fleet, group),
    )
    e = aws.eks_node_group
    eks_node_group = e.EksNodeGroup(
        stack,
        group.name,
        cluster_name=context.cluster.name,
        node_group_name=group.name,
        node_role_arn=context.node_role.arn,
        subnet_ids=context.select_subnets(group),
        capacity_type=_CAPACITY_TYPES[group.purchase_option],
        launch_template=e.EksNodeGroupLaunchTemplate(
            id=template.id, version=format_reference(template, "latest_version")
        ),
        scaling_config=e.EksNodeGroupScalingConfig(
            desired_size=group.min_size, min_size=group.min_size, max_size=max(1, group.max_size)
        ),
        update_config=e.EksNodeGroupUpdateConfig(max_unavailable=1),
        # Replaces what the monitoring agent finds broken, GPUs after 10 minutes. Source: EKS user guide, "Automatically
        # repair nodes", 2026-11. Its cap comes after it: `infra.constructs.node_repair`.
        node_repair_config=e.EksNodeGroupNodeRepairConfig(enabled=True),
        labels=dict(group.labels),
        taint=[
            e.EksNodeGroupTaint(key=taint.key, value=taint.value, effect=taint.eks_effect) for taint in group.taints
        ],
        depends_on=[*context.dependencies],
    )
    # The autoscaler moves it; a plan must not move it back.
    eks_node_group.add_override("lifecycle", {"ignore_changes": ["scaling_config[0].desired_size"]})
    return eks_node_group


def _build_cluster_data(context: NodeGroupContext) -> node_config.ClusterConnection:
    return node_config.ClusterConnection(
        name=names.format_cluster_name(context.fleet),
        endpoint=format_reference(context.cluster, "endpoint"),
        certificate=format_reference(context.cluster, "certificate_authority[0].data"),
        service_cidr=select_service_cidr(context.fleet),
    )


def _select_image_parameter(fleet: Fleet, group: Group) -> str:
    """SSM parameter of the group's pinned AMI."""
    release = fleet.eks.al2023 or eks.AL2023
    if group.os == "bottlerocket":
        release = fleet.eks.bottlerocket or eks.BOTTLEROCKET
    return eks.format_image_parameter(
        os=group.os, release=release, version=fleet.eks.version, variant=group.variant, arch=group.arch
    )
