from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.services.service import Probe, Service
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import readiness
from llm_serving.targets.local.readiness import RoleFailed
from llm_serving.targets.local.supervisor import ProcessState
from tests.http_handler import QuietHandler

RESPONSES = {
    "/good": (200, b'{"choices": [{"text": "a"}]}'),
    "/empty": (200, b'{"choices": []}'),
    "/healthy": (200, b""),
    "/error": (200, b'{"error": "no model"}'),
    "/broken": (500, b"{}"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """A server that is healthy on every path and answers a completion on one."""

    class Answer(QuietHandler):
        def do_POST(self) -> None:
            request_body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert request_body == {"model": "tiny"}
            status, body = RESPONSES[self.path]
            self.respond(status, body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_address[1]
        running.shutdown()


def _build_process(port: int, path: str) -> Service:
    probe = Probe(path=path, body={"model": "tiny"}, deadline_s=1)
    return Service(name="worker-0", role="worker", command=(), env={}, port=port, probe=probe)


@pytest.mark.parametrize("path", list(RESPONSES))
def test_only_a_completion_counts_as_an_answer(server: int, path: str) -> None:
    assert readiness.is_answering(_build_process(server, path)) == (path == "/good")


def test_a_port_that_nobody_listens_on_does_not_answer() -> None:
    assert not readiness.is_answering(_build_process(processes.claim_free_ports(1)[0], "/good"))


def _build_state(state: str, exit_reason: str, restarts: int = 1) -> ProcessState:
    return ProcessState(name="worker-0", state=state, pid=0, uptime_s=0, restarts=restarts, ended=exit_reason)


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        ("exit status 1", "worker-0 ended with exit status 1: ValueError: bad weights"),
        (
            "exit status 137",
            "worker-0 was ended by signal 9 (did the machine run out of memory?): ValueError: bad weights",
        ),
        ("exit status 143", "worker-0 was ended by signal 15: ValueError: bad weights"),
        ("terminated by SIGKILL", "worker-0 ended with terminated by SIGKILL: ValueError: bad weights"),
    ],
)
def test_a_process_that_ended_is_reported_with_its_cause(tmp_path: Path, ended: str, message: str) -> None:
    run = DeploymentDir("mine", tmp_path)
    run.create()
    run.get_log_path("worker-0").write_text('Traceback (most recent call last):\n  File "x"\nValueError: bad weights\n')
    with pytest.raises(RoleFailed) as failed:
        readiness.raise_if_failed(run, _build_state("FATAL", ended), restarts=0)
    assert str(failed.value).splitlines()[0] == message


def test_a_process_that_is_restarted_counts_as_failed(tmp_path: Path) -> None:
    run = DeploymentDir("mine", tmp_path)
    with pytest.raises(RoleFailed, match="worker-0 ended with exit status 1"):
        readiness.raise_if_failed(run, _build_state("STARTING", "exit status 1", restarts=2), restarts=1)
    readiness.raise_if_failed(run, _build_state("STARTING", "exit status 1", restarts=1), restarts=1)


def test_progress_is_the_last_line_that_says_more_than_that_a_probe_came_too_early(tmp_path: Path) -> None:
    run, process = DeploymentDir("mine", tmp_path), _build_process(1, "/good")
    run.create()
    refused = "connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1\n"
    for log, expected in ((refused, "worker-0 starting"), (f"Loading\n\n{refused}", "worker-0 starting; Loading")):
        run.get_log_path("worker-0").write_text(log)
        assert readiness._describe_progress(run, [process], {"worker-0": process}) == expected
