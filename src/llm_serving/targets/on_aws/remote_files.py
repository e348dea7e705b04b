"""Files in S3 that a blueprint names, such as LoRA adapters: its kind checks them before a deploy changes anything."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from llm_serving import console
from llm_serving.aws import s3, session
from llm_serving.aws.session import AwsSession
from llm_serving.services import kinds
from llm_serving.settings.document import raise_mistakes
from llm_serving.targets.deployment_plan import DeploymentPlan

_URL_LIFE_S = 900
"""Longer than the containers of all nodes take to read: two rounds of 300 s each (kinds/serving/adapter_loading.py). S3
looks at a URL's age when a request begins."""

_MAX_BYTES = 2**20
"""Most bytes of a file that are read; the settings of an adapter are about a thousand."""


def check(plan: DeploymentPlan) -> None:
    """Check the files with the caller's permissions; those that only the deployment may read are skipped and named.

    Raises:
        InputError: with every file that does not do.
        Unavailable: S3 does not answer, or has no such bucket.
    """
    read_here = functools.partial(read_files, plan.aws)
    conflicts = kinds.get_for(plan.blueprint).check_remote_files(plan.blueprint.value, read_here)
    raise_mistakes(plan.blueprint.locate(conflicts))


def read_files(aws: AwsSession, uri: str, name: str) -> tuple[dict[str, int], str] | None:
    """Read the sizes of the objects at s3://BUCKET/PREFIX, and the text of the one called `name`; None if denied."""
    try:
        bucket = s3.Bucket(s3.parse_location(uri), env=aws.variables)
        sizes = bucket.list_sizes()
        text = bucket.read(name, 0, _MAX_BYTES) if name in sizes else b""
    except s3.AccessDenied as error:
        console.err.print(f"{uri}: not checked against its model: {error}", style="yellow", markup=False)
        return None
    return sizes, text.decode("utf-8", "replace")


def sign_files(aws: AwsSession, uri: str, names: Iterable[str]) -> dict[str, str]:
    """Return a URL of each object at s3://BUCKET/PREFIX, by which its holder reads it for minutes as the caller may.

    Raises:
        Unavailable: there are no credentials.
    """
    from botocore.config import Config

    location = s3.parse_location(uri)
    with session.translate_errors():
        # S3 presigns with its old signature by default, which a bucket encrypted by KMS refuses.
        client = aws.create_client("s3", Config(signature_version="s3v4"))
        keys = {name: {"Bucket": location.bucket, "Key": f"{location.prefix}{name}"} for name in names}
        return {
            name: str(client.generate_presigned_url("get_object", Params=key, ExpiresIn=_URL_LIFE_S))
            for name, key in keys.items()
        }
