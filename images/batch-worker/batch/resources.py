"""Queues of a deployment, which on AWS a stack creates. The API, whose role reads no messages, imports no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from batch.settings import Settings
from batch.store import get_code


@dataclass(frozen=True)
class Queues:
    """URLs of the queues."""

    control: str
    runs: dict[tuple[str, str], str]
    """URLs of the queues with chunks, by team and priority."""


def find_queues(sqs: Any, settings: Settings) -> Queues | None:
    """Find the queues; None while one is not there."""
    try:
        names = settings.run_queues.items()
        return Queues(
            sqs.get_queue_url(QueueName=settings.control_queue)["QueueUrl"],
            {key: sqs.get_queue_url(QueueName=name)["QueueUrl"] for key, name in names},
        )
    except ClientError as error:
        if "NonExistentQueue" in get_code(error):
            return None
        raise
