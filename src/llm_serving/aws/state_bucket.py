"""The bucket of Terraform's state: made once, shown before it is made, and taken away only when no state holds a thing.

Encryption is SSE-S3. Terraform's S3 backend with `encrypt` on asks for it on every write unless a key is named, so a
KMS default of the bucket would be a promise that no object keeps; and a key of its own would have to outlive every
fleet, for a state whose key is gone is gone with it. The lock is an object beside the state (`use_lockfile`), so there
is no table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.aws.session import Aws
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import AnswerIsNo, InputError

OLD_VERSIONS_DAYS = 365
"""How long an earlier state can be brought back."""

_ABANDONED_UPLOAD_DAYS = 7
_STATE, _LOCK = ".tfstate", ".tflock"


class Place(NamedTuple):
    """Where a fleet's state lies, and whose it must be."""

    bucket: str
    region: str
    account: str
    partition: str
    """aws, or aws-cn and its like: the beginning of every ARN."""


class Change(NamedTuple):
    """One call to S3 that makes the bucket what it should be."""

    why: str
    operation: str
    parameters: Mapping[str, Any]

    grave: bool = True
    """Whether a state is in danger without it."""

    @property
    def command(self) -> tuple[str, ...]:
        """The same as a command of AWS's own command line."""
        words = [
            word
            for name, value in self.parameters.items()
            for word in (f"--{_kebab(name)}", value if isinstance(value, str) else json.dumps(value))
        ]
        return ("aws", "s3api", self.operation.replace("_", "-"), *words)


@dataclass(frozen=True)
class Found:
    """The bucket as it is."""

    exists: bool
    lacking: tuple[Change, ...]
    """What would have to be done, in order; empty where all is as it should be."""


def _kebab(name: str) -> str:
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in name).removeprefix("-")


def place(fleet: Fleet, caller: str) -> Place:
    """Where the fleet's state lies.

    Args:
        caller: ARN of the identity that asks: its account is the one that the bucket must belong to.

    Raises:
        InputError: it is kept in a local file.
    """
    if fleet.state == "local":
        raise InputError("state: now local: the fleet's state is a local file. Write state: s3://BUCKET/PREFIX.")
    bucket = fleet.state.removeprefix("s3://").split("/")[0]
    return Place(bucket, fleet.region, account=caller.split(":")[4], partition=caller.split(":")[1])


def look(aws: Aws, where: Place) -> Found:
    """The bucket as it is, and what it lacks; changes nothing.

    Raises:
        AnswerIsNo: the name belongs to another account, or the bucket stands in another region.
    """
    from botocore.exceptions import ClientError

    s3 = aws.client("s3")
    try:
        found = s3.head_bucket(Bucket=where.bucket, ExpectedBucketOwner=where.account)
    except ClientError as error:
        if clients.code(error) in ("404", "NoSuchBucket", "NotFound"):
            return Found(False, (_creation(where), *_lacking(where, lambda _: {})))
        if clients.code(error) in clients.DENIED:
            raise AnswerIsNo(
                f"s3://{where.bucket}: it belongs to another account, or this identity may not see it. "
                "Write another bucket in `state`, or allow s3:ListBucket."
            ) from None
        raise
    region = found.get("BucketRegion", where.region)
    if region != where.region:
        raise AnswerIsNo(
            f"s3://{where.bucket}: it is in {region}, and the fleet in {where.region}. Write another bucket in `state`."
        )
    return Found(True, tuple(_lacking(where, lambda operation: _setting(s3, operation, where.bucket))))


def _creation(where: Place) -> Change:
    # S3's oldest region is the one that must not be named.
    named = {"CreateBucketConfiguration": {"LocationConstraint": where.region}} if where.region != "us-east-1" else {}
    parameters = {"Bucket": where.bucket, **named, "ObjectOwnership": "BucketOwnerEnforced"}
    return Change("is not there", "create_bucket", parameters)


def _lacking(where: Place, now: Callable[[str], Mapping[str, Any]]) -> Iterator[Change]:
    """The settings that are not as they should be.

    Args:
        now: the answer to one of S3's get operations; {} where nothing is set.
    """
    named = {"Bucket": where.bucket}
    if now("get_public_access_block").get("PublicAccessBlockConfiguration") != _CLOSED:
        parameters: dict[str, Any] = {**named, "PublicAccessBlockConfiguration": _CLOSED}
        yield Change("may be opened to the public", "put_public_access_block", parameters)
    if now("get_bucket_versioning").get("Status") != "Enabled":
        parameters = {**named, "VersioningConfiguration": {"Status": "Enabled"}}
        yield Change("keeps no versions: a state that is overwritten is lost", "put_bucket_versioning", parameters)
    if not now("get_bucket_encryption"):
        parameters = {**named, "ServerSideEncryptionConfiguration": _SSE_S3}
        yield Change("is not encrypted", "put_bucket_encryption", parameters)
    statements = _statements(now("get_bucket_policy").get("Policy", "{}"))
    if not any(map(_refuses_plain_http, statements)):
        # What others have written there stays.
        policy = {"Version": "2012-10-17", "Statement": [*statements, _tls_only(where)]}
        yield Change("answers without TLS", "put_bucket_policy", {**named, "Policy": json.dumps(policy)}, grave=False)
    if not now("get_bucket_lifecycle_configuration"):
        parameters = {**named, "LifecycleConfiguration": {"Rules": [_OLD_VERSIONS]}}
        why = "keeps old versions for ever"
        yield Change(why, "put_bucket_lifecycle_configuration", parameters, grave=False)


