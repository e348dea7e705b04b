"""LoRA adapters in S3: checks that each matches its role's model before a deployment requests instances."""

from __future__ import annotations

import functools

from llm_serving import console
from llm_serving.aws import s3
from llm_serving.aws.session import AwsSession
from llm_serving.kinds.serving import adapters
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings.document import raise_mistakes
from llm_serving.targets.deployment_plan import DeploymentPlan

_MAX_CONFIG_BYTES = 2**20
"""Most bytes of an adapter's settings that are read; PEFT writes about a thousand."""


def check_adapters(plan: DeploymentPlan) -> None:
    """Read each adapter's settings from its bucket, with the caller's permissions.

    Adapters that only the engines may read are skipped and named.

    Raises:
        InputError: with every adapter that is for another model, incomplete, or of too high a rank.
        Unavailable: S3 does not answer, or has no such bucket.
    """
    settings = plan.blueprint.value
    if not isinstance(settings, Blueprint):
        return
    conflicts = adapters.check_remote(settings, functools.partial(_read_adapter, plan.aws))
    raise_mistakes(plan.blueprint.locate(conflicts))


def _read_adapter(aws: AwsSession, uri: str) -> tuple[dict[str, int], str] | None:
    """Read the sizes of the objects at s3://BUCKET/PREFIX and the adapter's settings; None if denied."""
    try:
        bucket = s3.Bucket(s3.parse_location(uri), env=aws.variables)
        sizes = bucket.list_sizes()
        text = bucket.read(adapters.CONFIG, 0, _MAX_CONFIG_BYTES) if adapters.CONFIG in sizes else b""
    except s3.AccessDenied as error:
        console.err.print(f"[yellow]{uri}: not checked against its model[/yellow]: {error}")
        return None
    return sizes, text.decode("utf-8", "replace")
