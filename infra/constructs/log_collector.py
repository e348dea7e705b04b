"""Where the log collector of EKS writes, and the role of its pods."""

from __future__ import annotations

from infra.constructs import pod_identity
from infra.constructs.account import Account
from infra.constructs.bucket import add_bucket
from infra.constructs.cluster import Cluster
from infra.constructs.controllers import NAMESPACE
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import add_log_group
from infra.constructs.policy import Statement, allow
from llm_serving.fleet import log_outputs
from llm_serving.fleet.model import Fleet

NAME = "logs"


def add_log_collector(stack: FleetStack, *, cluster: Cluster) -> None:
    """Add the log group or the bucket, encrypted with the cluster's key, and a role that may only write there."""
    _add_output(stack, cluster)
    pod_identity.add_role(
        stack,
        NAME,
        cluster.resource,
        namespace=NAMESPACE,
        service_account=log_outputs.COLLECTOR,
        description=f"Lets {log_outputs.COLLECTOR} send logs",
        statements=build_statements(stack.fleet, stack.account, cluster.key.arn),
    )


def _add_output(stack: FleetStack, cluster: Cluster) -> None:
    """Add what holds the logs; a domain is the user's own."""
    if stack.fleet.logs.to == log_outputs.CLOUDWATCH:
        add_log_group(stack, "container-logs", log_outputs.format_group_name(stack.fleet), cluster.key)
    if stack.fleet.logs.to == log_outputs.S3:
        add_bucket(
            stack,
            NAME,
            bucket_name=log_outputs.format_bucket_name(stack.fleet, stack.account.id),
            key_arn=cluster.key.arn,
            old_versions_days=1,
            expire_days=stack.fleet.logs.keep_days,
            keep=False,
        )


def build_statements(fleet: Fleet, account: Account, key_arn: str) -> list[Statement]:
    """Build what the collector may do: write to the fleet's output, and read nothing.

    Args:
        key_arn: of the key that encrypts the bucket.
    """
    if fleet.logs.to == log_outputs.CLOUDWATCH:
        group = account.build_arn("logs", f"log-group:{log_outputs.format_group_name(fleet)}")
        return [allow("Write", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{group}:*")]
    if fleet.logs.to == log_outputs.S3:
        bucket = log_outputs.format_bucket_name(fleet, account.id)
        objects = account.build_bucket_arn(f"{bucket}/{log_outputs.PREFIX}/*")
        return [allow("Write", ["s3:PutObject"], objects), allow("Encrypt", ["kms:GenerateDataKey"], key_arn)]
    return [allow("Write", ["es:ESHttpPost"], account.build_arn("es", f"domain/{fleet.logs.domain}/*"))]
