"""Models that take turns on the same accelerators: the program with engines without a model, and with vLLM on CPU."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
from llm_serving.hub import make_tiny
from llm_serving.targets.local import engine_env
from tests import dns_discovery

PROGRAM = Path(__file__).parents[3] / "images" / "vllm" / "model_switch.py"
ENGINE = Path(__file__).with_name("sleeping_engine.py")
LIMIT_S = 120
FOR_EVER_S = 10_000.0


Program = tuple["subprocess.Popen[bytes]", str, Path]
Start = Callable[..., Program]


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """Start the program with engines without a model; returns its process, its URL and its log."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*options: str, engines: tuple[str, ...] = ("alpha", "beta"), drain_s: int = LIMIT_S) -> Program:
        [port] = processes.claim_free_ports(1)
        command = [sys.executable, str(PROGRAM), "--listen", f"127.0.0.1:{port}", *options]
        for engine in engines:
            command += ["--engine", sys.executable, str(ENGINE), *engine.split()]
        log = folder / "log"
        with log.open("wb") as output:
            started.append(processes.spawn(command, environment={"DRAIN_S": str(drain_s)}, output=output))
        return started[-1], f"http://127.0.0.1:{port}", log

    try:
        yield run
    finally:
        for process in started:
            processes.stop(process)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as run:
        yield run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of engines that no test puts to sleep."""
    with starting(tmp_path_factory.mktemp("shared")) as run:
        _, url, _ = run()
        wait_for_all(url)
        yield url


def ask(url: str, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any, str]:
    """Return status, headers and text of an answer; 0 where nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()
    except OSError as error:
        return 0, {}, type(error).__name__


def complete(url: str, model: str, tokens: int = 1, **fields: Any) -> tuple[int, Any, str]:
    return ask(url, "/v1/completions", {"model": model, "max_tokens": tokens, **fields})


@pytest.fixture
def let_end(tmp_path: Path) -> Path:
    """The file that lets answers end which are asked for with `until`."""
    return tmp_path / "end"


def wait_for_all(url: str) -> None:
    processes.wait_until(lambda: ask(url, "/health")[0] == 200, "all engines", LIMIT_S)


def read_metric(url: str, name: str, model: str, labels: str = "") -> float:
    page = ask(url, "/metrics")[2]
    [value] = re.findall(rf'(?m)^{re.escape(name)}{{{labels}model_name="{model}"}} (\S+)$', page)
    return float(value)


def wait_for_stream(url: str) -> None:
    processes.wait_until(lambda: read_metric(url, "vllm:running", "alpha") == 1, "alpha's stream", LIMIT_S)


def read_pids(log: Path) -> dict[str, int]:
    rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {row["engine"]: row["pid"] for row in rows}


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_each_engine_has_slept_before_the_first_request(start: Start) -> None:
    _, url, _ = start()
    wait_for_all(url)
    assert [read_metric(url, "vllm:sleeps", name) for name in ("alpha", "beta")] == [1, 1]
    assert [read_metric(url, "vllm:asleep", name) for name in ("alpha", "beta")] == [0, 1]


def test_a_request_wakes_the_engine_of_its_model_and_its_adapters(start: Start) -> None:
    _, url, log = start("--least-awake", "0")
    wait_for_all(url)
    assert [row["id"] for row in json.loads(ask(url, "/v1/models")[2])["data"]] == [
        "alpha", "alpha-adapter", "beta", "beta-adapter"
    ]  # fmt: skip
    assert read_metric(url, "model_switch_awake", "alpha") == 1
    for model in ("alpha", "beta", "beta-adapter", "alpha"):
        status, headers, text = complete(url, model, 2)
        assert (status, headers["X-Engine"]) == (200, model.partition("-")[0])
        assert text.count("data: ") == 2
    assert [read_metric(url, "model_switch_seconds_count", name) for name in ("alpha", "beta")] == [1, 1]
    assert [read_metric(url, "vllm:asleep", name) for name in ("alpha", "beta")] == [0, 1]
    page = ask(url, "/metrics")[2]
    assert page.count("# TYPE vllm:running gauge") == 1
    assert "process_memory" not in page, "which has no model's name"
    assert len(re.findall(r"(?m)^model-switch: .* in place of .* to sleep, .* to wake$", log.read_text())) == 2


