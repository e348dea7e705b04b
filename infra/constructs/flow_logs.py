"""A VPC's flow logs in an encrypted bucket of their own; CloudWatch Logs would cost twice as much."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs.account import Account
from infra.constructs.bucket import add_bucket
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import add_key
from infra.constructs.policy import Statement, allow_service
from llm_serving.fleet.aws_limits import build_bucket_name, convert_to_days

_WRITER = "delivery.logs.amazonaws.com"


def add_flow_logs(stack: FleetStack, *, vpc_id: str, retention_s: float) -> None:
    """Add flow logs of all traffic, accepted and rejected, deleted after `retention_s` seconds and with the fleet."""
    from_here = _build_source_condition(stack.account)
    kms_key = add_key(
        stack,
        "flow-logs-key",
        alias=f"{stack.fleet.name}-flow-logs",
        description=f"Flow logs of the fleet {stack.fleet.name}",
        grants=(_build_key_grant(from_here),),
    )
    bucket_name = build_bucket_name(stack.fleet.name, "flows", stack.account.id, stack.account.region)
    bucket_arn = stack.account.build_bucket_arn(bucket_name)
    bucket = add_bucket(
        stack,
        "flow-logs",
        bucket_name=bucket_name,
        key_arn=kms_key.arn,
        old_versions_days=1,
        expire_days=convert_to_days(retention_s),
        grants=_build_bucket_grants(bucket_arn, stack.account, from_here),
        keep=False,
    )
    flow_log = aws.flow_log.FlowLog(
        stack,
        "flow-log",
        vpc_id=vpc_id,
        traffic_type="ALL",
        log_destination_type="s3",
        log_destination=bucket.arn,
        tags={"Name": stack.fleet.name},
    )
    # Else AWS writes a policy of its own into the bucket first, and the next plan takes it away.
    flow_log.add_override("depends_on", ["aws_s3_bucket_policy.flow-logs-policy"])


def _build_source_condition(account: Account) -> dict[str, dict[str, str]]:
    """Deliveries for this account and region only: another account's could borrow the bucket and the key."""
    return {
        "StringEquals": {"aws:SourceAccount": account.id},
        "ArnLike": {"aws:SourceArn": account.build_arn("logs", "*")},
    }


def _build_bucket_grants(
    bucket_arn: str, account: Account, from_here: dict[str, dict[str, str]]
) -> tuple[Statement, ...]:
    """Let flow logs write. Source: VPC user guide, "Amazon S3 bucket permissions for flow logs", 2026-11."""
    owned = {"s3:x-amz-acl": "bucket-owner-full-control", **from_here["StringEquals"]}
    objects, condition = f"{bucket_arn}/AWSLogs/{account.id}/*", {**from_here, "StringEquals": owned}
    actions = ["s3:GetBucketAcl", "s3:ListBucket"]
    return (
        allow_service("WriteFlowLogs", _WRITER, "s3:PutObject", objects, condition=condition),
        allow_service("FindBucket", _WRITER, actions, bucket_arn, condition=from_here),
    )


def _build_key_grant(from_here: dict[str, dict[str, str]]) -> Statement:
    """Let flow logs encrypt. Source: VPC user guide, "Required key policy for use with SSE-KMS", 2026-11."""
    actions = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
    return allow_service("EncryptFlowLogs", _WRITER, actions, "*", condition=from_here)
