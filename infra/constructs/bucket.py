"""A private bucket: versioned, encrypted with the fleet's key, reached over TLS only, and cleaned up by itself.

Server access logs are left off on purpose: their target cannot be encrypted with a KMS key, and CloudTrail data events,
which the account's owner switches on for all buckets at once, record the same with the caller's identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import Statement

_ABANDONED_UPLOAD_DAYS = 7
"""A multipart upload that nobody finishes is paid for until it is aborted."""


def add_bucket(
    stack: FleetStack,
    name: str,
    *,
    bucket_name: str,
    key_arn: str,
    old_versions_days: int,
    expire_days: int = 0,
    grants: Sequence[Statement] = (),
    keep: bool = True,
) -> aws.s3_bucket.S3Bucket:
    """Add a bucket and everything that keeps it private.

    Args:
        old_versions_days: how long an overwritten or deleted object can be brought back.
        expire_days: objects are deleted at this age; 0 keeps them.
        grants: statements for services that use the bucket without an IAM principal of the account.
        keep: whether a destroy refuses a bucket that is not empty.
    """
    s3_bucket = aws.s3_bucket.S3Bucket(stack, name, bucket=bucket_name, force_destroy=not keep)
    versioning = aws.s3_bucket_versioning.S3BucketVersioningA(
        stack,
        f"{name}-versioning",
        bucket=s3_bucket.bucket,
        versioning_configuration={"status": "Enabled"},
    )
    _add_encryption(stack, name, s3_bucket, key_arn)
    _add_access_controls(stack, name, s3_bucket, grants)
    aws.s3_bucket_lifecycle_configuration.S3BucketLifecycleConfiguration(
        stack,
        f"{name}-lifecycle",
        bucket=s3_bucket.bucket,
        rule=_build_lifecycle_rules(old_versions_days, expire_days),
        depends_on=[versioning],
    )
    return s3_bucket


def _add_encryption(stack: FleetStack, name: str, s3_bucket: aws.s3_bucket.S3Bucket, key_arn: str) -> None:
    encryption = aws.s3_bucket_server_side_encryption_configuration
    encryption.S3BucketServerSideEncryptionConfigurationA(
        stack,
        f"{name}-encryption",
        bucket=s3_bucket.bucket,
        rule=[
            encryption.S3BucketServerSideEncryptionConfigurationRuleA(
                # One data key for many objects: without it each GET of a shard is a call to KMS.
                bucket_key_enabled=True,
                apply_server_side_encryption_by_default={"sse_algorithm": "aws:kms", "kms_master_key_id": key_arn},
            )
        ],
    )


def _add_access_controls(
    stack: FleetStack, name: str, s3_bucket: aws.s3_bucket.S3Bucket, grants: Sequence[Statement]
) -> None:
    block = aws.s3_bucket_public_access_block.S3BucketPublicAccessBlock(
        stack,
        f"{name}-public-access",
        bucket=s3_bucket.bucket,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
    )
    aws.s3_bucket_ownership_controls.S3BucketOwnershipControls(
        stack,
        f"{name}-ownership",
        bucket=s3_bucket.bucket,
        rule={"object_ownership": "BucketOwnerEnforced"},
    )
    aws.s3_bucket_policy.S3BucketPolicy(
        stack,
        f"{name}-policy",
        bucket=s3_bucket.bucket,
        policy=iam.build_document(iam.require_tls("s3:*", [s3_bucket.arn, f"{s3_bucket.arn}/*"]), *grants),
        # S3 answers a conflict when both are set at once.
        depends_on=[block],
    )


def _build_lifecycle_rules(
    old_versions_days: int, expire_days: int
) -> list[aws.s3_bucket_lifecycle_configuration.S3BucketLifecycleConfigurationRule]:
    lifecycle = aws.s3_bucket_lifecycle_configuration
    old_versions = lifecycle.S3BucketLifecycleConfigurationRuleNoncurrentVersionExpiration(
        noncurrent_days=old_versions_days
    )
    uploads = lifecycle.S3BucketLifecycleConfigurationRuleAbortIncompleteMultipartUpload(
        days_after_initiation=_ABANDONED_UPLOAD_DAYS
    )
    actions: dict[str, Any] = {
        "old-versions": {"noncurrent_version_expiration": [old_versions]},
        "abandoned-uploads": {"abort_incomplete_multipart_upload": [uploads]},
    }
    if expire_days:
        actions["expiry"] = {"expiration": [lifecycle.S3BucketLifecycleConfigurationRuleExpiration(days=expire_days)]}
    whole_bucket = [lifecycle.S3BucketLifecycleConfigurationRuleFilter(prefix="")]
    return [
        lifecycle.S3BucketLifecycleConfigurationRule(id=name, filter=whole_bucket, status="Enabled", **action)
        for name, action in actions.items()
    ]