def test_engines_load_one_after_the_other_and_no_request_is_taken_before(start: Start) -> None:
    _, url, log = start()
    processes.wait_until(lambda: ask(url, "/health")[0] != 0, "the server", LIMIT_S)
    wait_for_all(url)
    lines = [line.split()[:2] for line in log.read_text().splitlines() if "loaded in" in line]
    assert lines == [["model-switch:", "beta:"], ["model-switch:", "alpha:"]]
    assert log.read_text().index("beta: loaded") < log.read_text().index('"engine": "alpha"')


def read_queue(url: str, model: str) -> float:
    return read_metric(url, "vllm:num_requests_waiting", model, 'engine="switch",')


@pytest.mark.parametrize(
    "path", ["/sleep", "/wake_up", "/collective_rpc", "/v1/load_lora_adapter", "/v1/completions/../../sleep"]
)
def test_what_changes_an_engine_is_no_page_for_clients(url: str, path: str) -> None:
    assert ask(url, path, {"model": "alpha"})[0] == 404
    assert read_metric(url, "vllm:asleep", "alpha") == 0


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "gamma"}, 404, "model: gamma: it is not served here. Fix: set one of alpha, alpha-adapter, beta, beta-adapter."),
        ({"model": ["alpha"]}, 404, "model: ['alpha']: it is not served here. Fix: set one of alpha, alpha-adapter, beta, beta-adapter."),
        ("alpha", 400, "the body is not a JSON object. Fix: name a model of /v1/models in one."),
    ],
)  # fmt: skip
def test_a_request_for_another_model_is_refused(url: str, body: Any, status: int, message: str) -> None:
    code, _, text = ask(url, "/v1/completions", body)
    assert (code, json.loads(text)["error"]["message"]) == (status, message)


def test_a_request_without_a_model_wakes_none(start: Start) -> None:
    _, url, _ = start("--least-awake", "0.1")
    wait_for_all(url)
    for awake in ("alpha", "beta"):
        assert complete(url, awake)[1]["X-Engine"] == awake
        for names in ({}, {"model": None}, {"model": ""}):  # as vLLM, which serves its one model then
            status, headers, _ = ask(url, "/v1/completions", {"max_tokens": 1, **names})
            assert (status, headers["X-Engine"]) == (200, awake)


def test_tokens_of_a_model_that_sleeps_are_counted_without_waking_it(url: str) -> None:
    status, _, text = ask(url, "/tokenize", {"model": "beta", "prompt": "a"})
    assert (status, json.loads(text)["body"]["model"]) == (200, "beta")
    assert [read_metric(url, "vllm:asleep", name) for name in ("alpha", "beta")] == [0, 1]


