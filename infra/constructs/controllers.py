"""Roles of the platform's programs that call AWS: the load balancer controller, the cluster autoscaler, Alertmanager.

Their charts give the service accounts these names.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.bindings import aws
from infra.constructs import pod_identity, policy
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement

NAMESPACE = "kube-system"
LOAD_BALANCER_CONTROLLER = "aws-load-balancer-controller"
AUTOSCALER = "cluster-autoscaler"
ALERTMANAGER_NAMESPACE, ALERTMANAGER = "monitoring", "alertmanager"


def add_roles(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, vpc_id: str) -> None:
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
            statements=policy.read_statements(stack, policy_name, vpc=vpc_id),
        )
    if stack.fleet.add_ons.observability and stack.fleet.alarms_to:
        pod_identity.add_role(
            stack,
            "alerts",
            cluster,
            namespace=ALERTMANAGER_NAMESPACE,
            service_account=ALERTMANAGER,
            description="Lets Alertmanager tell the fleet's topic",
            statements=[*_build_publish_statements(stack, stack.fleet.alarms_to)],
        )


def _build_publish_statements(stack: FleetStack, topic: str) -> Iterator[Statement]:
    """Build what publishing takes; the second statement is for a topic that a key of the account encrypts.

    Source: SNS developer guide, "Managing Amazon SNS encryption keys and costs", 2026-11.
    """
    yield policy.allow("Publish", ["sns:Publish"], topic)
    account = stack.account
    through_topic = {
        "kms:ViaService": f"sns.{account.region}.{account.dns_suffix}",
        "kms:EncryptionContext:aws:sns:topicArn": topic,
    }
    keys = account.build_arn("kms", "key/*")
    yield policy.allow(
        "Encrypt", ["kms:Decrypt", "kms:GenerateDataKey"], keys, condition={"StringEquals": through_topic}
    )
