"""Whether the bucket of Terraform's state is there and keeps what it is given."""

from __future__ import annotations

from llm_serving.aws import state_bucket
from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import CheckFailed

_ACTIONS = (
    *("s3:ListBucket", "s3:GetBucketPublicAccessBlock", "s3:GetBucketVersioning", "s3:GetEncryptionConfiguration"),
    *("s3:GetBucketPolicy", "s3:GetLifecycleConfiguration"),
)


def list_checks(aws: AwsSession, fleet: Fleet, caller: Identity, file: str) -> list[Check]:
    """None where the state is a local file.

    Args:
        file: the fleet file, as a command names it.
    """
    if fleet.state == "local":
        return []
    return [Check("state", "state bucket", lambda: _check_bucket(aws, fleet, caller, file), _ACTIONS)]


def _check_bucket(aws: AwsSession, fleet: Fleet, caller: Identity, file: str) -> CheckResult | list[CheckResult]:
    bucket = state_bucket.resolve_state_bucket(fleet, caller.arn)
    check_name = f"s3://{bucket.name}"
    try:
        bucket_status = state_bucket.inspect_bucket(aws, bucket)
    except CheckFailed as error:
        message, _, fix = str(error).removeprefix(f"{check_name}: ").partition(". ")
        return CheckResult(check_name, "fail", message, fix.rstrip("."))
    if not bucket_status.exists:
        command = ("blueprint", "state", "make", "--fleet", file)
        return CheckResult(check_name, "warn", "does not exist yet", "`install` creates it; to create it now", command)
    if not bucket_status.changes:
        return CheckResult(check_name, "pass", "exists: versioned, encrypted, TLS only, no public access")
    return [
        CheckResult(
            check_name, "fail" if change.critical else "warn", f"it {change.reason}", "correct it", change.command
        )
        for change in bucket_status.changes
    ]
