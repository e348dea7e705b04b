"""LoRA adapters in S3, looked at before a deployment asks for machines: whether each was made for its role's model."""

from __future__ import annotations

import functools

from llm_serving import console
from llm_serving.aws import s3
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import InputError
from llm_serving.targets.planning import DeploymentPlan
from llm_serving.workloads.serving import adapters

_MAX_CONFIG_BYTES = 2**20
"""Most of an adapter's settings that is read; PEFT writes about a thousand bytes."""


def check_adapters(plan: DeploymentPlan) -> None:
    """Reads each adapter's settings from its bucket, with what this process may do.

    One that only the engines may read is passed over, and named.

    Raises:
        InputError: with every adapter that is none of its role's model, is not whole, or is of too high a rank.
        Unavailable: S3 does not answer, or has no such bucket.
    """
    mistakes = list(adapters.check_remote(plan.blueprint, functools.partial(_read_adapter, plan.aws)))
    if mistakes:
        raise InputError([*mistakes])


def _read_adapter(aws: AwsSession, uri: str) -> tuple[dict[str, int], str] | None:
    """What lies at s3://BUCKET/PREFIX by name, and the adapter's settings; None where that is denied."""
    try:
        bucket = s3.Bucket(s3.parse_location(uri), env=aws.variables)
        sizes = bucket.list_sizes()
        text = bucket.read(adapters.CONFIG, 0, _MAX_CONFIG_BYTES) if adapters.CONFIG in sizes else b""
    except s3.AccessDenied as error:
        console.err.print(f"[yellow]{uri}: not looked at, whether it fits its model[/yellow]: {error}")
        return None
    return sizes, text.decode("utf-8", "replace")
