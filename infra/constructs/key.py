"""A customer-managed KMS key: rotated, and open to nobody but the account's own IAM policies and the services named."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import Statement

DELETION_DAYS = 30
"""KMS's longest: what the key has encrypted is lost with it."""


def add_key(
    stack: FleetStack, name: str, *, alias: str, description: str, grants: Sequence[Statement] = ()
) -> aws.kms_key.KmsKey:
    """Add a key and its alias; `grants` are for services that use it without an IAM principal of the account."""
    kms_key = aws.kms_key.KmsKey(
        stack,
        name,
        description=description,
        enable_key_rotation=True,
        deletion_window_in_days=DELETION_DAYS,
        policy=iam.build_document(*iam.read_statements(stack, "key"), *grants),
    )
    aws.kms_alias.KmsAlias(stack, f"{name}-alias", name=f"alias/{alias}", target_key_id=kms_key.key_id)
    return kms_key


def add_log_group(
    stack: FleetStack, construct_id: str, name: str, kms_key: aws.kms_key.KmsKey, *, keep_days: int | None = None
) -> aws.cloudwatch_log_group.CloudwatchLogGroup:
    """Add a log group, encrypted with a key whose policy has `build_log_group_grant` of it.

    It keeps logs for as long as the fleet says, where `keep_days` is left out.
    """
    return aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack,
        construct_id,
        name=name,
        retention_in_days=keep_days or stack.fleet.logs.keep_days,
        kms_key_id=kms_key.arn,
    )


def build_log_group_grant(stack: FleetStack, group: str, sid: str = "LogGroup") -> Statement:
    """Let CloudWatch Logs encrypt this one log group; `sid` distinguishes several grants of one key."""
    [statement] = iam.read_statements(stack, "log-group-key", log_group=group, sid=sid)
    return statement


def find_key(stack: FleetStack, alias: str) -> str:
    """Look up the ARN of one of the fleet's keys."""
    return aws.data_aws_kms_alias.DataAwsKmsAlias(
        stack, f"{alias}-key", name=f"alias/{stack.fleet.name}-{alias}"
    ).target_key_arn
