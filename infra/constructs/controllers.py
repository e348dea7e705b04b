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


def add_roles(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster) -> None:
    for name, service_account, policy_name in (
        ("load-balancers", LOAD_BALANCER_CONTROLLER, "load-balancer-controller"),
        ("autoscaler", AUTOSCALER, "cluster-autoscaler"),
    ):
        pod_identity.add_role(
            stack,
            name,
            cluster,
            namespace=NAMESPACE,
            service_account=service_account,
            description=f"Lets {service_account} call AWS",
            statements=policy.read_statements(stack, policy_name),
        )
