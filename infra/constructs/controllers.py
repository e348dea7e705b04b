"""Roles of the platform's programs that call AWS: load balancer controller, autoscaler, Alertmanager, log collector.

Their charts give the service accounts these names.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.bucket import add_bucket
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement, allow
from infra.constructs.key import add_log_group
from llm_serving.fleet import log_outputs
from llm_serving.fleet.model import Fleet

NAMESPACE = "kube-system"
LOAD_BALANCER_CONTROLLER = "aws-load-balancer-controller"
AUTOSCALER = "cluster-autoscaler"
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
            statements=[*_build_publish_statements(stack, stack.fleet.alarms_to)],
        )


def _build_publish_statements(stack: FleetStack, topic: str) -> Iterator[Statement]:
    """Build what publishing takes; the second statement is for a topic that a key of the account encrypts.

    Source: SNS developer guide, "Managing Amazon SNS encryption keys and costs", 2026-11.
    """
    yield allow("Publish", ["sns:Publish"], topic)
    account = stack.account
    through_topic = {
        "kms:ViaService": f"sns.{account.region}.{account.dns_suffix}",
        "kms:EncryptionContext:aws:sns:topicArn": topic,
    }
    keys = account.build_arn("kms", "key/*")
    yield allow("Encrypt", ["kms:Decrypt", "kms:GenerateDataKey"], keys, condition={"StringEquals": through_topic})


LOGS = "logs"


def add_log_collector(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, key: aws.kms_key.KmsKey) -> None:
    """Add the log group or the bucket, encrypted with the cluster's key, and a role that may only write there."""
    if stack.fleet.logs.to == log_outputs.CLOUDWATCH:
        add_log_group(stack, "container-logs", log_outputs.format_group_name(stack.fleet), key)
    if stack.fleet.logs.to == log_outputs.S3:
        add_bucket(
            stack,
            LOGS,
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
