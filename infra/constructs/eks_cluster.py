"""The EKS cluster: private by default, secrets encrypted with its own key, all control-plane logs enabled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from types import MappingProxyType

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import iam, model_reader
from infra.constructs.fleet_stack import FleetStack, format_expression, keep_until_unused
from infra.constructs.function import build_log_grants
from infra.constructs.iam import Statement, add_role, list_policies
from infra.constructs.key import add_key, add_log_group, build_log_group_grant
from infra.constructs.security_group import HTTPS, add_client_rules, add_security_group
from llm_serving.catalog import eks
from llm_serving.fleet.eks_add_ons import list_eks_add_ons
from llm_serving.fleet.model import Fleet, NewNetwork

_SERVICE_CIDRS = ("172.20.0.0/16", "10.100.0.0/16")
_ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"


def add_cluster(
    stack: FleetStack,
    *,
    vpc_id: str,
    subnet_ids: Sequence[str],
    functions: Sequence[str] = (),
    log_groups: Mapping[str, str] = MappingProxyType({}),
) -> tuple[aws.eks_cluster.EksCluster, aws.kms_key.KmsKey]:
    """Add the cluster, its key, role, log group and access entries.

    The key encrypts the logs of Lambda functions too, and further log groups, by the name of their grant.
    """
    name = stack.cluster_name
    group_name = f"/aws/eks/{name}/cluster"
    kms_key = add_key(
        stack,
        "cluster-key",
        alias=f"{stack.fleet.name}-eks",
        description=f"Kubernetes secrets, logs and interruption messages of the cluster {name}",
        grants=(
            build_log_group_grant(stack, group_name),
            *iam.read_statements(stack, "events-key"),
            *(build_log_group_grant(stack, group, sid) for sid, group in log_groups.items()),
            *build_log_grants(stack, functions),
        ),
    )
    # The audit log is among them: who looks into what happened often does so months later.
    logs = add_log_group(stack, "cluster-logs", group_name, kms_key, keep_days=365)
    service_role = _add_service_role(stack, kms_key)
    client_groups = [_add_client_group(stack, vpc_id).id] if stack.fleet.eks.private_from else []
    cluster = _add_eks_cluster(
        stack, service_role, kms_key, subnet_ids, client_groups, depends_on=[logs, *list_policies(service_role)]
    )
    _add_admins(stack, cluster)
    return cluster, kms_key


def _add_service_role(stack: FleetStack, kms_key: aws.kms_key.KmsKey) -> aws.iam_role.IamRole:
    return add_role(
        stack,
        "cluster",
        description=f"Lets EKS run the cluster {stack.cluster_name}",
        trust=iam.build_trust_policy("eks.amazonaws.com", StringEquals={"aws:SourceAccount": stack.account.id}),
        managed=("AmazonEKSClusterPolicy",),
        statements=(
            {
                "Effect": "Allow",
                "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ListGrants", "kms:DescribeKey"],
                "Resource": kms_key.arn,
            },
        ),
    )


def _add_eks_cluster(
    stack: FleetStack,
    service_role: aws.iam_role.IamRole,
    kms_key: aws.kms_key.KmsKey,
    subnet_ids: Sequence[str],
    security_group_ids: Sequence[str],
    depends_on: list[ITerraformDependable],
) -> aws.eks_cluster.EksCluster:
    cluster = aws.eks_cluster.EksCluster(
        stack,
        "cluster",
        name=stack.cluster_name,
        version=stack.fleet.eks.version,
        role_arn=service_role.arn,
        enabled_cluster_log_types=["api", "audit", "authenticator", "controllerManager", "scheduler"],
        # The add-ons bring the same in pinned versions.
        bootstrap_self_managed_addons=False,
        access_config={
            "authentication_mode": "API",
            # EKS's own entry for the creator would collide with an entry of ours for the same role, and a change of
            # this replaces the cluster.
            "bootstrap_cluster_creator_admin_permissions": False,
        },
        encryption_config={"provider": {"key_arn": kms_key.arn}, "resources": ["secrets"]},
        vpc_config={
            "subnet_ids": list(subnet_ids),
            "security_group_ids": list(security_group_ids) or None,
            "endpoint_private_access": True,
            "endpoint_public_access": bool(stack.fleet.eks.public_from),
            "public_access_cidrs": list(stack.fleet.eks.public_from) or None,
        },
        kubernetes_network_config={"ip_family": "ipv4", "service_ipv4_cidr": _select_service_cidr(stack.fleet)},
        # After standard support a version would keep running, at six times the price, until it is upgraded.
        upgrade_policy={"support_type": "EXTENDED"},
        tags={"end-of-standard-support": eks.END_OF_STANDARD_SUPPORT[stack.fleet.eks.version].isoformat()},
        depends_on=depends_on,
    )
    # EKS refuses subnets of other zones than those that the cluster was made in; nodes may be in any of the VPC.
    # Sources: EKS user guide, "Amazon EKS VPC and subnet requirements", 2026-11; aws/containers-roadmap#2258.
    cluster.add_override("lifecycle.ignore_changes", ["vpc_config[0].subnet_ids"])
    return cluster


def _add_client_group(stack: FleetStack, vpc_id: str) -> aws.security_group.SecurityGroup:
    """Add the group of the private endpoint that lets in the clients outside the cluster."""
    name = f"{stack.cluster_name}-api"
    group = add_security_group(
        stack, "api-clients", name=name, description="Clients of the private endpoint", vpc_id=vpc_id
    )
    keep_until_unused(group)
    clients = stack.fleet.eks.private_from
    add_client_rules(stack, "api-client", group, "Kubernetes API", HTTPS, clients, title=name)
    return group


def _select_service_cidr(fleet: Fleet) -> str | None:
    """Return the range of services, clear of the new VPC; None for an existing one, whose ranges EKS itself avoids."""
    if not isinstance(fleet.network, NewNetwork):
        return None
    first, second = _SERVICE_CIDRS
    return second if IPv4Network(fleet.network.cidr).overlaps(IPv4Network(first)) else first


def _add_admins(stack: FleetStack, cluster: aws.eks_cluster.EksCluster) -> None:
    """Add an access entry for each role of the fleet file and for who applies, once where they are the same."""
    principal = format_expression("each.key")
    entry = aws.eks_access_entry.EksAccessEntry(
        stack, "admin", cluster_name=cluster.name, principal_arn=principal, type="STANDARD"
    )
    applies = json.dumps(stack.fleet.eks.applied_by) if stack.fleet.eks.applied_by else _refer_to_caller(stack)
    principals = ", ".join([applies, *map(json.dumps, stack.fleet.eks.admins)])
    association = aws.eks_access_policy_association.EksAccessPolicyAssociation(
        stack,
        "admin-policy",
        cluster_name=cluster.name,
        principal_arn=principal,
        policy_arn=f"arn:{stack.account.partition}:eks::aws:cluster-access-policy/{_ADMIN_POLICY}",
        access_scope={"type": "cluster"},
        depends_on=[entry],
    )
    for resource in (entry, association):
        resource.add_override("for_each", format_expression(f"toset([{principals}])"))


def _refer_to_caller(stack: FleetStack) -> str:
    """Return a reference to the role or user that runs Terraform: who assumed a role calls by a session of it."""
    session = aws.data_aws_iam_session_context.DataAwsIamSessionContext(stack, "caller", arn=stack.account.caller)
    return f"data.aws_iam_session_context.{session.friendly_unique_id}.issuer_arn"


@dataclass(frozen=True)
class _Permissions:
    """What an add-on's controller may do."""

    role: str
    managed: Sequence[str] = ()
    statements: Sequence[Statement] = ()


def add_add_ons(
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
    add_on: eks.AddOn,
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
        dependencies += list_policies(add_on_role)
        association = aws.eks_addon.EksAddonPodIdentityAssociation
        associations = [association(role_arn=add_on_role.arn, service_account=add_on.service_account)]
    return aws.eks_addon.EksAddon(
        stack,
        add_on.name,
        cluster_name=cluster.name,
        addon_name=add_on.name,
        addon_version=add_on.versions[stack.fleet.eks.version],
        configuration_values=json.dumps(add_on.configuration) if add_on.configuration else None,
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
        "aws-mountpoint-s3-csi-driver": _Permissions("s3-csi", statements=model_reader.build_statements(stack)),
    }