_CLOSED = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True)
_SSE_S3 = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
_OLD_VERSIONS = {
    "ID": "old-versions",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "NoncurrentVersionExpiration": {"NoncurrentDays": OLD_VERSIONS_DAYS},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _ABANDONED_UPLOAD_DAYS},
}


def _tls_only(where: Place) -> dict[str, Any]:
    arn = f"arn:{where.partition}:s3:::{where.bucket}"
    return {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def _statements(policy: str) -> list[dict[str, Any]]:
    found = json.loads(policy).get("Statement", [])
    return found if isinstance(found, list) else [found]


def _refuses_plain_http(statement: Mapping[str, Any]) -> bool:
    asked = statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")
    return statement["Effect"] == "Deny" and str(asked).lower() == "false"


def _setting(s3: Any, operation: str, bucket: str) -> Mapping[str, Any]:
    """A setting; {} where the bucket has none, which S3 says by an error for most."""
    from botocore.exceptions import ClientError

    try:
        answer: Mapping[str, Any] = getattr(s3, operation)(Bucket=bucket)
    except ClientError as error:
        if clients.code(error).startswith(("NoSuch", "ServerSideEncryptionConfigurationNotFound")):
            return {}
        raise
    return answer


def ensure_state_bucket(fleet: Fleet, *, agree: Callable[[], bool], aws: Aws | None = None) -> bool:
    """Makes the fleet's state bucket, or what an existing one lacks, after showing each call; safe to repeat.

    Args:
        agree: asked once, after all calls are shown and before the first is made.
        aws: clients of the fleet's region; the environment's where left out.

    Returns:
        Whether anything was changed.

    Raises:
        InputError: the fleet's state is a local file.
        AnswerIsNo: the name is taken, the bucket is in another region, or `agree` said no.
        Unavailable: no credentials, no answer, or a refusal.
    """
    aws = aws or Aws(fleet.region)
    with clients.refusals():
        where = place(fleet, aws.client("sts").get_caller_identity()["Arn"])
        found = look(aws, where)
        if not found.lacking:
            return False
        console.err.print(f"s3://{where.bucket} will be {'changed' if found.exists else 'made'}:", markup=False)
        for change in found.lacking:
            console.show(change.command)
        if not agree():
            raise AnswerIsNo(f"s3://{where.bucket} is left as it is: nothing was made")
        with console.step(f"Make the state bucket s3://{where.bucket}"):
            for change in found.lacking:
                getattr(aws.client("s3"), change.operation)(**change.parameters)
                if change.operation == "create_bucket":
                    aws.client("s3").get_waiter("bucket_exists").wait(Bucket=where.bucket)
    return True


def remove_state_bucket(fleet: Fleet, *, agree: Callable[[], bool], aws: Aws | None = None) -> bool:
    """Deletes the state bucket with all old versions, if no state in it holds a resource; safe to repeat.

    Returns:
        Whether there was one.

    Raises:
        InputError: the fleet's state is a local file.
        AnswerIsNo: a state still holds resources, Terraform is at work, other things lie there, or `agree` said no.
        Unavailable: no credentials, no answer, or a refusal.
    """
    aws = aws or Aws(fleet.region)
    with clients.refusals():
        where = place(fleet, aws.client("sts").get_caller_identity()["Arn"])
        if not look(aws, where).exists:
            return False
        _see_that_nothing_is_held(aws.client("s3"), where.bucket)
        console.err.print(f"s3://{where.bucket} will be deleted, with all old versions in it", markup=False)
        if not agree():
            raise AnswerIsNo(f"s3://{where.bucket} is left as it is")
        with console.step(f"Remove s3://{where.bucket} and the old versions in it"):
            empty(aws.client("s3"), where.bucket)
            aws.client("s3").delete_bucket(Bucket=where.bucket)
    return True


def _see_that_nothing_is_held(s3: Any, bucket: str) -> None:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    names = [one["Key"] for page in pages for one in page.get("Contents", ())]
    locks = [name for name in names if name.endswith(_LOCK)]
    if locks:
        raise AnswerIsNo(
            f"s3://{bucket}/{locks[0]}: Terraform is at work, or was stopped while it was. "
            "Wait, or run `terraform force-unlock` in its stack."
        )
    others = [name for name in names if not name.endswith(_STATE)]
    if others:
        raise AnswerIsNo(f"s3://{bucket}: {len(others)} objects are no state of Terraform's, {others[0]} among them")
    for name in names:
        count = len(json.loads(s3.get_object(Bucket=bucket, Key=name)["Body"].read()).get("resources", ()))
        if count:
            raise AnswerIsNo(
                f"s3://{bucket}/{name} still holds {count} resources. Destroy its stack first, or they are orphaned."
            )


def empty(s3: Any, bucket: str) -> None:
    """Deletes every version of every object."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
    for page in pages:
        found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        if found:
            objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
            s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
