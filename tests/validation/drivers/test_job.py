"""What is sent before a drop-in driver starts."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving.cli.commands import compare
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import Unavailable
from llm_serving.validation import on_demand, run
from llm_serving.validation.drivers import job, registry
from llm_serving.validation.drivers.base import Driver
from llm_serving.validation.load import metrics_pages, server
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.load.server import Client
from tests import known_server
from tests.known_server import Behaviour
from tests.validation.conftest import TargetFactory, build_options

USERS = 4


@pytest.fixture
def url(patience_s: float) -> Iterator[str]:
    """A server that answers once USERS requests are there, and refuses those that wait for others in vain."""
    together = threading.Barrier(USERS, timeout=patience_s)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            try:
                together.wait()
                self.send_response(200)
            except threading.BrokenBarrierError:
                self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()


@pytest.mark.parametrize(("users", "failed", "patience_s"), [(USERS, 0, 60), (1, 8, 0.5)])
def test_the_warm_up_sends_as_many_requests_at_once_as_the_load(url: str, users: int, failed: int) -> None:
    plan = LoadPlan(url=url, models=("tiny",), traffic=Traffic(users=users, requests=1), folder="/x")
    prompts = [Prompt(({"role": "user", "content": "Read"},), max_tokens=1)] * 8
    assert job.send_warm_up(Client(plan), prompts)[0] == failed


def test_what_comes_before_the_load_is_no_more_at_once_than_the_server_admits() -> None:
    load = Traffic(users=6, requests=1)
    with known_server.run_server(Behaviour(admitted=2)) as url:
        plan = LoadPlan(url=url, models=("tiny",), traffic=load, folder="/x", admitted=2)
        prompts = [Prompt(({"role": "user", "content": "Read"},), max_tokens=1)] * 8
        assert job.send_warm_up(Client(plan), prompts)[0] == 0
        server.measure(Client(plan), Client(plan))
    with known_server.run_server(Behaviour(ttft_s=2, admitted=2)) as url:  # long enough for all six to come
        beyond = plan.model_copy(update={"url": url, "admitted": None})
        assert job.send_warm_up(Client(beyond), prompts)[0] > 0, "the negative control"


def test_a_service_that_only_streams_is_refused_by_its_answer() -> None:
    with known_server.run_server(Behaviour(only_streams=True)) as url:
        plan = LoadPlan(url=url, models=("tiny",), traffic=Traffic(users=1), folder="/x")
        with pytest.raises(Unavailable, match=r"/v1/chat/completions returned HTTP 200 .* no JSON object: 'data: \{"):
            server.measure(Client(plan), Client(plan))


def test_requests_of_a_drop_in_driver_are_compared_and_halves_of_characters_end_no_report(
    make_target: TargetFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jsonl").write_text(r'{"prompt": "cut \ud83d", "expected": "4"}')
    driver = Driver(
        name="fake",
        title="Fake",
        package="pip",
        executable="python",
        clock="it was sent",
        build_command=lambda job, _: ["touch", str(job.result)],
        read=lambda job: [Sample(number, 1e9, e2e_ms=10.0) for number in range(len(job.prompts))],
    )
    monkeypatch.setattr(registry, "load_driver", lambda _: driver)
    monkeypatch.setattr(on_demand, "find_engine", lambda *_: Path(sys.executable).parent)
    monkeypatch.setattr(metrics_pages, "SETTLE_S", 0.0)
    with known_server.run_server() as url:
        target = make_target(url, {"users": 2, "requests": 3, "warm_up": 1, "data": "own.jsonl"})
        report, folder = run.validate(target, build_options(tmp_path, driver="fake", folder=tmp_path))
    assert report.answers[0].prompt == "cut \ufffd"
    assert len(compare.read_run(folder).samples) == report.requests.total == 3
