"""What becomes of an answer to an event."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from llm_serving.kinds.streaming.cloud import SETTINGS_VARIABLE
from tests import maven

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("stream"),
    maven.REQUIRED,
]


def build_environment(url: str) -> dict[str, str]:
    """Build the variables of a job whose cache is away."""
    endpoint = {"url": url, "model": "m", "deadlineMs": 60_000, "attempts": 1}
    settings = {"name": "shop", "endpoint": endpoint, "cache": {"url": "redis://127.0.0.1:1", "ttlS": 60}}
    return {**os.environ, SETTINGS_VARIABLE: json.dumps(settings)}


def test_an_answer_that_kafka_does_not_take_is_a_dead_letter_and_fails_no_job(
    build_program: Callable[..., list[str]],
) -> None:
    command = build_program("stream.HandleAnswers", "490000", "520000")
    run = subprocess.run(
        command, env=build_environment("http://127.0.0.1:1"), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.splitlines() == ["answer", "the answer's record has more than 1000000 bytes"], run.stderr


def test_a_connection_that_takes_longer_than_a_second_is_awaited(build_program: Callable[..., list[str]]) -> None:
    """As those of many events at once do in a job that starts again: by default the client waits for a second."""
    body = b'{"choices": [{"message": {"role": "assistant", "content": "hi"}}]}'
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        filler = socket.create_connection(server.getsockname())  # the system takes no further one until it is accepted

        def answer() -> None:
            while True:
                connection = server.accept()[0]
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        command = build_program("stream.CallEvent")
        environment = build_environment(f"http://127.0.0.1:{server.getsockname()[1]}")
        run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert run.stdout
            assert run.stdout.readline() == "open\n"
            time.sleep(3)
            filler.close()
            threading.Thread(target=answer, daemon=True).start()
            assert run.stdout.readline() == "hi\n"
        finally:
            run.kill()
            run.communicate()
