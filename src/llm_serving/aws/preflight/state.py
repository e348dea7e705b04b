"""Whether the bucket of Terraform's state is there and keeps what it is given."""

from __future__ import annotations

from llm_serving.aws import state_bucket
from llm_serving.aws.preflight.check import Line, Question
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.session import Aws
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import AnswerIsNo

_ACTIONS = (
    *("s3:ListBucket", "s3:GetBucketPublicAccessBlock", "s3:GetBucketVersioning", "s3:GetEncryptionConfiguration"),
    *("s3:GetBucketPolicy", "s3:GetLifecycleConfiguration"),
)


def questions(aws: Aws, fleet: Fleet, who: Identity, file: str) -> list[Question]:
    """None where the state is a local file.

    Args:
        file: the fleet file, as a command names it.
    """
    if fleet.state == "local":
        return []
    return [Question("state", "state bucket", lambda: _lines(aws, fleet, who, file), _ACTIONS)]


def _lines(aws: Aws, fleet: Fleet, who: Identity, file: str) -> list[Line]:
    where = state_bucket.place(fleet, who.arn)
    about = f"s3://{where.bucket}"
    try:
        found = state_bucket.look(aws, where)
    except AnswerIsNo as error:
        said, _, remedy = str(error).removeprefix(f"{about}: ").partition(". ")
        return [Line(about, "fail", said, remedy.rstrip("."))]
    if not found.exists:
        command = ("blueprint", "state", "make", "--fleet", file)
        return [Line(about, "warn", "it is not there yet", "installing makes it; or by itself", command)]
    if not found.lacking:
        return [Line(about, "pass", "there, versioned, encrypted, TLS only, closed to the public")]
    return [
        Line(about, "fail" if one.grave else "warn", f"it {one.why}", "set it right", one.command)
        for one in found.lacking
    ]
