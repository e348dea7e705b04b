"""EKS Pod Identity: a role that the pods of one service account of one cluster take on, without any key."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import policy
from infra.constructs.account import Account
from infra.constructs.fleet_stack import FleetStack
from llm_serving.fleet import names


def build_trust_policy(cluster: str, account: Account) -> str:
    """Trust policy of a role that EKS hands to pods of the cluster `cluster` alone.

    Source: EKS user guide, "Create IAM role with trust policy required by EKS Pod Identity", 2026-11.
    """
    return policy.build_document(
        {
            "Effect": "Allow",
            "Principal": {"Service": "pods.eks.amazonaws.com"},
            # The agent tags the session with cluster, namespace and service account.
            "Action": ["sts:AssumeRole", "sts:TagSession"],
            "Condition": {
                "StringEquals": {"aws:SourceAccount": account.id},
                "ArnEquals": {"aws:SourceArn": account.build_arn("eks", f"cluster/{cluster}")},
            },
        }
    )


def add_service_association(stack: FleetStack, deployment: str, service: str, role: aws.iam_role.IamRole) -> None:
    """Add the link from the service account of a deployment's service, which its chart names, to a role."""
    add_association(
        stack,
        service,
        cluster_name=names.format_cluster_name(stack.fleet),
        namespace=names.SERVING_NAMESPACE,
        service_account=f"{deployment}-{service}",
        role=role,
    )


def add_association(
    stack: FleetStack, name: str, *, cluster_name: str, namespace: str, service_account: str, role: aws.iam_role.IamRole
) -> None:
    """Add the link from a service account to its role; the service account may come later.

    Args:
        cluster_name: of the cluster's resource where the stack has it, so that the link comes after the cluster.
    """
    aws.eks_pod_identity_association.EksPodIdentityAssociation(
        stack,
        f"{name}-identity",
        cluster_name=cluster_name,
        namespace=namespace,
        service_account=service_account,
        role_arn=role.arn,
    )
