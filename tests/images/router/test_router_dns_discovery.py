"""The router's companion with the real vllm-router, before engines that only say who they are."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.constructs import collector
from llm_serving import processes
from llm_serving.targets.local import engine_env
from tests import following


class Engine(ThreadingHTTPServer):
    """Answers as a vLLM does whose name is its address; every request's body is kept."""

    daemon_threads = True
    models: tuple[str, ...]
    bodies: list[dict[str, Any]]

    @property
    def address(self) -> str:
        return str(self.server_address[0])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Engine)
        self._say({"object": "list", "data": [{"id": model} for model in self.server.models]})

    def do_POST(self) -> None:
        assert isinstance(self.server, Engine)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        said: dict[str, Any] = {"id": "x", "object": "text_completion", "model": body["model"]}
        said["choices"] = [{"index": 0, "text": self.server.address, "finish_reason": "stop"}]
        if body.get("kv_transfer_params", {}).get("do_remote_decode"):
            said["kv_transfer_params"] = {"do_remote_prefill": True, "remote_engine_id": self.server.address}
        self._say(said)

    def _say(self, said: dict[str, Any]) -> None:
        text = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@dataclass
class Stage:
    """A DNS file, engines on loopback addresses of one port, and the program with its router."""

    folder: Path
    port: int = field(default_factory=lambda: processes.free_ports(1)[0])
    up: dict[str, Engine] = field(default_factory=dict)
    metrics: str = ""
    """URL of the router's own metrics."""

    @property
    def log(self) -> str:
        return (self.folder / "follow.log").read_text()

    def dns(self, **names: list[str] | None) -> None:
        following.dns(self.folder, **names)

    def start(self, address: str, *models: str) -> Engine:
        made = Engine((address, self.port), Handler)
        made.models, made.bodies = models or ("alpha",), []
        threading.Thread(target=made.serve_forever, daemon=True).start()
        self.up[address] = made
        return made

    def stop(self, address: str) -> None:
        engine = self.up.pop(address)
        engine.shutdown()
        engine.server_close()

    @contextlib.contextmanager
    def following(self, *follow: str, router: tuple[str, ...]) -> Iterator[str]:
        """The program and the real router before the engines; yields the router's URL."""
        with following.running(self.folder, *follow, router=router) as (url, self.metrics):
            yield url


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.dns()
    yield made
    for address in list(made.up):
        made.stop(address)


def _answer(addresses: set[str], _: str) -> set[str]:
    return addresses


