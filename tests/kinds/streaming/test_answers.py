"""What becomes of an answer to an event."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from llm_serving.kinds.streaming.cloud import SETTINGS_VARIABLE
from tests import maven

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("stream"),
    maven.REQUIRED,
]


def test_an_answer_that_kafka_does_not_take_is_a_dead_letter_and_fails_no_job(
    build_program: Callable[..., list[str]],
) -> None:
    endpoint = {"url": "http://127.0.0.1:1", "model": "m", "deadlineMs": 1000, "attempts": 1}
    settings = {"name": "shop", "endpoint": endpoint, "cache": {"url": "redis://127.0.0.1:1", "ttlS": 60}}
    environment = {**os.environ, SETTINGS_VARIABLE: json.dumps(settings)}
    command = build_program("stream.HandleAnswers", "490000", "520000")
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.splitlines() == ["answer", "the answer's record has more than 1000000 bytes"], run.stderr
