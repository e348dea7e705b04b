"""EKS's add-ons in pinned versions, each with the role that it needs and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import iam, model_reader
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import Statement, add_role, list_policies
from llm_serving.fleet.eks_add_ons import EksAddOn, list_eks_add_ons


@dataclass(frozen=True)
class _Permissions:
    """What an add-on's controller may do."""

    role: str
    managed: Sequence[str] = ()
    statements: Sequence[Statement] = ()


def add(
    stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, system: aws.eks_node_group.EksNodeGroup | None
) -> list[ITerraformDependable]:
    """Add the add-ons that nodes need to join, where `system` is None; else those that run on the system's nodes."""
    permissions = _build_permissions(stack)
    return [
        _add_eks_add_on(stack, add_on, permissions.get(add_on.name), cluster, system)
        for add_on in list_eks_add_ons(stack.fleet)
        if add_on.before_nodes == (system is None)
    ]


def _add_eks_add_on(
    stack: FleetStack,
    add_on: EksAddOn,
    permissions: _Permissions | None,
    cluster: aws.eks_cluster.EksCluster,
    system: aws.eks_node_group.EksNodeGroup | None,
) -> aws.eks_addon.EksAddon:
    associations = []
    dependencies: list[ITerraformDependable] = [system] if system else []
    if permissions and add_on.service_account:
        add_on_role = add_role(
            stack,
            permissions.role,
            description=f"Lets the add-on {add_on.name} call AWS",
            trust=iam.build_pod_trust_policy(stack),
            managed=permissions.managed,
            statements=permissions.statements,
        )
        dependencies += list_policies(stack, permissions.role)
        association = aws.eks_addon.EksAddonPodIdentityAssociation
        associations = [association(role_arn=add_on_role.arn, service_account=add_on.service_account)]
    return aws.eks_addon.EksAddon(
        stack,
        add_on.name,
        cluster_name=cluster.name,
        addon_name=add_on.name,
        addon_version=add_on.version,
        configuration_values=add_on.configuration,
        pod_identity_association=associations or None,
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        depends_on=dependencies,
    )


def _build_permissions(stack: FleetStack) -> dict[str, _Permissions]:
    return {
        "vpc-cni": _Permissions("vpc-cni", ("AmazonEKS_CNI_Policy",)),
        "aws-ebs-csi-driver": _Permissions("ebs-csi", ("service-role/AmazonEBSCSIDriverPolicy",)),
        "aws-efs-csi-driver": _Permissions("efs-csi", ("service-role/AmazonEFSCSIDriverPolicy",)),
        "aws-fsx-csi-driver": _Permissions("fsx-csi", statements=iam.read_statements(stack, "fsx-csi-driver")),
        "aws-mountpoint-s3-csi-driver": _Permissions(
            "s3-csi", statements=model_reader.build_statements(stack.fleet, stack.account)
        ),
    }
