"""Roles of the platform's controllers that call AWS: the load balancer controller and the cluster autoscaler.

Their charts give the service accounts these names.
"""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import pod_identity, policy
from infra.constructs.fleet_stack import FleetStack

NAMESPACE = "kube-system"
LOAD_BALANCER_CONTROLLER = "aws-load-balancer-controller"
AUTOSCALER = "cluster-autoscaler"


def add_load_balancer_role(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster) -> None:
    _add_controller_role(stack, "load-balancers", LOAD_BALANCER_CONTROLLER, cluster, "load-balancer-controller")


def add_autoscaler_role(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster) -> None:
    """Add the cluster autoscaler's role; Karpenter sizes what it starts itself."""
    _add_controller_role(stack, "autoscaler", AUTOSCALER, cluster, "cluster-autoscaler")


def _add_controller_role(
    stack: FleetStack, name: str, service_account: str, cluster: aws.eks_cluster.EksCluster, policy_name: str
) -> None:
    pod_identity.add_role(
        stack,
        name,
        cluster,
        namespace=NAMESPACE,
        service_account=service_account,
        description=f"Lets {service_account} call AWS",
        statements=policy.read_statements(stack, policy_name),
    )
