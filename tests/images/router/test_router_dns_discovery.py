"""DNS discovery with the real vllm-router and fake engines that only identify themselves."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest

from llm_serving import processes
from llm_serving.catalog import routers
from llm_serving.catalog.routers import RouterMetric
from tests import dns_discovery, engines_own
from tests.http_handler import QuietHandler


class Engine(ThreadingHTTPServer):
    """Answers as vLLM with its address as its name, and records each request's body and whose it is."""

    daemon_threads = True
    models: tuple[str, ...]
    bodies: list[dict[str, Any]]
    callers: list[dict[str, str]]
    ranks: list[str | None]
    delay_s = 0.0
    """Until it answers a GET."""
    is_healthy = True
    status = 200
    """Of its answer to a request."""

    @property
    def address(self) -> str:
        return str(self.server_address[0])


CALLER = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Id": "request-42"}
"""How the tests' requests say whose they are."""


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Engine)
        time.sleep(self.server.delay_s)
        if self.path == "/health" and not self.server.is_healthy:
            self.send_error(503)
        else:
            self.respond_json({"object": "list", "data": [{"id": model} for model in self.server.models]})

    def do_POST(self) -> None:
        assert isinstance(self.server, Engine)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.ranks += [self.headers.get("X-data-parallel-rank")] if self.path == "/v1/completions" else []
        self.server.callers.append({name: self.headers.get(name, "") for name in CALLER})
        if self.server.status != 200:
            self.respond_json({"error": {"message": "no"}}, self.server.status)
            return
        payload: dict[str, Any] = {"id": "x", "object": "text_completion", "model": body["model"]}
        payload["choices"] = [{"index": 0, "text": self.server.address, "finish_reason": "stop"}]
        if body.get("kv_transfer_params", {}).get("do_remote_decode"):
            payload["kv_transfer_params"] = {"do_remote_prefill": True, "remote_engine_id": self.server.address}
        self.respond_json(payload)


@dataclass
class RouterTestbed:
    """A DNS file, engines on loopback addresses of one port, and the program with its router."""

    folder: Path
    port: int = field(default_factory=lambda: processes.claim_free_ports(1)[0])
    engines: dict[str, Engine] = field(default_factory=dict)
    metrics: str = ""
    """URL of the router's own metrics."""

    @property
    def log(self) -> str:
        return (self.folder / "discovery.log").read_text()

    def write_dns(self, **names: list[str] | None) -> None:
        dns_discovery.write_dns(self.folder, **names)

    def start(self, address: str, *models: str) -> Engine:
        engine = Engine((address, self.port), Handler)
        engine.models, engine.bodies, engine.callers, engine.ranks = models or ("alpha",), [], [], []
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        self.engines[address] = engine
        return engine

    def stop(self, address: str) -> None:
        engine = self.engines.pop(address)
        engine.shutdown()
        engine.server_close()

    @contextlib.contextmanager
    def run_router(self, *arguments: str, router: tuple[str, ...]) -> Iterator[str]:
        """The program and the real router before the engines; yields the router's URL."""
        with dns_discovery.run_router(self.folder, *arguments, router=router) as (url, self.metrics):
            yield url


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[RouterTestbed]:
    router_testbed = RouterTestbed(tmp_path)
    router_testbed.write_dns()
    yield router_testbed
    for address in list(router_testbed.engines):
        router_testbed.stop(address)


def _lookup(addresses: set[str], _: str) -> set[str]:
    return addresses