def test_a_body_reaches_the_engine_with_the_client_s_headers_and_a_large_one_is_refused(url: str) -> None:
    body = {"model": "alpha", "prompt": "x" * 2**20}
    request = urllib.request.Request(f"{url}/tokenize", json.dumps(body).encode(), {"X-Request-Id": "one"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        answer = json.loads(response.read())
    assert answer["body"] == body
    assert {name.lower(): value for name, value in answer["headers"].items()}["x-request-id"] == "one"
    code, _, text = ask(url, "/tokenize", {"model": "alpha", "prompt": "x" * 2**26})
    assert (code, json.loads(text)["error"]["message"]) == (
        413,
        "the body has more than 67,108,864 bytes. Fix: send less.",
    )


def test_an_engine_counts_a_request_from_when_it_came_and_not_from_its_turn(start: Start, let_end: Path) -> None:
    _, url, _ = start("--least-awake", "1000", "--finish", "1000")
    wait_for_all(url)
    with ThreadPoolExecutor(2) as users:
        runs = users.submit(complete, url, "alpha", 2, until=str(let_end))
        wait_for_stream(url)
        request = urllib.request.Request(
            f"{url}/pooling", json.dumps({"model": "beta"}).encode(), {"X-Arrived-At": "1000"}
        )
        waits = users.submit(lambda: json.loads(urllib.request.urlopen(request, timeout=LIMIT_S).read()))
        processes.wait_until(lambda: read_queue(url, "beta") == 1, "beta's request", LIMIT_S)
        seen = time.time()
        let_end.touch()
        assert runs.result()[0] == 200
        headers = {name.lower(): value for name, value in waits.result()["headers"].items()}
    assert 1000 < float(headers["x-arrived-at"]) <= seen, "a client's word counts for nothing"


def test_what_waits_takes_no_more_memory_than_the_bodies_may(start: Start, let_end: Path) -> None:
    _, url, _ = start("--max-bytes", str(2**20), "--least-awake", "1000", "--finish", "1000")
    wait_for_all(url)
    large = "x" * 2**19
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(complete, url, "alpha", 2, until=str(let_end))
        wait_for_stream(url)
        waits = pool.submit(complete, url, "beta", prompt=large)
        processes.wait_until(lambda: read_queue(url, "beta") == 1, "beta's request", LIMIT_S)
        code, headers, text = complete(url, "beta", prompt=large)
        assert (code, headers["Retry-After"], json.loads(text)["error"]["message"]) == (
            429, "1", "the requests that are here leave no room for its body. Fix: ask again later."
        )  # fmt: skip
        assert complete(url, "alpha", prompt="small")[0] == 200
        let_end.touch()
        assert (runs.result()[0], waits.result()[0]) == (200, 200)
    assert complete(url, "beta", prompt=large)[0] == 200, "they give it back"


def test_a_stream_that_stops_midway_goes_on_in_its_model_s_next_turn(start: Start, let_end: Path) -> None:
    _, url, _ = start("--least-awake", "0.2", "--finish", "0")
    wait_for_all(url)
    with ThreadPoolExecutor(2) as users:
        long = users.submit(complete, url, "alpha", 40, hold=0.01, until=str(let_end))
        wait_for_stream(url)
        short = users.submit(complete, url, "beta", 20, hold=0.01)
        assert short.result()[2] == "".join(f"data: beta {number}\n\n" for number in range(20))
        let_end.touch()
        assert long.result()[2] == "".join(f"data: alpha {number}\n\n" for number in range(40))
    assert read_metric(url, "model_switch_seconds_count", "alpha") >= 1, "its engine slept meanwhile"
    assert read_metric(url, "model_switch_stopped", "alpha") == 0


def test_who_disconnects_while_it_waits_leaves_the_queue(start: Start, let_end: Path) -> None:
    _, url, _ = start("--least-awake", "1000", "--max-waiting", "1")
    wait_for_all(url)
    body = json.dumps({"model": "beta", "max_tokens": 1}).encode()
    host, _, port = url.removeprefix("http://").partition(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as users:
        runs = users.submit(complete, url, "alpha", until=str(let_end))
        wait_for_stream(url)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head.encode() + body)
            processes.wait_until(lambda: read_queue(url, "beta") == 1, "the request", LIMIT_S)
            code, headers, text = complete(url, "beta")
            assert (code, json.loads(text)["error"]["type"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(headers["Retry-After"]) <= 1000
            assert complete(url, "alpha")[0] == 200
        processes.wait_until(lambda: read_queue(url, "beta") == 0, "its end", LIMIT_S)
        let_end.touch()
        assert runs.result()[0] == 200
    assert read_metric(url, "model_switch_refused_total", "beta") == 1
    assert read_metric(url, "model_switch_awake", "alpha") == 1


def test_who_disconnects_while_it_runs_is_computed_no_longer(url: str) -> None:
    body = json.dumps({"model": "alpha", "max_tokens": 100_000, "hold": 0.01}).encode()
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        wait_for_stream(url)
    processes.wait_until(lambda: read_metric(url, "vllm:running", "alpha") == 0, "its end", LIMIT_S)


def test_with_sigterm_what_runs_and_what_waits_is_answered_and_what_is_new_is_refused(
    start: Start, let_end: Path
) -> None:
    process, url, log = start("--least-awake", "1000")
    wait_for_all(url)
    with ThreadPoolExecutor(2) as users:
        runs = users.submit(complete, url, "alpha", 60, until=str(let_end))
        wait_for_stream(url)
        waits = users.submit(complete, url, "beta", 2)
        processes.wait_until(lambda: read_queue(url, "beta") == 1, "both", LIMIT_S)
        process.send_signal(signal.SIGTERM)
        processes.wait_until(lambda: ask(url, "/health")[0] == 503, "the drain", LIMIT_S)
        code, headers, _ = complete(url, "alpha")
        assert (code, headers["Retry-After"]) == (503, "1")
        let_end.touch()
        assert [runs.result()[2].count("data: "), waits.result()[2].count("data: ")] == [60, 2]
    assert process.wait(LIMIT_S) == 0
    assert not any(map(is_running, read_pids(log).values()))


def test_a_drain_ends_at_its_limit_and_a_cut_stream_does_not_look_whole(start: Start) -> None:
    process, url, _ = start("--least-awake", "1000", "--finish", "1000", drain_s=1)
    wait_for_all(url)
    with ThreadPoolExecutor(2) as users:
        runs = users.submit(complete, url, "alpha", 100_000, hold=0.1)
        wait_for_stream(url)
        waits = users.submit(complete, url, "beta", 2)
        processes.wait_until(lambda: read_queue(url, "beta") == 1, "both", LIMIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert waits.result()[0] == 503
        with pytest.raises(Exception, match="IncompleteRead"):
            runs.result()


def test_an_engine_that_ends_ends_the_program_after_the_others_requests(start: Start, let_end: Path) -> None:
    process, url, log = start("--least-awake", "1000", "--finish", "1000")
    wait_for_all(url)
    with ThreadPoolExecutor(2) as users:
        runs = users.submit(complete, url, "alpha", 60, until=str(let_end))
        wait_for_stream(url)
        waits = users.submit(complete, url, "beta")
        processes.wait_until(lambda: read_queue(url, "beta") == 1, "the one for beta", LIMIT_S)
        os.kill(read_pids(log)["beta"], signal.SIGKILL)
        assert waits.result()[0] == 503, "whom nobody serves waits for no other model"
        processes.wait_until(lambda: ask(url, "/health")[0] == 503, "the drain", LIMIT_S)
        let_end.touch()
        assert runs.result()[2].count("data: ") == 60
    assert process.wait(LIMIT_S) == 1
    assert "model-switch: error: beta: the engine ended with status -9" in log.read_text()
    assert not is_running(read_pids(log)["alpha"])


def test_the_stream_of_an_engine_that_ends_is_cut(start: Start) -> None:
    process, url, _ = start()
    wait_for_all(url)
    with pytest.raises(Exception, match="IncompleteRead"):
        complete(url, "alpha", 10, crash=3, hold=0.1)
    assert process.wait(LIMIT_S) == 1


def test_an_engine_that_ends_just_as_its_time_is_up_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_until_the_end(end: Awaitable[int], limit_s: float) -> None:
        await end
        await asyncio.sleep(0)  # the transport lets go of the process
        raise TimeoutError

    async def end_one() -> int | None:
        process = await asyncio.create_subprocess_exec("sleep", str(LIMIT_S))
        engine = importlib.import_module(PROGRAM.stem).Engine([], Path("unused.sock"))
        engine._process = process
        monkeypatch.setattr(asyncio, "wait_for", wait_until_the_end)
        await engine.end()
        return process.returncode

    monkeypatch.syspath_prepend(PROGRAM.parent)
    assert asyncio.run(end_one()) == -signal.SIGTERM


@pytest.mark.parametrize("engine", ["alpha /sleep", "alpha /wake_up"])
def test_an_engine_that_does_not_sleep_or_wake_once_never_serves(start: Start, engine: str) -> None:
    process, _, log = start(engines=(engine, "beta"))
    assert process.wait(LIMIT_S) == 1
    assert f"model-switch: error: alpha: POST {engine.split()[1]}: 500 out of memory" in log.read_text()


def test_an_engine_that_does_not_wake_ends_the_program(start: Start) -> None:
    process, url, log = start("--least-awake", "0", engines=("alpha", "beta /wake_up"))
    wait_for_all(url)
    assert complete(url, "alpha")[0] == 200
    code, headers, _ = complete(url, "beta")
    assert (code, headers["Retry-After"]) == (503, "1")
    assert process.wait(LIMIT_S) == 1
    assert "model-switch: error: beta: POST /wake_up: 500 out of memory" in log.read_text()


def test_after_a_switch_that_failed_nobody_waits_for_what_no_model_computes(start: Start) -> None:
    options = ("--least-awake", "0", "--finish", "0.1")
    process, url, _ = start(*options, engines=("alpha", "beta /wake_up"), drain_s=10 * LIMIT_S)
    wait_for_all(url)
    with ThreadPoolExecutor(1) as users:
        runs = users.submit(complete, url, "alpha", 10_000, hold=0.1)
        wait_for_stream(url)
        assert complete(url, "beta")[0] == 503
        assert process.wait(LIMIT_S) == 1
        with pytest.raises(Exception, match="IncompleteRead"):
            runs.result()


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (("alpha", "beta late"), "error: 1: it ended with status 4 before it served"),
        (("alpha", "alpha"), "error: alpha: two engines serve it. Fix: give each --served-model-name of its own"),
    ],
)
def test_engines_that_cannot_serve_together_end_the_program(
    start: Start, engines: tuple[str, ...], message: str
) -> None:
    process, _, log = start(engines=engines)
    assert process.wait(LIMIT_S) == 1
    assert message in log.read_text()
    assert not any(map(is_running, read_pids(log).values()))


def test_its_own_lines_are_json_if_asked_to(start: Start) -> None:
    _, url, log = start("--log", "json", "--least-awake", "0.1")
    wait_for_all(url)
    assert complete(url, "beta")[0] == 200
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    own = [row["message"].partition(":")[0] for row in rows if row.get("program") == "model-switch"]
    assert own == ["beta", "alpha", "beta in place of alpha"] and all(row.get("time") or row["engine"] for row in rows)


def test_one_engine_alone_is_refused(start: Start) -> None:
    process, _, log = start(engines=("alpha",))
    assert process.wait(LIMIT_S) == 2
    assert "it takes two commands of engines or more, each after --" in log.read_text()


@pytest.mark.engine
def test_the_router_finds_all_models_at_the_one_address(start: Start, tmp_path: Path) -> None:
    _, url, _ = start("--least-awake", "0")
    wait_for_all(url)
    port = url.rpartition(":")[2]
    dns_discovery.write_dns(tmp_path, worker=["127.0.0.1"])
    router = ("--enable-igw", "--policy", "round_robin")
    with dns_discovery.run_router(tmp_path, "--router=ROUTER", f"--worker=worker:{port}", router=router) as (front, _):
        for model in ("beta", "alpha", "beta-adapter"):
            processes.wait_until(lambda model=model: ask_router(front, model), f"an answer of {model}", LIMIT_S)  # type: ignore[misc]
        assert not ask_router(front, "gamma")
    assert read_metric(url, "model_switch_seconds_count", "beta") >= 1


def ask_router(url: str, model: str) -> bool:
    """Whether the model answers."""
    status, _, text = complete(url, model, prompt="who?", stream=True)
    return status == 200 and text.startswith(f"data: {model.partition('-')[0]} 0")


@pytest.fixture(scope="module")
def real_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Two engines of vLLM with one small model each, whose turns are short."""
    folder = tmp_path_factory.mktemp("real")
    model = make_tiny.make("tiny", folder / "tiny")
    env = engine_env.VllmEnv()
    programs = env.ensure()
    [port] = processes.claim_free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [str(programs / "python"), str(PROGRAM), "--listen", url.removeprefix("http://")]
    command += ["--least-awake", "0.1", "--finish", "0"]
    for name in ("alpha", "beta"):
        command += [
            "--engine",
            str(programs / "vllm"),
            "serve",
            str(model),
            "--served-model-name",
            name,
            "--enforce-eager",
        ]
        # In 16 bits, what is computed in one step and what is in many differ enough to choose another token now and then.
        command += ["--max-model-len", "4096", "--kv-cache-memory-bytes", str(2**26), "--dtype", "float32"]
        command += ["--distributed-executor-backend", "uni"]
    environment = {
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(folder / "cache"), "DRAIN_S": str(LIMIT_S),
    }  # fmt: skip
    env.prepare([folder / "cache"])
    log = folder / "log"
    with log.open("wb") as output:
        process = processes.spawn(command, environment=environment, output=output)
    try:
        processes.wait_until(lambda: ask(url, "/health")[0] == 200, f"vLLM, {log}", 4 * LIMIT_S)
        yield process, url, log
    finally:
        processes.stop(process)


TOKENS = 400
"""Longer than a turn."""


def _generate(url: str, model: str, tokens: int) -> str:
    status, _, text = complete(url, model, tokens, prompt="Once upon a time", temperature=0, ignore_eos=True)
    assert status == 200, text
    answer = json.loads(text)
    assert (answer["model"], answer["usage"]["completion_tokens"]) == (model, tokens)
    return str(answer["choices"][0]["text"])


def _read_sleep(url: str, model: str) -> float:
    page = ask(url, "/metrics")[2]
    pattern = rf'vllm:engine_sleep_state{{engine="0",model_name="{model}",sleep_state="weights_offloaded"}} (\S+)'
    [value] = re.findall(pattern, page)
    return float(value)


class _UnixConnection(http.client.HTTPConnection):
    """To an engine's own socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self.host)


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stream", [False, True])
def test_vllm_s_times_begin_when_a_request_came(real_engines: Program, stream: bool) -> None:
    process, url, _ = real_engines
    _generate(url, "alpha", 1)  # which is awake then
    commands = [child.cmdline() for child in psutil.Process(process.pid).children(recursive=True)]
    [path] = {command[command.index("--uds") + 1] for command in commands if "alpha" in command and "--uds" in command}

    def read_sums() -> list[float]:
        names = ("vllm:time_to_first_token_seconds_sum", "vllm:e2e_request_latency_seconds_sum")
        return [read_metric(url, name, "alpha", 'engine="0",') for name in names]

    before = read_sums()
    connection = _UnixConnection(path)
    body = json.dumps({"model": "alpha", "prompt": "Once", "max_tokens": 2, "ignore_eos": True, "stream": stream})
    headers = {"Content-Type": "application/json", "X-Arrived-At": f"{time.time() - 5000:.6f}"}
    connection.request("POST", "/v1/completions", body, headers)
    assert connection.getresponse().read()
    connection.close()
    assert [5000 <= after - earlier < 6000 for earlier, after in zip(before, read_sums(), strict=True)] == [True] * 2


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_vllm_s_engines_take_turns_and_a_request_that_stopped_midway_has_the_text_of_one_that_did_not(
    real_engines: Program,
) -> None:
    process, url, _ = real_engines
    assert [_read_sleep(url, model) for model in ("alpha", "beta")] == [0, 1]
    whole = _generate(url, "alpha", TOKENS)
    assert _generate(url, "beta", 5) == _generate(url, "alpha", 5), "they have the same weights"
    with ThreadPoolExecutor(1) as users:
        long = users.submit(_generate, url, "alpha", TOKENS)
        processes.wait_until(lambda: "vllm:num_requests_running" in ask(url, "/metrics")[2], "the metrics", LIMIT_S)
        running = r'(?m)^vllm:num_requests_running{engine="0",model_name="alpha"} 1.0$'
        processes.wait_until(lambda: bool(re.search(running, ask(url, "/metrics")[2])), "the request", LIMIT_S)
        _generate(url, "beta", 5)
        assert not long.done(), "the other came while it ran"
        assert long.result() == whole
    preempted = r'(?m)^vllm:num_preemptions_total{engine="0",model_name="alpha"} (\S+)$'
    assert float(re.findall(preempted, ask(url, "/metrics")[2])[0]) >= 1, "its KV cache was dropped, and computed again"
    assert [ask(url, path, {})[0] for path in ("/sleep", "/wake_up", "/collective_rpc")] == [404] * 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
