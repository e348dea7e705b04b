"""What the built images hold and how their programs behave in them, with nothing of this repository's environment."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths, processes
from llm_serving.catalog import gguf
from llm_serving.hub import make_gguf
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from llm_serving.rehearsal import emulator
from llm_serving.services.service import Service
from llm_serving.targets import planning
from tests import batch_kills, serving
from tests.http_handler import QuietHandler
from tests.images.built import NODE_USER, Container, ImageRunner
from tests.kinds.serving.resolving import resolve_files

pytestmark = pytest.mark.timeout(900)

ON_STAND_IN = ["batch-worker", "llama-cpp", "load-driver", "router"]
START_S = 120.0


_PARQUET = """\
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), "/tmp/file", compression="zstd")
print(pyarrow.parquet.ParquetFile("/tmp/file").read().to_pylist())
"""
"""What the image has of pyarrow reads and writes Parquet."""


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException), urllib.request.urlopen(url, timeout=10) as response:
        return bool(response.status == 200)
    return False


def _check_confinement(container: Container) -> None:
    user, group = NODE_USER.split(":")
    assert container.read_rights() == {"Uid": user, "Gid": group, "CapEff": "0" * 16, "NoNewPrivs": "1"}
    assert container.list_writable() == ["/dev/shm", "/tmp"]


def _stop(container: Container, limit_s: float) -> int:
    """Send what a node sends first; return the program's exit code within its time."""
    container.program.send_signal(signal.SIGTERM)
    return container.process.wait(limit_s)


def test_all_images_on_the_stand_in_are_built_and_the_engines_is_named(image_runner: ImageRunner) -> None:
    result = image_runner.all_built
    assert [line.split()[0] for line in result.stdout.splitlines()] == ON_STAND_IN, result.stderr
    assert all(re.fullmatch(r"\S+ sha256:[0-9a-f]{64} \d+MB", line) for line in result.stdout.splitlines())
    assert (result.returncode, result.stderr.splitlines()[-1].split(": ")[0]) == (1, "vllm not built")
    assert "vllm/vllm-openai:v0.32.0, could not be pulled" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ON_STAND_IN)
def test_an_image_has_no_compiler_and_no_cache_of_packages(image_runner: ImageRunner, name: str) -> None:
    root = image_runner.mount(name)
    found = [path for pattern in ("cc", "gcc*", "g++*", "ld") for path in root.glob(f"usr/bin/{pattern}")]
    found += [path for folder in ("root/.cache", "var/cache/apt/archives") for path in (root / folder).glob("*.*")]
    assert found == []
    assert (root / "var/tmp").stat().st_mode & 0o777 == 0o777, "which only the read-only root protects"


def _plan_router(folder: Path) -> Service:
    fleet = paths.ROOT / "infra/fleets/ecs-multi-az.yaml"
    plan = planning.plan(paths.PATTERNS / "aggregated", fleet, target="ecs", root=folder, account="123456789012")
    [router] = [service for service in plan.deployment.services if service.name == "router"]
    return router


def _move(command: Sequence[str], moves: Mapping[str, str]) -> list[str]:
    """Replace parts of a command's words: addresses of a fleet by those of this machine."""
    moved = []
    for word in command:
        for old, new in moves.items():
            word = re.sub(old, new, word)
        moved.append(word)
    return moved


def test_the_router_passes_a_request_to_the_engine_in_its_image(image_runner: ImageRunner, tmp_path: Path) -> None:
    model = make_gguf.make("tiny", tmp_path / "model")
    engine_port, port, router_port, metrics_port = processes.claim_free_ports(4)
    engine_command = ["llama-server", "--model", f"/models/{gguf.FILE}", "--alias", "tiny", "--offline", "--metrics"]
    engine_command += ["--host", "127.0.0.1", "--port", str(engine_port), "--ctx-size", "2048", "--threads", "1"]
    router = _plan_router(tmp_path)
    moves = {
        r"^--worker=.*": f"--worker=localhost:{engine_port}",
        r"0\.0\.0\.0": "127.0.0.1",
        r"\b8080$": str(port),
        r"\b8081$": str(router_port),
        r"^9090$": str(metrics_port),
    }
    with (
        image_runner.run("llama-cpp", engine_command, {"DRAIN_S": "5"}, {"/models": model}) as engine,
        image_runner.run("router", _move(router.command, moves), {"HOME": "/tmp"}) as front,
    ):
        processes.wait_until(lambda: _answers(f"http://127.0.0.1:{engine_port}/health"), "llama-server", START_S)
        url = f"http://127.0.0.1:{port}"
        processes.wait_until(lambda: _answers(f"{url}/readiness"), "the router's probe", START_S)
        processes.wait_until(lambda: "tiny" in _read_models(url), "the engine at the router", START_S)
        assert json.loads(serving.request_completion(url))["usage"]["completion_tokens"] > 0
        for container in (engine, front):
            _check_confinement(container)
        assert _stop(front, router.stop.stop_s) == 0
        assert _stop(engine, 30) == 0


