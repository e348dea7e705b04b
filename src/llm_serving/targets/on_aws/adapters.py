"""LoRA adapters in S3, looked at before a deployment asks for machines: whether each was made for its role's model."""

from __future__ import annotations

from llm_serving import console
from llm_serving.aws import s3
from llm_serving.settings.errors import InputError
from llm_serving.targets.on_aws.plan import Plan
from llm_serving.workloads.serving import adapters

_CONFIG_BYTES = 2**20
"""Most of an adapter's settings that is read; PEFT writes about a thousand bytes."""


def refuse(plan: Plan) -> None:
    """Reads each adapter's settings from its bucket, with what this process may do.

    One that only the engines may read is passed over, and named.

    Raises:
        InputError: with every adapter that is none of its role's model, is not whole, or is of too high a rank.
        Unavailable: S3 does not answer, or has no such bucket.
    """
    wrong = list(adapters.wrong_afar(plan.blueprint, _read))
    if wrong:
        raise InputError([*wrong])


def _read(where: str) -> tuple[dict[str, int], str] | None:
    """What lies at s3://BUCKET/PREFIX by name, and the adapter's settings; None where that is denied."""
    try:
        bucket = s3.Bucket(s3.place(where))
        there = bucket.sizes()
        text = bucket.read(adapters.CONFIG, 0, _CONFIG_BYTES) if adapters.CONFIG in there else b""
    except s3.Denied as denied:
        console.err.print(f"[yellow]{where}: not looked at, whether it fits its model[/yellow]: {denied}")
        return None
    return there, text.decode("utf-8", "replace")
