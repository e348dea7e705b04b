"""EKS's add-ons in pinned versions, each with the role that it needs and nothing more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs import model_reader, pod_identity
from infra.constructs.account import Account
from infra.constructs.role import rights, role
from llm_serving.catalog import eks
from llm_serving.fleet.model import Fleet


@dataclass(frozen=True)
class _Right:
    """What an add-on's controller may do."""

    role: str
    managed: Sequence[str] = ()
    statements: Sequence[Mapping[str, Any]] = ()


def add(stack: Any, fleet: Fleet, *, cluster: Any, account: Account, system: Any | None) -> list[Any]:
    """Adds the add-ons that nodes need to join, where `system` is None; else those that run on the system's nodes."""
    rights = _rights(fleet, account)
    return [
        _add_on(stack, fleet, row, rights.get(row.name), cluster, account, system)
        for row in eks.ADD_ONS
        if row.before_nodes == (system is None)
    ]


def _add_on(
    stack: Any, fleet: Fleet, row: eks.AddOn, right: _Right | None, cluster: Any, account: Account, system: Any | None
) -> Any:
    identity, before = [], [system] if system else []
    if right and row.service_account:
        made = role(
            stack,
            right.role,
            fleet=fleet.name,
            account=account,
            description=f"Lets the add-on {row.name} call AWS",
            trust=pod_identity.trust(fleet.name, account),
            managed=right.managed,
            statements=right.statements,
        )
        before += rights(stack, right.role)
        binding = aws.eks_addon.EksAddonPodIdentityAssociation
        identity = [binding(role_arn=made.arn, service_account=row.service_account)]
    return aws.eks_addon.EksAddon(
        stack,
        row.name,
        cluster_name=cluster.name,
        addon_name=row.name,
        addon_version=row.versions[fleet.eks.version],
        configuration_values=_configuration(row.name),
        pod_identity_association=identity or None,
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        depends_on=before,
    )


def _configuration(name: str) -> str | None:
    values = {
        # A /28 at a time: pods start without waiting for EC2, and a node's cards take as many pods as its kubelet.
        "vpc-cni": {"env": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}},
        # One replica a zone: a zone that is lost does not take the names along.
        "coredns": {"topologySpreadConstraints": [_spread("kube-dns")]},
        # Every node is watched, those with accelerators above all.
        "eks-node-monitoring-agent": {"tolerations": [{"operator": "Exists"}]},
    }
    return json.dumps(values[name]) if name in values else None


def _spread(app: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"k8s-app": app}},
    }


def _rights(fleet: Fleet, account: Account) -> dict[str, _Right]:
    return {
        "vpc-cni": _Right("vpc-cni", ("AmazonEKS_CNI_Policy",)),
        "aws-ebs-csi-driver": _Right("ebs-csi", ("service-role/AmazonEBSCSIDriverPolicy",)),
        "aws-efs-csi-driver": _Right("efs-csi", ("service-role/AmazonEFSCSIDriverPolicy",)),
        "aws-fsx-csi-driver": _Right("fsx-csi", statements=_fsx(fleet, account)),
        "aws-mountpoint-s3-csi-driver": _Right("s3-csi", statements=model_reader.statements(fleet, account)),
    }


def _fsx(fleet: Fleet, account: Account) -> list[dict[str, Any]]:
    """Narrower than AWS's AmazonFSxFullAccess, which may delete every file system of the account."""
    systems = [account.arn("fsx", "file-system/*")]
    return [
        {
            "Effect": "Allow",
            "Action": ["fsx:CreateFileSystem", "fsx:TagResource"],
            "Resource": [*systems, account.arn("fsx", "task/*")],
            "Condition": {"StringEquals": {"aws:RequestTag/fleet": fleet.name}},
        },
        {
            "Effect": "Allow",
            "Action": ["fsx:DeleteFileSystem", "fsx:UpdateFileSystem"],
            "Resource": systems,
            "Condition": {"StringEquals": {"aws:ResourceTag/fleet": fleet.name}},
        },
        # FSx describes all or nothing.
        {"Effect": "Allow", "Action": ["fsx:DescribeFileSystems"], "Resource": "*"},
    ]