def _read_models(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
            return str(response.read())
    except (OSError, http.client.HTTPException):
        return ""


class SplitEngine(ThreadingHTTPServer):
    """An engine of prefill or decode that keeps what it is asked, and answers with its own name."""

    daemon_threads = True

    def __init__(self, kind: str) -> None:
        super().__init__(("127.0.0.1", 0), SplitEngineHandler)
        self.kind = kind
        self.bodies: list[dict[str, Any]] = []


class SplitEngineHandler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.respond_json({"object": "list", "data": [{"id": "tiny", "object": "model"}], "served_model_name": "tiny"})

    def do_POST(self) -> None:
        assert isinstance(self.server, SplitEngine)
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        choice = {"index": 0, "text": self.server.kind, "finish_reason": "stop"}
        self.respond_json({"id": "x", "object": "text_completion", "model": "tiny", "choices": [choice]})


def test_the_router_of_sglang_names_the_hand_over_to_both_halves_in_its_image(
    image_runner: ImageRunner, tmp_path: Path
) -> None:
    blueprint = (
        "name: chat\npattern: disaggregated\nengine: sglang\nmodel: Qwen/Qwen3-0.6B\n"
        "roles: {prefill: {pool: general}, decode: {pool: general}}\n"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    fleet = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\norchestrator: ecs\n"
    fleet += "pools:\n  general: {types: g6e.4xlarge, size: 0..4}\n"
    deployment = resolve_files(tmp_path, blueprint, fleet, "ecs")
    [router] = deployment.entries
    port, router_port, metrics_port = processes.claim_free_ports(3)
    with SplitEngine("prefill") as prefill, SplitEngine("decode") as decode:
        moves = {
            rf"^--{engine.kind}=.*": f"--{engine.kind}=localhost:{engine.server_port}" for engine in (prefill, decode)
        }
        moves |= {r"0\.0\.0\.0": "127.0.0.1", r"\b8080$": str(port), r"\b8081$": str(router_port)}
        for engine in (prefill, decode):
            threading.Thread(target=engine.serve_forever, daemon=True).start()
        command = _move(router.command, moves | {r"^9090$": str(metrics_port)})
        with image_runner.run("router", command, {"HOME": "/tmp"}) as front:
            url = f"http://127.0.0.1:{port}"
            processes.wait_until(lambda: _count_workers(router_port) == 2, "both engines at the router", START_S)
            processes.wait_until(lambda: _answers(f"{url}/readiness"), "the router's probe", START_S)
            assert json.loads(serving.request_completion(url))["choices"][0]["text"] == "decode"
            halves = [engine.bodies[-1] for engine in (prefill, decode)]
            assert halves[0]["bootstrap_room"] == halves[1]["bootstrap_room"]
            assert [(half["bootstrap_host"], half["bootstrap_port"]) for half in halves] == [("127.0.0.1", 5600)] * 2
            metrics = urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10).read().decode()
            assert re.search(rf"(?m)^{deployment.router.metrics['requests']}\{{.* 1$", metrics)
            _check_confinement(front)
        for engine in (prefill, decode):
            engine.shutdown()


def _count_workers(router_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{router_port}/workers", timeout=10) as response:
            return sum(row["is_healthy"] for row in json.loads(response.read())["workers"])
    except (OSError, http.client.HTTPException):
        return 0


def test_the_batch_worker_and_its_api_run_a_job_in_their_image(image_runner: ImageRunner, tmp_path: Path) -> None:
    files = {"AWS_CONFIG_FILE": emulator.CONFIG_FILE, "BATCH_STATE_MACHINE_FILE": STATE_MACHINE_FILE}
    own = {"HOME": "/tmp", "BATCH_READY_FILE": "/tmp/ready"}
    own |= {variable: f"/mine/{variable}/{file.name}" for variable, file in files.items()}
    mounts = {f"/mine/{variable}": file.parent for variable, file in files.items()}

    def format_program(program: str, environment: Mapping[str, str]) -> list[str]:
        return image_runner.format_command("batch-worker", [program], {**environment, **own}, mounts)

    with batch_kills.start_run(tmp_path, workers=1, delay_ms=5, format_program=format_program) as run:
        run.wait_for_api()
        jobs = run.open_jobs()
        rows = {f"row-{number}": f"answer {number}" for number in range(20)}
        run.s3.put_object(Bucket=batch_kills.BUCKET, Key="input.jsonl", Body=batch_kills.format_rows(rows))
        job = jobs.submit("input.jsonl", team="default")
        deadline = time.monotonic() + START_S
        while job["state"] not in batch_kills.FINAL_STATES and time.monotonic() < deadline:
            time.sleep(0.25)
            job = jobs.read(job["id"])
        assert job["state"] == "completed"
        output, errors = run.read_lines(job["output_key"]), run.read_lines(job["error_key"])
        assert batch_kills.find_mistakes(rows, output, errors) == []
        api, worker = (Container(run.running[name]) for name in ("batch-api", "batch-worker-0"))
        assert worker.execute("test", "-e", own["BATCH_READY_FILE"]).returncode == 0, "the chart's readiness probe"
        parquet = worker.execute("python3", "-c", _PARQUET)
        assert (parquet.returncode, parquet.stdout) == (0, "[{'a': 1}]\n"), parquet.stderr
        for container in (api, worker):
            _check_confinement(container)
            assert _stop(container, 60) == 0
