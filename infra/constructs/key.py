"""A customer-managed KMS key: rotated, and open to nobody but the account's own IAM policies and the services named."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement

DELETION_DAYS = 30
"""KMS's longest: what the key has encrypted is lost with it."""


def add_key(
    stack: FleetStack, name: str, *, alias: str, description: str, grants: tuple[Statement, ...] = ()
) -> aws.kms_key.KmsKey:
    """Add a key and its alias; `grants` are for services that use it without an IAM principal of the account."""
    # Hands the key to IAM, as AWS's own default does: it grants nobody anything; without it a key can be lost. Source:
    # KMS developer guide, "Default key policy", 2026-11.
    delegation = {
        "Sid": "AccountUsesIam",
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:{stack.account.partition}:iam::{stack.account.id}:root"},
        "Action": "kms:*",
        "Resource": "*",
    }
    kms_key = aws.kms_key.KmsKey(
        stack,
        name,
        description=description,
        enable_key_rotation=True,
        deletion_window_in_days=DELETION_DAYS,
        policy=iam.build_document(delegation, *grants),
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


def build_log_group_grant(account: Account, group: str, sid: str = "LogGroup") -> Statement:
    """Let CloudWatch Logs encrypt this one log group; `sid` distinguishes several grants of one key.

    Source: CloudWatch Logs user guide, "Encrypt log data using KMS", 2026-11.
    """
    service = f"logs.{account.region}.{account.dns_suffix}"
    actions = ["kms:Encrypt*", "kms:Decrypt*", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"]
    context = {"kms:EncryptionContext:aws:logs:arn": account.build_arn("logs", f"log-group:{group}")}
    return iam.allow_service(sid, service, actions, "*", condition={"ArnEquals": context})


def find_key(stack: FleetStack, alias: str) -> str:
    """Look up the ARN of one of the fleet's keys."""
    return aws.data_aws_kms_alias.DataAwsKmsAlias(
        stack, f"{alias}-key", name=f"alias/{stack.fleet.name}-{alias}"
    ).target_key_arn
