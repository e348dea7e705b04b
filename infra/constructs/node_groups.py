"""Managed node groups: the system's own, and one for each instance group of the pools that node groups keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import iam, machines, registry
from infra.constructs.fleet_stack import FleetStack, format_reference
from infra.constructs.iam import add_role
from llm_serving.fleet import machine_images, node_config
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.fleet.groups import Group

NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
"""AWS's own policies of a node. The CNI's is not among them: its pods have a role of their own."""

_CAPACITY_TYPES = {
    "on-demand": "ON_DEMAND",
    "reservation": "ON_DEMAND",
    "spot": "SPOT",
    "capacity-block": "CAPACITY_BLOCK",
}

_DRAIN_S = 900
"""Longest that EKS waits for the pods of a node, before the update fails. Source: EKS user guide, "Understand each
phase of node updates", PodEvictionFailure, 2026-11."""


@dataclass(frozen=True)
class NodeGroupContext(machines.MachineContext):
    """Network of the nodes, and what they need to join the cluster."""

    node_role: aws.iam_role.IamRole
    dependencies: Sequence[ITerraformDependable]
    """What the first node depends on: the add-ons that nodes need to join, and the node role's policies."""


def add_node_role(stack: FleetStack, name: str) -> aws.iam_role.IamRole:
    """Add a role for nodes; it can do nothing that a pod should do."""
    return add_role(
        stack,
        name,
        description=f"Lets nodes join the cluster {stack.cluster_name}",
        trust=iam.build_trust_policy(f"ec2.{stack.account.dns_suffix}"),
        managed=NODE_POLICIES,
        statements=[
            *iam.read_statements(stack, "session-manager"),
            *registry.build_statements(stack),
        ],
    )


def add_node_group(
    context: NodeGroupContext, group: Group, tags: Mapping[str, str] | None = None, *, is_rooted: bool = False
) -> aws.eks_node_group.EksNodeGroup:
    """Add a node group with its launch template, and the capacity that it starts in.

    Args:
        is_rooted: it stays in the zones that it was made in. In others Terraform would replace it, all nodes at once.
    """
    template = machines.add_template(
        context,
        group,
        text=node_config.render(group, _build_connection(context)),
        image_parameter=machine_images.format_parameter(context.stack.fleet, group),
    )
    eks_node_group = aws.eks_node_group
    node_group = eks_node_group.EksNodeGroup(
        context.stack,
        group.name,
        cluster_name=context.cluster.name,
        node_group_name=group.name,
        node_role_arn=context.node_role.arn,
        subnet_ids=context.select_subnets(group),
        capacity_type=_CAPACITY_TYPES[group.purchase_option],
        launch_template={"id": template.id, "version": format_reference(template, "latest_version")},
        scaling_config=_build_scaling(group),
        update_config={"max_unavailable": 1},
        timeouts={"update": f"{_compute_update_minutes(group)}m"},
        # Replaces what the monitoring agent finds broken, GPUs after 10 minutes. Source: EKS user guide, "Automatically
        # repair nodes", 2026-11. Its caps come after it: `infra.constructs.node_group_settings`.
        node_repair_config={"enabled": True},
        labels=dict(group.labels),
        taint=[
            eks_node_group.EksNodeGroupTaint(key=taint.key, value=taint.value, effect=taint.eks_effect)
            for taint in group.taints
        ],
        tags=dict(tags) if tags else None,
        depends_on=[*context.dependencies],
    )
    # An autoscaler moves it, and a block's start and end; of a pool's new size `node_group_settings` tells EKS.
    ignored = ["scaling_config", *(["subnet_ids"] if is_rooted else [])]
    node_group.add_override("lifecycle.ignore_changes", ignored)
    return node_group


def _build_connection(context: NodeGroupContext) -> node_config.ClusterConnection:
    """Build what nodes join the cluster by."""
    return node_config.ClusterConnection(
        name=context.stack.cluster_name,
        endpoint=format_reference(context.cluster, "endpoint"),
        certificate=format_reference(context.cluster, "certificate_authority[0].data"),
        service_cidr=format_reference(context.cluster, "kubernetes_network_config[0].service_ipv4_cidr"),
    )


def _build_scaling(group: Group) -> dict[str, int]:
    """Build the group's sizes.

    A Capacity Block has machines from its start on; until then every start of one would fail, and so the apply.
    """
    least = 0 if group.purchase_option == "capacity-block" else group.min_size
    return {"desired_size": least, "min_size": least, "max_size": max(1, group.max_size)}


def _compute_update_minutes(group: Group) -> int:
    """Return how long Terraform waits for an update, which takes one node after the other.

    By itself it waits an hour, as for a handful: the apply failed while EKS went on. EKS ends one that stands still.
    Source: hashicorp/terraform-provider-aws 5.100, eks_node_group, Timeouts.
    """
    return max(60, group.max_size * (_DRAIN_S + INSTANCE_START_S) // 60)