def send_request(url: str, model: str = "alpha") -> str:
    """Who answered a completion; the status where nobody did."""
    body = json.dumps({"model": model, "prompt": "who?", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json", **CALLER}
    request = urllib.request.Request(f"{url}/v1/completions", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(json.loads(response.read())["choices"][0]["text"])
    except urllib.error.HTTPError as error:
        return str(error.code)


def send_requests(url: str, model: str = "alpha", times: int = 8) -> set[str]:
    return {send_request(url, model) for _ in range(times)}


def wait_until_served(url: str, expected: set[str], model: str = "alpha") -> None:
    processes.wait_until(lambda: send_requests(url, model) == expected, f"answers of {expected}", 90, interval_s=0.5)


def list_urls(url: str) -> set[str]:
    """The router's entries of engines."""
    return {worker["url"] for worker in json.loads(dns_discovery.fetch_page(f"{url}/workers") or b"{}")["workers"]}


MULTI_MODEL_FLAGS = ("--enable-igw", "--policy", "round_robin")
CATALOG_FLAGS = (
    *routers.load_routers()["vllm-router"].discovery["names"].aggregated.arguments,
    "--policy",
    "round_robin",
)
"""Of engines found by name, as the catalog has them."""

A, B, C, D = (f"127.0.1.{number}" for number in range(1, 5))


@pytest.mark.engine
def test_replicas_join_and_leave_with_their_dns_name(testbed: RouterTestbed) -> None:
    with testbed.run_router("--router=ROUTER", f"--worker=worker:{testbed.port}", router=MULTI_MODEL_FLAGS) as url:
        assert send_request(url) == "503", "nobody is there yet"
        testbed.start(A), testbed.start(B)
        testbed.write_dns(worker=[A, B])
        wait_until_served(url, {A, B})
        assert testbed.engines[A].callers[-1] == CALLER, "the trace and the id go on to the engine"
        testbed.start(C)
        testbed.write_dns(worker=[B, C])
        wait_until_served(url, {B, C})
        assert A in testbed.engines, "it would still answer: DNS alone says that it is to go"
        testbed.write_dns(worker=None)
        testbed.stop(B)
        wait_until_served(url, {C})
    assert f"router-dns-discovery: http://{B}:{testbed.port} removed" in testbed.log


@pytest.mark.engine
def test_the_router_lists_models_with_an_engine_only_and_calls_itself_ready_without(testbed: RouterTestbed) -> None:
    with testbed.run_router("--router=ROUTER", f"--worker=workers:{testbed.port}", router=CATALOG_FLAGS) as url:
        assert dns_discovery.fetch_page(f"{url}/v1/models") is None
        assert dns_discovery.fetch_page(f"{url}/readiness") == b"Ready", "the control"
        testbed.start(A)
        testbed.write_dns(workers=[A])
        wait_until_served(url, {A})
        assert b"alpha" in (dns_discovery.fetch_page(f"{url}/v1/models") or b"")


@pytest.mark.engine
def test_an_unresponsive_address_is_not_registered(testbed: RouterTestbed) -> None:
    testbed.start(A)
    testbed.write_dns(worker=[A, D])
    with testbed.run_router("--router=ROUTER", f"--worker=worker:{testbed.port}", router=MULTI_MODEL_FLAGS) as url:
        wait_until_served(url, {A})
        assert D not in testbed.log


@pytest.mark.engine
@pytest.mark.parametrize("policy", ["cache_aware", "power_of_two", "random", "consistent_hash"])
def test_every_policy_routes_to_replicas_that_join_later(testbed: RouterTestbed, policy: str) -> None:
    router = ("--enable-igw", "--policy", policy)
    with testbed.run_router("--router=ROUTER", f"--worker=worker:{testbed.port}", router=router) as url:
        testbed.start(A)
        testbed.write_dns(worker=[A])
        wait_until_served(url, {A})


@pytest.mark.engine
def test_each_rank_of_an_engine_is_an_entry_that_stays_and_leaves_with_it(testbed: RouterTestbed) -> None:
    router = ("--policy", "round_robin", "--intra-node-data-parallel-size", "2")
    testbed.start(A), testbed.start(B)
    testbed.write_dns(worker=[A])
    with testbed.run_router("--router=ROUTER", f"--worker=worker:{testbed.port}", router=router) as url:
        wait_until_served(url, {A})
        entries = {f"http://{A}:{testbed.port}@{rank}" for rank in range(2)}
        assert set(json.loads(dns_discovery.fetch_page(f"{url}/list_workers") or b"{}")["urls"]) == entries
        testbed.write_dns(worker=[B])
        wait_until_served(url, {B})
    registrations = [line for line in testbed.log.splitlines() if line.endswith("serves alpha")]
    assert len(registrations) == 2, "the router's own names of the ranks are no reason to register an engine again"


@pytest.mark.engine
def test_an_engine_of_weight_3_gets_three_times_the_requests_and_leaves_as_a_whole(testbed: RouterTestbed) -> None:
    heavy, light = testbed.start(A), testbed.start(B)
    testbed.write_dns(heavy=[A], light=[B])
    names = (f"--worker=heavy:{testbed.port}=3", f"--worker=light:{testbed.port}")
    with testbed.run_router("--router=ROUTER", *names, router=MULTI_MODEL_FLAGS) as url:
        entries = {f"http://{A}:{testbed.port}{'/.' * copy}" for copy in range(3)} | {f"http://{B}:{testbed.port}"}
        processes.wait_until(lambda: list_urls(url) == entries, "all entries of the router", 90, interval_s=0.5)
        before = len(heavy.bodies), len(light.bodies)
        for _ in range(16):
            send_request(url)
        assert (len(heavy.bodies) - before[0], len(light.bodies) - before[1]) == (12, 4)
        testbed.write_dns(light=[B])
        testbed.stop(A)
        wait_until_served(url, {B})
        assert list_urls(url) == {f"http://{B}:{testbed.port}"}


@pytest.mark.engine
def test_each_model_has_its_engines_and_a_loaded_adapter_is_routed(testbed: RouterTestbed) -> None:
    testbed.start(A, "alpha")
    beta = testbed.start(B, "acme/Beta-0.1", "beta")
    testbed.write_dns(alpha=[A], beta=[B])
    names = (f"--worker=alpha:{testbed.port}", f"--worker=beta:{testbed.port}")
    with testbed.run_router("--router=ROUTER", *names, router=MULTI_MODEL_FLAGS) as url:
        wait_until_served(url, {A}, "alpha")
        wait_until_served(url, {B}, "beta")
        wait_until_served(url, {B}, "acme/Beta-0.1")
        assert send_requests(url, "sql") != {B}, "a model that nobody lists goes to any engine, whose answer is 404"
        beta.models = ("beta", "sql")
        wait_until_served(url, {B}, "sql")
        assert send_requests(url, "alpha") == {A}


@pytest.mark.engine
def test_prefill_and_decode_join_and_leave_with_their_dns_names(testbed: RouterTestbed) -> None:
    [discovery] = processes.claim_free_ports(1)
    for address in (A, B, C):
        testbed.start(address)
    testbed.write_dns(prefill=[A], decode=[B])
    arguments = (
        f"--discovery=127.0.0.1:{discovery}",
        f"--prefill=prefill:{testbed.port}",
        f"--decode=decode:{testbed.port}",
    )
    router = ("--vllm-pd-disaggregation", "--kv-connector", "nixl", "--vllm-discovery-address")
    with testbed.run_router(*arguments, router=(*router, f"127.0.0.1:{discovery}", "--policy", "round_robin")) as url:
        wait_until_served(url, {B})
        body = testbed.engines[B].bodies[-1]
        assert body["kv_transfer_params"]["remote_engine_id"] == A, "decode gets the id of the engine with the cache"
        for address in (A, B):
            assert testbed.engines[address].callers[-1]["traceparent"] == CALLER["traceparent"]
        testbed.write_dns(prefill=[A], decode=[B, C])
        wait_until_served(url, {B, C})
        testbed.write_dns(prefill=[A], decode=[C])
        wait_until_served(url, {C})
        for address in (A, C):
            before = read_metric(testbed, "disaggregated", "errors")
            testbed.engines[address].status = 500
            assert send_requests(url, times=3) == {"500"}
            assert read_metric(testbed, "disaggregated", "errors") == before + 3, "of either side"
            testbed.engines[address].status = 200
        before = read_metric(testbed, "disaggregated", "errors")
        testbed.write_dns(prefill=[], decode=[C])
        wait_until_served(url, {"503"})
        assert read_metric(testbed, "disaggregated", "errors") >= before + 8, "each is counted that finds nobody"
        assert read_metric(testbed, "disaggregated", "requests") > 0
        assert dns_discovery.fetch_page(f"{url}/liveness") == b"OK", (
            "what ECS asks: a router that waits for engines is to stay"
        )
        assert dns_discovery.fetch_page(f"{url}/health") is None


@pytest.mark.engine
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_names_the_ranks_of_prefill_and_of_decode(testbed: RouterTestbed, ranks: int) -> None:
    [discovery] = processes.claim_free_ports(1)
    testbed.start(A), testbed.start(B)
    testbed.write_dns(prefill=[A], decode=[B])
    names = (f"--prefill=prefill:{testbed.port}", f"--decode=decode:{testbed.port}")
    router = (
        "--vllm-pd-disaggregation",
        "--kv-connector",
        "nixl",
        "--policy",
        "round_robin",
        "--vllm-discovery-address",
    )
    router = (*router, f"127.0.0.1:{discovery}", "--intra-node-data-parallel-size", str(ranks))
    with testbed.run_router(f"--discovery=127.0.0.1:{discovery}", *names, router=router) as url:
        wait_until_served(url, {B})
        for address in (A, B):
            testbed.engines[address].ranks.clear()
        for _ in range(8):
            send_request(url)
        for address in (A, B):
            assert set(testbed.engines[address].ranks) == ({"0", "1"} if ranks == 2 else {None}), address


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kinds", "router", "delay_s"),
    [
        # The router's own limit for an engine that its API adds under a model is 5 s, whatever its options say.
        (("worker",), MULTI_MODEL_FLAGS, 4),
        (("worker",), CATALOG_FLAGS, 7),
        (("worker",), ("--policy", "round_robin", "--health-check-timeout-secs", "10"), 7),
        (("prefill", "decode"), ("--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"), 7),
    ],
    ids=["models-own-check", "models", "one-model", "disaggregated"],
)
def test_engines_that_answer_late_under_load_stay_registered(
    testbed: RouterTestbed, kinds: tuple[str, ...], router: tuple[str, ...], delay_s: float
) -> None:
    testbed.write_dns(worker=[A, B], prefill=[A], decode=[A, B])
    testbed.start(A), testbed.start(B)
    arguments = ["--router=ROUTER", *(f"--{kind}={kind}:{testbed.port}" for kind in kinds)]
    if "decode" in kinds:
        discovery = f"127.0.0.1:{processes.claim_free_ports(1)[0]}"
        arguments[0], router = f"--discovery={discovery}", (*router, "--vllm-discovery-address", discovery)
    with testbed.run_router(*arguments, router=router) as url:
        wait_until_served(url, {A, B})
        testbed.engines[B].delay_s = delay_s
        end_time = time.monotonic() + 25
        while time.monotonic() < end_time:
            assert send_requests(url, times=2) == {A, B}
            time.sleep(0.5)
        testbed.engines[B].delay_s = 0
        testbed.stop(B)
        wait_until_served(url, {A})


@pytest.mark.engine
def test_an_engine_that_reports_ill_health_leaves_and_returns(testbed: RouterTestbed) -> None:
    testbed.write_dns(worker=[A, B])
    testbed.start(A), testbed.start(B)
    with testbed.run_router("--router=ROUTER", f"--worker=worker:{testbed.port}", router=CATALOG_FLAGS) as url:
        wait_until_served(url, {A, B})
        testbed.engines[B].is_healthy = False
        wait_until_served(url, {A})
        testbed.engines[B].is_healthy = True
        wait_until_served(url, {A, B})


@pytest.mark.engine
def test_only_requests_that_no_engine_answers_count_as_errors(testbed: RouterTestbed) -> None:
    with testbed.run_router("--router=ROUTER", f"--worker=worker:{testbed.port}", router=MULTI_MODEL_FLAGS) as url:
        for path in ("health", "liveness", "v1/models", "workers"):
            dns_discovery.fetch_page(f"{url}/{path}")
        assert read_metric(testbed, "aggregated", "errors") == read_metric(testbed, "aggregated", "requests") == 0, (
            "nobody asked"
        )
        assert send_requests(url, times=3) == {"503"}
        error_count = read_metric(testbed, "aggregated", "errors")
        assert error_count >= 3
        assert read_metric(testbed, "aggregated", "requests") == 0
        testbed.start(A)
        testbed.write_dns(worker=[A])
        wait_until_served(url, {A})
        request_count, error_count = (
            read_metric(testbed, "aggregated", "requests"),
            read_metric(testbed, "aggregated", "errors"),
        )
        assert send_requests(url, times=3) == {A}
        assert read_metric(testbed, "aggregated", "requests") == request_count + 3
        assert read_metric(testbed, "aggregated", "errors") == error_count, (
            "and whom somebody answers is no longer refused"
        )
        for status in (400, 500):
            testbed.engines[A].status = status
            assert send_request(url) == str(status)
            error_count += status == 500
            assert read_metric(testbed, "aggregated", "errors") == error_count, "a refusal is the client's"


def read_metric(testbed: RouterTestbed, mode: Literal["aggregated", "disaggregated"], name: RouterMetric) -> float:
    """Return the sum over the series of a router's metric that alarms read, by the catalog's name."""
    lines = (dns_discovery.fetch_page(testbed.metrics) or b"").decode().splitlines()
    lines = [line for line in lines if f'error_type="{routers.REFUSED}"' not in line]
    metric_names = routers.load_routers()["vllm-router"].metrics[mode][name].split("|")
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.split("[{ ]", line)[0] in metric_names)


@pytest.mark.engine
def test_the_program_exits_with_the_router(testbed: RouterTestbed) -> None:
    command = [
        sys.executable,
        str(dns_discovery.FOLDER / "router_dns_discovery.py"),
        "--",
        str(engines_own.find_executables() / "vllm-router"),
        "--nonsense",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "--nonsense" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--worker=a:1"], "the router's command is missing"),
        (["--worker=a:1", "--", "true"], "--worker needs --router"),
        (["--decode=a:1", "--", "true"], "--prefill and --decode need --discovery, or --bootstrap-port"),
        (["--decode=a:1", "--bootstrap-port=1", "--", "true"], "--bootstrap-port needs --router"),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], message: str) -> None:
    command = [sys.executable, str(dns_discovery.FOLDER / "router_dns_discovery.py"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert message in result.stderr


class SplitRouter(ThreadingHTTPServer):
    """Lists workers as sglang-router 0.3.2 does, and removes them by its own numbers alone."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SplitRouterHandler)
        self.workers: dict[str, dict[str, Any]] = {}


class SplitRouterHandler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, SplitRouter)
        self.respond_json({"workers": [{"id": name, **row} for name, row in self.server.workers.items()]})

    def do_POST(self) -> None:
        assert isinstance(self.server, SplitRouter)
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.workers[f"number-{len(self.server.workers)}"] = row
        self.respond_json({"status": "accepted"})

    def do_DELETE(self) -> None:
        assert isinstance(self.server, SplitRouter)
        del self.server.workers[self.path.rpartition("/")[2]]
        self.respond_json({"status": "accepted"})


def test_prefill_and_decode_are_listed_as_such_and_removed_by_the_routers_own_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(dns_discovery.FOLDER)
    import router_dns_discovery

    with SplitRouter() as router:
        threading.Thread(target=router.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{router.server_port}"
        arguments = [f"--router={url}", "--bootstrap-port=8998", "--prefill=p:1", "--decode=d:1", "--", "true"]
        options, _ = router_dns_discovery._parse_arguments(arguments)
        lists = router_dns_discovery.build_worker_lists(options, each_model=False)
        for _ in range(2):
            lists["prefill"].sync({"http://p:1": ("tiny",)})
            lists["decode"].sync({"http://d:1": ("tiny",), "http://d:2": ("tiny",)})
        prefill = {"url": "http://p:1", "model_id": "tiny", "worker_type": "prefill", "bootstrap_port": 8998}
        decodes = [{"url": f"http://d:{number}", "model_id": "tiny", "worker_type": "decode"} for number in (1, 2)]
        assert list(router.workers.values()) == [prefill, *decodes], "each once"
        lists["decode"].sync({"http://d:2": ("tiny",)})
        assert list(router.workers.values()) == [prefill, decodes[1]]
        router.shutdown()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"SSH-2.0-another\r\n"])
def test_an_engine_that_ends_as_it_answers_or_left_its_address_to_another_server_ends_no_router(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.syspath_prepend(dns_discovery.FOLDER)
    import router_dns_discovery

    def send() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=send, daemon=True).start()
        name = router_dns_discovery.DnsName("worker", server.getsockname()[1])
        assert name.refresh(lambda _: {"127.0.0.1"}, router_dns_discovery.fetch_models) == {}
        assert name.misses == {"127.0.0.1": 1}


def test_replicas_beyond_one_dns_answer_are_all_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(dns_discovery.FOLDER)
    import router_dns_discovery

    addresses = [f"10.0.0.{number}" for number in range(20)]
    unreachable: set[str] = set()
    name = router_dns_discovery.DnsName("worker", 8000)

    def ask(url: str) -> tuple[str, ...] | None:
        return None if url.split("/")[2].split(":")[0] in unreachable else ("alpha",)

    for first in (0, 6, 12, 18):
        answered_addresses = {addresses[(first + step) % 20] for step in range(8)}
        engines = name.refresh(functools.partial(_lookup, answered_addresses), ask)
    assert set(engines) == {f"http://{address}:8000" for address in addresses}
    unreachable.add(addresses[0])
    for _ in range(router_dns_discovery.MAX_MISSES):
        engines = name.refresh(functools.partial(_lookup, set(addresses[8:16])), ask)
    assert len(engines) == 19
    assert addresses[0] not in name.addresses, "what is in no answer and silent is forgotten"
