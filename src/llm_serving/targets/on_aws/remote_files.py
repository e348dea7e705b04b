"""Files in S3 that a blueprint names, such as LoRA adapters: its kind checks them before a deploy changes anything."""

from __future__ import annotations

import functools

from llm_serving import console
from llm_serving.aws import s3
from llm_serving.aws.session import AwsSession
from llm_serving.services import kinds
from llm_serving.settings.document import raise_mistakes
from llm_serving.targets.deployment_plan import DeploymentPlan

_MAX_BYTES = 2**20
"""Most bytes of a file that are read; the settings of an adapter are about a thousand."""


def check(plan: DeploymentPlan) -> None:
    """Check the files with the caller's permissions; those that only the deployment may read are skipped and named.

    Raises:
        InputError: with every file that does not do.
        Unavailable: S3 does not answer, or has no such bucket.
    """
    read_files = functools.partial(_read_files, plan.aws)
    conflicts = kinds.get_for(plan.blueprint).check_remote_files(plan.blueprint.value, read_files)
    raise_mistakes(plan.blueprint.locate(conflicts))


def _read_files(aws: AwsSession, uri: str, name: str) -> tuple[dict[str, int], str] | None:
    """Read the sizes of the objects at s3://BUCKET/PREFIX, and the text of the one called `name`; None if denied."""
    try:
        bucket = s3.Bucket(s3.parse_location(uri), env=aws.variables)
        sizes = bucket.list_sizes()
        text = bucket.read(name, 0, _MAX_BYTES) if name in sizes else b""
    except s3.AccessDenied as error:
        console.err.print(f"[yellow]{uri}: not checked against its model[/yellow]: {error}")
        return None
    return sizes, text.decode("utf-8", "replace")
