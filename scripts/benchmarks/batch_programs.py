"""The batch worker and the Batch API, with what a benchmark puts in the place of their surroundings.

    python -m scripts.benchmarks.batch_programs batch_worker|batch_api

Where S3 is another server than the embedded AWS, which interprets the state machine: that one gets chunks.json too, and
the inboxes are not watched. With BATCH_INSTANT in the environment the endpoint is within the worker's own process and
answers at once: what is left is the worker's own work.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from llm_serving import program
from llm_serving.rehearsal import emulator
from scripts.benchmarks.batch_kills import IMAGE, REGION

sys.path.insert(0, str(IMAGE))

from batch import emulated, worker
from batch.endpoint import Answer
from batch.store import Store


class InstantEndpoint:
    """Stands for `batch.endpoint.Endpoint`: each answer repeats its row's text."""

    def __init__(self, *_: Any) -> None:
        pass

    async def send(self, _: str, body: Mapping[str, Any]) -> Answer:
        """Answer a request."""
        await asyncio.sleep(0)
        answer = {
            "choices": [{"index": 0, "message": body["messages"][-1], "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 22, "completion_tokens": 8},
        }
        return Answer(200, json.dumps(answer).encode(), answer)

    async def is_up(self) -> bool:
        """Always."""
        return True

    async def read_metrics(self) -> dict[str, str]:
        """It has none."""
        return {}

    async def close(self) -> None:
        """There is nothing to close."""


class MirroringStore(Store):
    """Stands for `batch.store.Store`: what the state machine reads goes to the embedded AWS too."""

    def write_json(self, key: str, value: Any, **condition: Any) -> str:
        """Write a JSON object."""
        if key.endswith("/chunks.json"):
            client = emulator.create_client("s3", os.environ["AWS_ENDPOINT_URL"], REGION)
            Store(self.bucket, client).write_json(key, value)
        return super().write_json(key, value, **condition)


def main() -> int:
    """Run a program; returns its exit code."""
    if os.environ["AWS_ENDPOINT_URL_S3"] != os.environ["AWS_ENDPOINT_URL"]:
        emulated._watch_inboxes = lambda *_: None
        worker.Store = MirroringStore  # type: ignore[attr-defined]
    if os.environ.get("BATCH_INSTANT"):
        worker.Endpoint = InstantEndpoint  # type: ignore[attr-defined, assignment]
    image_program: Any = importlib.import_module(sys.argv[1])
    return int(image_program.main())


if __name__ == "__main__":
    raise SystemExit(program.run(main))
