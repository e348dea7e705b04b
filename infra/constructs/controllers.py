"""What the platform's programs that call AWS need: load balancer controller, autoscalers, Alertmanager, log collector.

Their charts give the service accounts these names.
"""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import alarm, iam
from infra.constructs.bucket import add_bucket
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement, allow
from infra.constructs.key import add_log_group
from infra.constructs.node_groups import add_node_role
from llm_serving.fleet import log_outputs, names
from llm_serving.fleet.model import Fleet

NAMESPACE = "kube-system"
LOAD_BALANCER_CONTROLLER = "aws-load-balancer-controller"
AUTOSCALER = "cluster-autoscaler"
KARPENTER = "karpenter"
ALERTMANAGER_NAMESPACE, ALERTMANAGER = "monitoring", "alertmanager"


def add_roles(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, vpc_id: str) -> None:
    for name, service_account, policy_name in (
        ("load-balancers", LOAD_BALANCER_CONTROLLER, "load-balancer-controller"),
        ("autoscaler", AUTOSCALER, "cluster-autoscaler"),
    ):
        iam.add_pod_role(
            stack,
            name,
            cluster,
            namespace=NAMESPACE,
            service_account=service_account,
            description=f"Lets {service_account} call AWS",
            statements=iam.read_statements(stack, policy_name, vpc=vpc_id),
        )
    if stack.fleet.add_ons.observability and stack.fleet.alarms_to:
        iam.add_pod_role(
            stack,
            "alerts",
            cluster,
            namespace=ALERTMANAGER_NAMESPACE,
            service_account=ALERTMANAGER,
            description="Lets Alertmanager tell the fleet's topic",
            statements=iam.read_statements(stack, "publish", topic=stack.fleet.alarms_to),
        )


LOGS = "logs"


def add_log_collector(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, key: aws.kms_key.KmsKey) -> None:
    """Add the log group or the bucket, encrypted with the cluster's key, and a role that may only write there."""
    if stack.fleet.logs.to == log_outputs.CLOUDWATCH:
        add_log_group(stack, log_outputs.GROUP, log_outputs.format_group_name(stack.fleet), key)
    if stack.fleet.logs.to == log_outputs.S3:
        add_bucket(
            stack,
            log_outputs.BUCKET,
            bucket_name=log_outputs.format_bucket_name(stack.fleet, stack.account.id),
            key_arn=key.arn,
            old_versions_days=1,
            expire_days=stack.fleet.logs.keep_days,
            keep=False,
        )
    iam.add_pod_role(
        stack,
        LOGS,
        cluster,
        namespace=NAMESPACE,
        service_account=log_outputs.COLLECTOR,
        description=f"Lets {log_outputs.COLLECTOR} send logs",
        statements=build_log_statements(stack.fleet, stack.account, key.arn),
    )


def build_log_statements(fleet: Fleet, account: Account, key_arn: str) -> list[Statement]:
    """Build what the collector may do: write to the fleet's output, encrypted by a bucket's key, and read nothing."""
    if fleet.logs.to == log_outputs.CLOUDWATCH:
        group = account.build_arn("logs", f"log-group:{log_outputs.format_group_name(fleet)}")
        return [allow("Write", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{group}:*")]
    if fleet.logs.to == log_outputs.S3:
        bucket = log_outputs.format_bucket_name(fleet, account.id)
        objects = account.build_bucket_arn(f"{bucket}/{log_outputs.PREFIX}/*")
        return [allow("Write", ["s3:PutObject"], objects), allow("Encrypt", ["kms:GenerateDataKey"], key_arn)]
    return [allow("Write", ["es:ESHttpPost"], account.build_arn("es", f"domain/{fleet.logs.domain}/*"))]


_INTERRUPTIONS = {
    "health": ("aws.health", "AWS Health Event"),
    "spot": ("aws.ec2", "EC2 Spot Instance Interruption Warning"),
    "rebalance": ("aws.ec2", "EC2 Instance Rebalance Recommendation"),
    "state": ("aws.ec2", "EC2 Instance State-change Notification"),
    "reservation": ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
}
"""Source and kind of each event. Source: karpenter.sh/v1.14/reference/cloudformation, 2026-11."""


def add_karpenter(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, kms_key: aws.kms_key.KmsKey) -> None:
    """Add the roles of Karpenter's controller and nodes, and a queue with word of instances about to go.

    Karpenter itself comes as a chart, its NodePools as manifests.
    """
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
        service_account=KARPENTER,
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
        for name, (source, detail_type) in _INTERRUPTIONS.items()
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
