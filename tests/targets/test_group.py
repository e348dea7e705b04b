"""The group program: real processes on loopback in the place of a replica's nodes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer

import pytest

from llm_serving import processes
from llm_serving.paths import CHARTS
from tests.http_handler import QuietHandler

PROGRAM = CHARTS / "inference" / "files" / "group.py"
MISSES = 6
"""As the program has it."""

INTERVAL_S = 0.1
"""Interval where a node is to end soon."""

PATIENT_S = 2.0
"""Interval where a node is to go on: six of them are longer than a busy machine holds up any."""

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{{engine="0",model_name="a b"}} {running}
vllm:num_requests_running_by_reason{{engine="0"}} 1
vllm:iteration_tokens_total_count{{engine="0"}} {steps}
vllm:iteration_tokens_total_count{{engine="1"}} 3
"""

LIMIT_S = 120.0
Start = Callable[..., subprocess.Popen[str]]


class Engine(ThreadingHTTPServer):
    """An engine's port: answers /health with `status`, but with 503 while `failures` are left.

    Its page of metrics has `running` requests and `steps`, which each look at it makes more by `pace`.
    """

    request_queue_size = 128  # of followers that look whether it listens, while a busy machine holds it up
    status = 200
    failures = 0
    answered = 0
    running = 0
    steps = 7
    pace = 0


class Handler(QuietHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Engine)
        if self.path == "/metrics":
            self.server.steps += self.server.pace
            self.respond(200, PAGE.format(running=self.server.running, steps=self.server.steps).encode())
            return
        is_failure = self.server.failures > 0
        self.server.failures -= is_failure
        self.respond(503 if is_failure else self.server.status)
        self.server.answered += 1


@contextlib.contextmanager
def serve() -> Iterator[Engine]:
    server = Engine(("127.0.0.1", find_port()), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program with arguments; ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: object, interval_s: float = PATIENT_S, hang_s: float = LIMIT_S) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), *map(str, arguments)]
        environment = {**os.environ, "GROUP_INTERVAL_S": str(interval_s), "GROUP_HANG_S": str(hang_s)}
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def find_port() -> int:
    """A port that no other test takes, also once nobody listens there any more."""
    return processes.claim_free_ports(1)[0]


def connect(port: int) -> socket.socket:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(INTERVAL_S)


def lead(start: Start, engine: Engine, port: int, followers: int = 1, **options: float) -> subprocess.Popen[str]:
    url = f"http://127.0.0.1:{engine.server_port}"
    metrics = ("--metrics", f"{url}/metrics", "--running", "vllm:num_requests_running")
    metrics += ("--steps", "vllm:iteration_tokens_total_count")
    return start("lead", "--health", f"{url}/health", *metrics, "--port", port, "--followers", followers, **options)


def follow(start: Start, engine: Engine, port: int, drain_s: float = LIMIT_S) -> subprocess.Popen[str]:
    process = start(
        "follow", "--leader", "127.0.0.1", "--port", port, "--requests", engine.server_port, "--drain", drain_s
    )
    assert process.stdout
    assert process.stdout.readline() == "group: joined leader 127.0.0.1\n"
    return process


