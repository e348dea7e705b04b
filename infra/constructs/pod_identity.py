"""EKS Pod Identity: a role that the pods of one service account of one cluster take on, without any key."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs import policy, role
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement
from llm_serving.fleet import names

Cluster = aws.eks_cluster.EksCluster | aws.data_aws_eks_cluster.DataAwsEksCluster


def add_role(
    stack: FleetStack,
    name: str,
    cluster: Cluster,
    *,
    namespace: str,
    service_account: str,
    description: str,
    statements: Sequence[Statement],
) -> None:
    """Add the role of a service account's pods. It is linked after the cluster; the account may come later."""
    trust = build_trust_policy(stack)
    pod_role = role.add_role(stack, name, description=description, trust=trust, statements=statements)
    _add_association(stack, name, cluster.name, namespace, service_account, pod_role)


def build_trust_policy(stack: FleetStack) -> str:
    """Trust policy of a role that EKS hands to pods of the fleet's cluster only.

    Source: EKS user guide, "Create IAM role with trust policy required by EKS Pod Identity", 2026-11.
    """
    cluster = stack.account.build_arn("eks", f"cluster/{names.find_eks_cluster(stack.fleet)}")
    return policy.build_document(
        {
            "Effect": "Allow",
            "Principal": {"Service": "pods.eks.amazonaws.com"},
            # The agent tags the session with cluster, namespace and service account.
            "Action": ["sts:AssumeRole", "sts:TagSession"],
            "Condition": {
                "StringEquals": {"aws:SourceAccount": stack.account.id},
                "ArnEquals": {"aws:SourceArn": cluster},
            },
        }
    )


def add_service_association(stack: FleetStack, deployment: str, service: str, pod_role: aws.iam_role.IamRole) -> None:
    """Add the link from the service account of a deployment's service, which its chart names, to a role."""
    cluster, account = names.find_eks_cluster(stack.fleet), f"{deployment}-{service}"
    _add_association(stack, service, cluster, names.SERVING_NAMESPACE, account, pod_role)


def _add_association(
    stack: FleetStack, name: str, cluster: str, namespace: str, service_account: str, pod_role: aws.iam_role.IamRole
) -> None:
    aws.eks_pod_identity_association.EksPodIdentityAssociation(
        stack,
        f"{name}-identity",
        cluster_name=cluster,
        namespace=namespace,
        service_account=service_account,
        role_arn=pod_role.arn,
    )
