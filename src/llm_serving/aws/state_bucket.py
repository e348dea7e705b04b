"""The bucket of Terraform's state: created after its calls are shown, deleted only when no state has resources.

Encryption is SSE-S3. Terraform's S3 backend with `encrypt` on asks for it on every write unless a key is named, so a
KMS default of the bucket would apply to no object; and a key of its own would have to outlive every fleet, since a
state cannot be read without its key. The lock is an object beside the state (`use_lockfile`), so there
is no table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from llm_serving import console
from llm_serving.aws import session as session
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet, parse_arn_account
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable

OLD_VERSIONS_DAYS = 365
"""How long an earlier state can be restored."""

_ABANDONED_UPLOAD_DAYS = 7
_STATE_SUFFIX, _LOCK_SUFFIX = ".tfstate", ".tflock"


class StateBucket(NamedTuple):
    """The bucket of a fleet's state, and its owner."""

    name: str
    region: str
    account: str
    partition: str
    """aws, or aws-cn and its like: the beginning of every ARN."""

    prefix: str
    """Beginning of the states' keys, as in fleets/; whatever else is in the bucket is somebody else's."""


class Change(NamedTuple):
    """One call to S3 that brings the bucket up to date."""

    reason: str
    operation: str
    parameters: Mapping[str, Any]

    critical: bool = True
    """Whether a state is at risk without it."""

    @property
    def command(self) -> tuple[str, ...]:
        """The same call as a command of the AWS CLI."""
        return ("aws", "s3api", self.operation.replace("_", "-"), *session.format_options(self.parameters))


@dataclass(frozen=True)
class BucketStatus:
    exists: bool
    changes: tuple[Change, ...]
    """Calls to make, in order; empty where the bucket is up to date."""


def resolve_state_bucket(fleet: Fleet, caller_arn: str) -> StateBucket:
    """Return the bucket of the fleet's state.

    Args:
        caller_arn: ARN of the identity; the bucket must belong to its account.

    Raises:
        InputError: the state is a local file.
    """
    if fleet.state == "local":
        raise InputError("state: local: the fleet's state is a local file. Fix: write state: s3://BUCKET/PREFIX.")
    name, _, path = fleet.state.removeprefix("s3://").partition("/")
    prefix = f"{path.strip('/')}/".lstrip("/")
    return StateBucket(name, fleet.region, parse_arn_account(caller_arn), caller_arn.split(":")[1], prefix)


def inspect_bucket(aws: AwsSession, bucket: StateBucket) -> BucketStatus:
    """Inspect the bucket and list what it lacks; change nothing.

    Raises:
        CheckFailed: the name belongs to another account, or the bucket is in another region.
    """
    from botocore.exceptions import ClientError

    s3 = aws.client("s3")
    try:
        response = s3.head_bucket(Bucket=bucket.name, ExpectedBucketOwner=bucket.account)
    except ClientError as error:
        if session.get_error_code(error) in ("404", "NoSuchBucket", "NotFound"):
            return BucketStatus(False, (_build_creation(bucket), *_find_changes(bucket, lambda _: {})))
        if session.get_error_code(error) in session.DENIED_CODES:
            raise CheckFailed(
                f"s3://{bucket.name}: it belongs to another account, or this identity has no access to it. "
                "Fix: name another bucket in `state`, or allow s3:ListBucket."
            ) from None
        raise
    region = response.get("BucketRegion", bucket.region)
    if region != bucket.region:
        raise CheckFailed(
            f"s3://{bucket.name}: it is in {region}, and the fleet in {bucket.region}. "
            "Fix: name another bucket in `state`."
        )
    return BucketStatus(True, tuple(_find_changes(bucket, lambda operation: _read_setting(s3, operation, bucket.name))))


def _build_creation(bucket: StateBucket) -> Change:
    # S3's oldest region is the one that must not be named.
    region_configuration = (
        {"CreateBucketConfiguration": {"LocationConstraint": bucket.region}} if bucket.region != "us-east-1" else {}
    )
    parameters = {"Bucket": bucket.name, **region_configuration, "ObjectOwnership": "BucketOwnerEnforced"}
    return Change("does not exist", "create_bucket", parameters)


def _find_changes(bucket: StateBucket, read_setting: Callable[[str], Mapping[str, Any]]) -> Iterator[Change]:
    """Yield the settings to change.

    Args:
        read_setting: returns the response of one of S3's get operations; {} where nothing is set.
    """
    bucket_argument = {"Bucket": bucket.name}
    if read_setting("get_public_access_block").get("PublicAccessBlockConfiguration") != _PUBLIC_ACCESS_BLOCK:
        parameters: dict[str, Any] = {**bucket_argument, "PublicAccessBlockConfiguration": _PUBLIC_ACCESS_BLOCK}
        yield Change("allows public access", "put_public_access_block", parameters)
    if read_setting("get_bucket_versioning").get("Status") != "Enabled":
        parameters = {**bucket_argument, "VersioningConfiguration": {"Status": "Enabled"}}
        yield Change("has no versioning: a state that is overwritten is lost", "put_bucket_versioning", parameters)
    if not read_setting("get_bucket_encryption"):
        parameters = {**bucket_argument, "ServerSideEncryptionConfiguration": _SSE_S3}
        yield Change("is not encrypted", "put_bucket_encryption", parameters)
    statements = _parse_statements(read_setting("get_bucket_policy").get("Policy", "{}"))
    if not any(map(_is_tls_statement, statements)):
        # Statements of others are kept.
        policy = {"Version": "2012-10-17", "Statement": [*statements, _build_tls_statement(bucket)]}
        yield Change(
            "allows access without TLS",
            "put_bucket_policy",
            {**bucket_argument, "Policy": json.dumps(policy)},
            critical=False,
        )
    if not read_setting("get_bucket_lifecycle_configuration"):
        rule = {**_LIFECYCLE_RULE, "Filter": {"Prefix": bucket.prefix}}
        parameters = {**bucket_argument, "LifecycleConfiguration": {"Rules": [rule]}}
        reason = "keeps old versions forever"
        yield Change(reason, "put_bucket_lifecycle_configuration", parameters, critical=False)