def ask(url: str, model: str = "alpha") -> str:
    """Who answered a completion; the status where nobody did."""
    body = json.dumps({"model": model, "prompt": "who?", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(json.loads(answer.read())["choices"][0]["text"])
    except urllib.error.HTTPError as error:
        return str(error.code)


def asked(url: str, model: str = "alpha", times: int = 8) -> set[str]:
    return {ask(url, model) for _ in range(times)}


def until(url: str, expected: set[str], model: str = "alpha") -> None:
    processes.wait_until(lambda: asked(url, model) == expected, f"answers of {expected}", 30, every_s=0.5)


TOGETHER = ("--enable-igw", "--policy", "round_robin")
A, B, C, D = (f"127.0.1.{number}" for number in range(1, 5))


@pytest.mark.engine
def test_replicas_come_and_go_with_their_name(stage: Stage) -> None:
    with stage.following("--router=ROUTER", f"--worker=worker:{stage.port}", router=TOGETHER) as url:
        assert ask(url) == "503", "nobody is there yet"
        stage.start(A), stage.start(B)
        stage.dns(worker=[A, B])
        until(url, {A, B})
        stage.start(C)
        stage.dns(worker=[B, C])
        until(url, {B, C})
        assert A in stage.up, "it would still answer: DNS alone says that it is to go"
        stage.dns(worker=None)
        stage.stop(B)
        until(url, {C})
    assert f"follow: http://{B}:{stage.port} is gone" in stage.log


@pytest.mark.engine
def test_an_address_that_does_not_answer_is_passed_on_to_nobody(stage: Stage) -> None:
    stage.start(A)
    stage.dns(worker=[A, D])
    with stage.following("--router=ROUTER", f"--worker=worker:{stage.port}", router=TOGETHER) as url:
        until(url, {A})
        assert D not in stage.log


@pytest.mark.engine
@pytest.mark.parametrize("policy", ["cache_aware", "power_of_two", "random", "consistent_hash"])
def test_every_policy_takes_replicas_that_come_later(stage: Stage, policy: str) -> None:
    router = ("--enable-igw", "--policy", policy)
    with stage.following("--router=ROUTER", f"--worker=worker:{stage.port}", router=router) as url:
        stage.start(A)
        stage.dns(worker=[A])
        until(url, {A})


@pytest.mark.engine
def test_each_model_has_its_engines_and_an_adapter_that_was_loaded_is_routed(stage: Stage) -> None:
    stage.start(A, "alpha")
    beta = stage.start(B, "beta")
    stage.dns(alpha=[A], beta=[B])
    names = (f"--worker=alpha:{stage.port}", f"--worker=beta:{stage.port}")
    with stage.following("--router=ROUTER", *names, router=TOGETHER) as url:
        until(url, {A}, "alpha")
        until(url, {B}, "beta")
        assert asked(url, "sql") != {B}, "a model that nobody lists goes to any engine, whose answer is 404"
        beta.models = ("beta", "sql")
        until(url, {B}, "sql")
        assert asked(url, "alpha") == {A}


@pytest.mark.engine
def test_prefill_and_decode_come_and_go_with_their_names(stage: Stage) -> None:
    [discovery] = processes.free_ports(1)
    for address in (A, B, C):
        stage.start(address)
    stage.dns(prefill=[A], decode=[B])
    follow = (f"--discovery=127.0.0.1:{discovery}", f"--prefill=prefill:{stage.port}", f"--decode=decode:{stage.port}")
    router = ("--vllm-pd-disaggregation", "--kv-connector", "nixl", "--vllm-discovery-address")
    with stage.following(*follow, router=(*router, f"127.0.0.1:{discovery}", "--policy", "round_robin")) as url:
        until(url, {B})
        body = stage.up[B].bodies[-1]
        assert body["kv_transfer_params"]["remote_engine_id"] == A, "decode is told whose cache to take"
        stage.dns(prefill=[A], decode=[B, C])
        until(url, {B, C})
        stage.dns(prefill=[A], decode=[C])
        until(url, {C})
        before = counted(stage, "router of halves", "errors")
        stage.dns(prefill=[], decode=[C])
        until(url, {"503"})
        assert counted(stage, "router of halves", "errors") >= before + 8, "each is counted that finds nobody"
        assert counted(stage, "router of halves", "requests") > 0
        assert following.get(f"{url}/liveness") == b"OK", "what ECS asks: a router that waits for engines is to stay"
        assert following.get(f"{url}/health") is None


@pytest.mark.engine
def test_requests_that_come_while_nobody_is_there_are_counted_and_nothing_else_is(stage: Stage) -> None:
    with stage.following("--router=ROUTER", f"--worker=worker:{stage.port}", router=TOGETHER) as url:
        for path in ("health", "liveness", "v1/models", "workers"):
            following.get(f"{url}/{path}")
        assert counted(stage, "router", "errors") == counted(stage, "router", "requests") == 0, "nobody asked"
        assert asked(url, times=3) == {"503"}
        refused = counted(stage, "router", "errors")
        assert refused >= 3
        assert counted(stage, "router", "requests") == 0
        stage.start(A)
        stage.dns(worker=[A])
        until(url, {A})
        served, refused = counted(stage, "router", "requests"), counted(stage, "router", "errors")
        assert asked(url, times=3) == {A}
        assert counted(stage, "router", "requests") == served + 3
        assert counted(stage, "router", "errors") == refused, "and whom somebody answers is no longer refused"


def counted(stage: Stage, mode: str, name: str) -> float:
    """The sum of what CloudWatch is sent of a router in that mode, by our name of it."""
    lines = (following.get(stage.metrics) or b"").decode().splitlines()
    own = collector.METRICS[mode][name]
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{own}{{", f"{own} ")))


@pytest.mark.engine
def test_the_router_s_end_is_the_program_s_end(stage: Stage) -> None:
    command = [
        sys.executable,
        str(following.FOLDER / "follow.py"),
        "--",
        str(engine_env.executables() / "vllm-router"),
        "--nonsense",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "--nonsense" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--worker=a:1"], "the router's command is missing"),
        (["--worker=a:1", "--", "true"], "--worker needs --router"),
        (["--decode=a:1", "--", "true"], "--prefill and --decode need --discovery"),
    ],
)
def test_what_cannot_work_is_said(arguments: list[str], said: str) -> None:
    command = [sys.executable, str(following.FOLDER / "follow.py"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_more_replicas_than_one_answer_holds_are_all_found_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(following.FOLDER)
    import follow

    every = [f"10.0.0.{number}" for number in range(20)]
    silent: set[str] = set()
    name = follow.Name("worker", 8000)

    def ask(url: str) -> tuple[str, ...] | None:
        return None if url.split("/")[2].split(":")[0] in silent else ("alpha",)

    for first in (0, 6, 12, 18):
        some = {every[(first + step) % 20] for step in range(8)}
        found = name.look(functools.partial(_answer, some), ask)
    assert set(found) == {f"http://{address}:8000" for address in every}
    silent.add(every[0])
    for _ in range(2):
        found = name.look(functools.partial(_answer, set(every[8:16])), ask)
    assert len(found) == 19
    assert every[0] not in name.addresses, "what is in no answer and silent is forgotten"