def wait(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and error output."""
    _, error = process.communicate(timeout=LIMIT_S)
    return process.returncode, error.strip()


def is_running(process: subprocess.Popen[str], seconds: float = 1.0) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is None


def wait_for_answers(engine: Engine, count: int) -> None:
    """Wait until the program has asked `count` times more."""
    target = engine.answered + count
    processes.wait_until(lambda: engine.answered >= target, "health checks", LIMIT_S)


def test_an_engine_that_stops_answering_ends_its_task(start: Start) -> None:
    with serve() as engine:
        leader = lead(start, engine, 0, followers=0, interval_s=INTERVAL_S)
        wait_for_answers(engine, 1)
        assert is_running(leader)
        engine.status = 503
        assert wait(leader) == (
            1,
            f"group: the engine no longer answers http://127.0.0.1:{engine.server_port}/health",
        )


def test_an_engine_that_has_requests_and_computes_nothing_ends_its_task(start: Start) -> None:
    with serve() as engine:
        leader = lead(start, engine, 0, followers=0, interval_s=INTERVAL_S, hang_s=1)
        assert is_running(leader, 3), "it has no requests"
        engine.running, engine.pace = 2, 1
        assert is_running(leader, 3), "it works on them"
        engine.pace = 0
        assert wait(leader) == (1, "group: the engine has requests and computes nothing")


def test_an_engine_that_still_loads_its_model_is_left_alone(start: Start) -> None:
    leader = start("lead", "--health", f"http://127.0.0.1:{find_port()}/health", interval_s=INTERVAL_S)
    assert is_running(leader, 3 * MISSES * INTERVAL_S)


def test_a_few_missed_health_checks_are_no_failure(start: Start) -> None:
    with serve() as engine:
        leader = lead(start, engine, 0, followers=0, interval_s=INTERVAL_S)
        wait_for_answers(engine, 1)
        engine.failures = MISSES - 3
        wait_for_answers(engine, 2 * MISSES)
        assert engine.failures == 0
        assert is_running(leader)


def test_a_follower_that_is_killed_ends_the_leader_and_through_it_the_other_followers(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        leader = lead(start, engine, port, followers=2)
        lost, other = follow(start, engine, port), follow(start, engine, port, drain_s=0)
        lost.kill()
        assert wait(leader) == (1, "group: lost follower 127.0.0.1")
        assert wait(other) == (1, "group: lost leader 127.0.0.1")


def test_a_follower_whose_machine_is_gone_without_a_word_ends_the_leader(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        leader = lead(start, engine, port, interval_s=INTERVAL_S)
        with connect(port) as silent:
            assert silent.recv(1)
            assert wait(leader) == (1, "group: lost follower 127.0.0.1")


def test_a_leader_that_is_killed_ends_its_follower_once_its_engine_is_gone(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        leader = lead(start, engine, port)
        follower = follow(start, engine, port)
        leader.kill()
        assert is_running(follower, 2 * PATIENT_S)
    assert wait(follower) == (1, "group: lost leader 127.0.0.1")


def test_a_follower_that_is_asked_to_end_stays_until_the_leaders_requests_are_answered(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        leader = lead(start, engine, port)
        follower = follow(start, engine, port)
        follower.terminate()
        assert wait(leader)[0] == 1  # so that ECS asks its engine to drain
        assert is_running(follower)
    assert wait(follower) == (0, "")


def test_a_follower_waits_no_longer_than_it_may(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        lead(start, engine, port)
        follower = follow(start, engine, port, drain_s=1)
        follower.terminate()
        assert wait(follower) == (0, "")


def test_a_leader_that_is_asked_to_end_does_so_at_once(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        leader = lead(start, engine, port)
        follower = follow(start, engine, port)
        leader.terminate()
        assert wait(leader) == (0, "")
        assert is_running(follower, 2 * PATIENT_S)
    assert wait(follower)[0] == 1


def test_a_follower_waits_for_a_leader_that_starts_later(start: Start) -> None:
    port = find_port()
    with serve() as engine:
        follower = start(
            "follow", "--leader", "127.0.0.1", "--port", port, "--requests", engine.server_port, "--drain", 1
        )
        assert is_running(follower)
        lead(start, engine, port)
        assert follower.stdout
        assert follower.stdout.readline() == "group: joined leader 127.0.0.1\n"


def test_draining_waits_for_the_leaders_port_to_close(start: Start) -> None:
    with serve() as engine:
        process = start("drain", "--leader", "127.0.0.1", "--requests", engine.server_port, "--drain", LIMIT_S)
        assert is_running(process)
    assert wait(process) == (0, "")
