"""What Karpenter needs of AWS: a role for its controller, one for its nodes, and word of instances about to go."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import alarm, iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.node_groups import add_node_role
from llm_serving.fleet import names

NAMESPACE = "kube-system"
SERVICE_ACCOUNT = "karpenter"

EVENTS = {
    "health": ("aws.health", "AWS Health Event"),
    "spot": ("aws.ec2", "EC2 Spot Instance Interruption Warning"),
    "rebalance": ("aws.ec2", "EC2 Instance Rebalance Recommendation"),
    "state": ("aws.ec2", "EC2 Instance State-change Notification"),
    "reservation": ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
}
"""Source and kind of each event. Source: karpenter.sh/v1.14/reference/cloudformation, 2026-11."""


def add_karpenter(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, kms_key: aws.kms_key.KmsKey) -> None:
    """Add the roles, the queue and its rules. Karpenter itself comes as a chart, its NodePools as manifests."""
    node_iam_role = add_node_role(stack, names.KARPENTER_NODE_PURPOSE)
    # Made here and not by Karpenter, which then needs no right to make any.
    aws.iam_instance_profile.IamInstanceProfile(
        stack,
        "karpenter-profile",
        name=names.format_role_name(stack.fleet.name, stack.account.region, names.KARPENTER_NODE_PURPOSE),
        role=node_iam_role.name,
    )
    aws.eks_access_entry.EksAccessEntry(
        stack, "karpenter-nodes", cluster_name=cluster.name, principal_arn=node_iam_role.arn, type="EC2_LINUX"
    )
    queue = _add_interruption_queue(stack, kms_key)
    iam.add_pod_role(
        stack,
        "karpenter",
        cluster,
        namespace=NAMESPACE,
        service_account=SERVICE_ACCOUNT,
        description="Lets Karpenter start and terminate the fleet's instances",
        statements=iam.read_statements(
            stack, "karpenter", queue=queue.arn, key=kms_key.arn, node_role=node_iam_role.arn
        ),
    )


def _add_interruption_queue(stack: FleetStack, kms_key: aws.kms_key.KmsKey) -> aws.sqs_queue.SqsQueue:
    queue = aws.sqs_queue.SqsQueue(
        stack,
        "interruptions",
        name=names.format_interruption_queue(stack.fleet),
        message_retention_seconds=300,  # a warning is two minutes long; an older message is of no use
        kms_master_key_id=kms_key.arn,
    )
    rules = {
        name: alarm.add_rule(
            stack,
            f"interruption-{name}",
            f"{detail_type}, for Karpenter",
            {"source": [source], "detail-type": [detail_type]},
        )
        for name, (source, detail_type) in EVENTS.items()
    }
    # Karpenter drains the node of any message: only the fleet's own rules may send one.
    from_rules = iam.allow_rules("FromEvents", queue.arn, [rule.arn for rule in rules.values()])
    aws.sqs_queue_policy.SqsQueuePolicy(
        stack,
        "interruptions-policy",
        queue_url=queue.url,
        policy=iam.build_document(from_rules, iam.require_tls("sqs:*", queue.arn)),
    )
    for name, rule in rules.items():
        aws.cloudwatch_event_target.CloudwatchEventTarget(
            stack, f"interruption-{name}-queue", rule=rule.name, arn=queue.arn, target_id="interruptions"
        )
    return queue