_PUBLIC_ACCESS_BLOCK = dict.fromkeys(
    ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
)
_SSE_S3 = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
_LIFECYCLE_RULE = {
    "ID": "old-versions",
    "Status": "Enabled",
    "NoncurrentVersionExpiration": {"NoncurrentDays": OLD_VERSIONS_DAYS},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _ABANDONED_UPLOAD_DAYS},
}


def _build_tls_statement(bucket: StateBucket) -> dict[str, Any]:
    arn = f"arn:{bucket.partition}:s3:::{bucket.name}"
    return {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def _parse_statements(policy: str) -> list[dict[str, Any]]:
    statements = json.loads(policy).get("Statement", [])
    return statements if isinstance(statements, list) else [statements]


def _is_tls_statement(statement: Mapping[str, Any]) -> bool:
    secure_transport = statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")
    return statement["Effect"] == "Deny" and str(secure_transport).lower() == "false"


def _read_setting(s3: Any, operation: str, bucket: str) -> Mapping[str, Any]:
    """Return a setting; {} where the bucket has none, for which most operations return an error."""
    with session.ignore_errors("NoSuch", "ServerSideEncryptionConfigurationNotFound"):
        response: Mapping[str, Any] = getattr(s3, operation)(Bucket=bucket)
        return response
    return {}


def ensure_state_bucket(fleet: Fleet, aws: AwsSession, *, confirm: Callable[[], bool]) -> bool:
    """Create the fleet's state bucket, or the settings that it lacks, after showing each call; idempotent.

    Args:
        confirm: called once, after all calls are shown and before the first one.

    Returns:
        Whether anything was changed.

    Raises:
        InputError: the fleet's state is a local file.
        CheckFailed: the name is taken, the bucket is in another region, or `confirm` returned False.
    """
    with session.translate_errors():
        bucket = resolve_state_bucket(fleet, aws.client("sts").get_caller_identity()["Arn"])
        status = inspect_bucket(aws, bucket)
        if not status.changes:
            return False
        console.err.print(f"s3://{bucket.name} will be {'changed' if status.exists else 'created'}:", markup=False)
        for change in status.changes:
            console.show_command(change.command)
        if not confirm():
            raise CheckFailed(f"s3://{bucket.name} is unchanged: nothing was created")
        with console.step(f"Create the state bucket s3://{bucket.name}"):
            for change in status.changes:
                getattr(aws.client("s3"), change.operation)(**change.parameters)
                if change.operation == "create_bucket":
                    aws.client("s3").get_waiter("bucket_exists").wait(Bucket=bucket.name)
    return True


def remove_state_bucket(fleet: Fleet, aws: AwsSession, *, confirm: Callable[[], bool]) -> bool:
    """Delete the state bucket with all old versions, if no state in it has resources; idempotent.

    Returns:
        Whether there was one.

    Raises:
        InputError: the fleet's state is a local file.
        CheckFailed: a state still has resources, Terraform is running, it has other objects, or `confirm` is False.
    """
    with session.translate_errors():
        bucket = resolve_state_bucket(fleet, aws.client("sts").get_caller_identity()["Arn"])
        if not inspect_bucket(aws, bucket).exists:
            return False
        _require_no_resources(aws.client("s3"), bucket.name)
        console.err.print(f"s3://{bucket.name} will be deleted, with all old versions in it", markup=False)
        if not confirm():
            raise CheckFailed(f"s3://{bucket.name} is unchanged")
        with console.step(f"Delete s3://{bucket.name} with all old versions"):
            delete_all_versions(aws.client("s3"), bucket.name)
            aws.client("s3").delete_bucket(Bucket=bucket.name)
    return True


def _require_no_resources(s3: Any, bucket: str) -> None:
    names = [entry["Key"] for entry in session.list_all(s3, "list_objects_v2", "Contents", Bucket=bucket)]
    locks = [name for name in names if name.endswith(_LOCK_SUFFIX)]
    if locks:
        raise CheckFailed(
            f"s3://{bucket}/{locks[0]}: Terraform is running, or was interrupted. "
            "Fix: wait, or run `terraform force-unlock` in its stack."
        )
    other_names = [name for name in names if not name.endswith(_STATE_SUFFIX)]
    if other_names:
        raise CheckFailed(
            f"s3://{bucket}: {len(other_names)} objects are not Terraform states, {other_names[0]} among them. "
            "Fix: move them to another bucket."
        )
    for name in names:
        count = len(json.loads(s3.get_object(Bucket=bucket, Key=name)["Body"].read()).get("resources", ()))
        if count:
            raise CheckFailed(
                f"s3://{bucket}/{name}: still {count} resources, which would be orphaned. Fix: destroy its stack first."
            )


def delete_all_versions(s3: Any, bucket: str) -> None:
    """Delete every version of every object.

    Raises:
        Unavailable: S3 keeps one, as where a retention holds it.
    """
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
    for page in pages:
        versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        if versions:
            objects = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in versions]
            response = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
            for error in response.get("Errors", ()):
                raise Unavailable(f"s3://{bucket}/{error['Key']}: S3 does not delete it: {error['Message']}")
