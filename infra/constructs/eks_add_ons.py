"""EKS's add-ons in pinned versions, each with the role that it needs and nothing more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformStack
from infra.constructs import model_reader, pod_identity
from infra.constructs.account import Account
from infra.constructs.policy import Statement
from infra.constructs.role import add_role, list_policies
from llm_serving.catalog import eks
from llm_serving.fleet.model import Fleet


@dataclass(frozen=True)
class _Permissions:
    """What an add-on's controller may do."""

    role: str
    managed: Sequence[str] = ()
    statements: Sequence[Statement] = ()


def add(
    stack: TerraformStack,
    fleet: Fleet,
    *,
    cluster: aws.eks_cluster.EksCluster,
    account: Account,
    system: aws.eks_node_group.EksNodeGroup | None,
) -> list[ITerraformDependable]:
    """Add the add-ons that nodes need to join, where `system` is None; else those that run on the system's nodes."""
    permissions = _build_permissions(fleet, account)
    return [
        _add_eks_add_on(stack, fleet, row, permissions.get(row.name), cluster, account, system)
        for row in eks.ADD_ONS
        if row.before_nodes == (system is None)
    ]


def _add_eks_add_on(
    stack: TerraformStack,
    fleet: Fleet,
    row: eks.AddOn,
    permissions: _Permissions | None,
    cluster: aws.eks_cluster.EksCluster,
    account: Account,
    system: aws.eks_node_group.EksNodeGroup | None,
) -> aws.eks_addon.EksAddon:
    associations = []
    dependencies: list[ITerraformDependable] = [system] if system else []
    if permissions and row.service_account:
        add_on_role = add_role(
            stack,
            permissions.role,
            fleet=fleet.name,
            account=account,
            description=f"Lets the add-on {row.name} call AWS",
            trust=pod_identity.build_trust_policy(fleet.name, account),
            managed=permissions.managed,
            statements=permissions.statements,
        )
        dependencies += list_policies(stack, permissions.role)
        association = aws.eks_addon.EksAddonPodIdentityAssociation
        associations = [association(role_arn=add_on_role.arn, service_account=row.service_account)]
    return aws.eks_addon.EksAddon(
        stack,
        row.name,
        cluster_name=cluster.name,
        addon_name=row.name,
        addon_version=row.versions[fleet.eks.version],
        configuration_values=_build_configuration(row.name),
        pod_identity_association=associations or None,
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        depends_on=dependencies,
    )


def _build_configuration(name: str) -> str | None:
    values = {
        # A /28 at a time: pods start without waiting for EC2, and a node's cards take as many pods as its kubelet.
        "vpc-cni": {"env": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}},
        # One replica a zone: a zone that is lost does not take the names along.
        "coredns": {"topologySpreadConstraints": [_build_topology_spread("kube-dns")]},
        # Every node is watched, those with accelerators above all.
        "eks-node-monitoring-agent": {"tolerations": [{"operator": "Exists"}]},
    }
    return json.dumps(values[name]) if name in values else None


def _build_topology_spread(app: str) -> dict[str, object]:
    return {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"k8s-app": app}},
    }


def _build_permissions(fleet: Fleet, account: Account) -> dict[str, _Permissions]:
    return {
        "vpc-cni": _Permissions("vpc-cni", ("AmazonEKS_CNI_Policy",)),
        "aws-ebs-csi-driver": _Permissions("ebs-csi", ("service-role/AmazonEBSCSIDriverPolicy",)),
        "aws-efs-csi-driver": _Permissions("efs-csi", ("service-role/AmazonEFSCSIDriverPolicy",)),
        "aws-fsx-csi-driver": _Permissions("fsx-csi", statements=_build_fsx_statements(fleet, account)),
        "aws-mountpoint-s3-csi-driver": _Permissions(
            "s3-csi", statements=model_reader.build_statements(fleet, account)
        ),
    }


def _build_fsx_statements(fleet: Fleet, account: Account) -> list[Statement]:
    """Narrower than AWS's AmazonFSxFullAccess, which may delete every file system of the account."""
    file_systems = [account.build_arn("fsx", "file-system/*")]
    return [
        {
            "Effect": "Allow",
            "Action": ["fsx:CreateFileSystem", "fsx:TagResource"],
            "Resource": [*file_systems, account.build_arn("fsx", "task/*")],
            "Condition": {"StringEquals": {"aws:RequestTag/fleet": fleet.name}},
        },
        {
            "Effect": "Allow",
            "Action": ["fsx:DeleteFileSystem", "fsx:UpdateFileSystem"],
            "Resource": file_systems,
            "Condition": {"StringEquals": {"aws:ResourceTag/fleet": fleet.name}},
        },
        # FSx describes all or nothing.
        {"Effect": "Allow", "Action": ["fsx:DescribeFileSystems"], "Resource": "*"},
    ]
