"""What the built images hold and how their programs behave in them, with nothing of this repository's environment."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from llm_serving import paths, processes
from llm_serving.catalog import engines, gguf
from llm_serving.hub import make_gguf, make_tiny
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from llm_serving.kinds.gateway import access, cloud, cloud_program, database, gateway_program
from llm_serving.kinds.gateway.client import AdminClient
from llm_serving.kinds.gateway.stack import CACHE_PORT
from llm_serving.kinds.gateway.validation import validate
from llm_serving.rehearsal import emulator
from llm_serving.services.service import Service
from llm_serving.targets import planning
from tests import batch_kills, conftest, known_server, serving, tls
from tests.http_handler import QuietHandler
from tests.images.built import ENGINE, NODE_USER, Container, ImageRunner
from tests.kinds.gateway import test_cloud, test_cloud_program, test_gateway
from tests.kinds.serving.resolving import resolve_files
from tests.prisma_standin import fixtures as prisma_standin

pytestmark = pytest.mark.timeout(3600)

ON_STAND_IN = ["batch-worker", "gateway", "llama-cpp", "load-driver", "router"]
ENGINE_MARKS = [pytest.mark.engine, pytest.mark.xdist_group(conftest.IMAGES)]
START_S, ENGINE_START_S = 300.0, 1200.0
REGION = "us-west-2"


_PARQUET = """\
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), "/tmp/file", compression="zstd")
print(pyarrow.parquet.ParquetFile("/tmp/file").read().to_pylist())
"""
"""What the image has of pyarrow reads and writes Parquet."""


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException), urllib.request.urlopen(url, timeout=60) as response:
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
    assert all(re.fullmatch(r"\S+ sha256:[0-9a-f]{64} [\d.]+[MG]B", line) for line in result.stdout.splitlines())
    vllm, engine = result.stderr.splitlines()[-2:]
    assert (result.returncode, vllm.split(": ")[0], engine.split(": ")[0]) == (
        *(1, "vllm not built"),
        f"{ENGINE} not built",
    )
    assert "vllm/vllm-openai:v0.32.0, could not be pulled" in vllm


@pytest.mark.parametrize("name", [*ON_STAND_IN, pytest.param(ENGINE, marks=ENGINE_MARKS)])
def test_an_image_has_no_compiler_and_no_cache_of_packages(image_runner: ImageRunner, name: str) -> None:
    root = image_runner.mount(name)
    found = [path for pattern in ("cc", "gcc*", "g++*", "ld") for path in root.glob(f"usr/bin/{pattern}")]
    found += [path for folder in ("root/.cache", "var/cache/apt/archives") for path in (root / folder).glob("*.*")]
    assert found == []
    assert (root / "var/tmp").stat().st_mode & 0o777 == 0o777, "which only the read-only root protects"


_COMPILE_AGAIN = """\
import compileall, importlib.util, pathlib, py_compile, sys, sysconfig
mode, *packages = sys.argv[1:]
roots = [pathlib.Path(sysconfig.get_path("purelib"), package) for package in packages]
files = [file for root in roots for file in root.rglob("*.py")]
read = lambda file: pathlib.Path(importlib.util.cache_from_source(file)).read_bytes()
kept = {file: read(file) for file in files}
sys.pycache_prefix = "/tmp/again"
for file in files:
    compileall.compile_file(file, quiet=2, force=True, invalidation_mode=py_compile.PycInvalidationMode[mode])
print(len(files), sum(read(file) != kept[file] for file in files))
"""


@pytest.mark.parametrize(
    ("name", "mode", "packages"),
    [
        ("gateway", "CHECKED_HASH", ["litellm/proxy"]),
        pytest.param(ENGINE, "UNCHECKED_HASH", ["vllm/v1", "vllm/entrypoints"], marks=ENGINE_MARKS),
    ],
)
def test_byte_code_in_an_image_is_the_same_however_often_it_is_compiled(
    image_runner: ImageRunner, name: str, mode: str, packages: list[str]
) -> None:
    """One digest for the same input needs that. What depends on the file's time differs each time."""
    shown = {}
    for each in (mode, "TIMESTAMP"):
        command = ["python3", "-c", _COMPILE_AGAIN, each, *packages]
        run = image_runner.format_command(name, command, {"HOME": "/tmp"})
        result = subprocess.run(run, capture_output=True, text=True, timeout=ENGINE_START_S, check=False)
        assert result.returncode == 0, result.stderr
        shown[each] = [int(word) for word in result.stdout.split()]
    count, differing = shown[mode]
    assert (count > 80, differing) == (True, 0)
    assert shown["TIMESTAMP"] == [count, count]


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
        processes.wait_until(lambda: "tiny" in _read(f"{url}/v1/models"), "the engine at the router", START_S)
        assert json.loads(serving.request_completion(url))["usage"]["completion_tokens"] > 0
        for container in (engine, front):
            _check_confinement(container)
        assert _stop(front, router.stop.stop_s) == 0
        assert _stop(engine, 60) == 0


def _read(url: str) -> str:
    """Return a page; "" where there is none yet."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return str(response.read().decode())
    except (OSError, http.client.HTTPException):
        return ""


_CONFINE = """\
import ctypes, os, struct, sys
REFUSED = {"x86_64": (237, 238, 239, 256, 279), "aarch64": (235, 236, 237, 238, 239)}[os.uname().machine]
steps = [(0x20, 0, 0, 0)]
steps += [(0x15, len(REFUSED) - index, 0, number) for index, number in enumerate(REFUSED)]
steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Refuses what containerd's default profile refuses a pod of an engine on CPU: mbind, set_mempolicy, get_mempolicy,
migrate_pages and move_pages, of contrib/seccomp/seccomp_default.go, without CAP_SYS_NICE."""

CPU_BLUEPRINT = """\
name: chat
pattern: aggregated
model: tiny
roles: {worker: {pool: intel}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: {}
"""


@pytest.mark.engine
@pytest.mark.xdist_group(conftest.IMAGES)
def test_vllm_on_cpu_streams_weights_and_answers_in_its_image(image_runner: ImageRunner, tmp_path: Path) -> None:
    """With the command line of a pool of CPUs, whose engine binds its threads to cores."""
    fleet = (paths.ROOT / "infra/fleets/mixed.yaml").read_text(encoding="utf-8")
    deployment = resolve_files(tmp_path, CPU_BLUEPRINT, fleet, "ecs")
    [worker], [model] = deployment.workers, deployment.loaded_models
    folder = make_tiny.make("tiny", tmp_path / "model")
    [port] = processes.claim_free_ports(1)
    moves = {"/scratch": "/tmp", r"0\.0\.0\.0": "127.0.0.1", rf"^{worker.port}$": str(port)}
    cache = worker.command.index("--kv-cache-memory-bytes") + 1
    command = [*worker.command[:cache], str(64 * 2**20), *worker.command[cache + 1 :]]
    with emulator.start(tmp_path, bare=True) as aws:
        client = emulator.create_client("s3", aws, REGION)
        bucket, _, prefix = model.weights.uri.removeprefix("s3://").partition("/")
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        for file in folder.iterdir():
            client.upload_file(str(file), bucket, f"{prefix}{file.name}")
        variables = {**worker.env, **emulator.build_client_env(aws, REGION)}
        environment = dict(zip(variables, _move(list(variables.values()), moves), strict=True))
        environment |= {"HOME": "/tmp", "USER": "inference", "AWS_CONFIG_FILE": f"/mine/{emulator.CONFIG_FILE.name}"}
        environment |= {"VLLM_LOGGING_LEVEL": "DEBUG"} | engines.load_engines()["vllm"].other_s3.environment
        mounts = {"/mine": emulator.CONFIG_FILE.parent}
        confined = ["python3", "-c", _CONFINE, *_move(command, moves)]
        with image_runner.run(ENGINE, confined, environment, mounts) as engine:
            url = f"http://127.0.0.1:{port}"
            processes.wait_until(partial(_has_started, engine, f"{url}/health"), "the engine", ENGINE_START_S)
            answer = json.loads(serving.request_completion(url, ENGINE_START_S, max_tokens=8))
            assert (answer["usage"]["completion_tokens"], len(answer["choices"][0]["text"]) > 0) == (8, True)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                serving.request_completion(url, model="another")
            _check_confinement(engine)
            assert "Seccomp:\t2" in Path(f"/proc/{engine.program.pid}/status").read_text(encoding="ascii")
            assert _stop(engine, worker.stop.stop_s) == 0
    log = (image_runner.folder / f"{ENGINE}.log").read_text(encoding="utf-8")
    assert "auto_setup=True" in log, "threads are bound"
    described = "Loaded model info for class vllm.model_executor.models.qwen3.Qwen3ForCausalLM from cache"
    assert described in log, "no process imports all of the engine to look at its class"
    assert re.search(r"Overall time to stream \S+ \S+ of all files to cpu", log), "weights come from S3"


@pytest.mark.engine
@pytest.mark.xdist_group(conftest.IMAGES)
def test_the_build_of_vllm_on_cpu_fails_without_a_library_that_its_start_loads(
    image_runner: ImageRunner, tmp_path: Path
) -> None:
    [libraries] = image_runner.mount(ENGINE).glob("usr/local/lib/python3*/*-packages/nvidia/cu13/lib")
    hidden = {f"/{libraries.relative_to(image_runner.mount(ENGINE))}": tmp_path}
    check = ["python3", "-B", "/opt/vllm/list_modules.py"]
    commands = [image_runner.format_command(ENGINE, check, {"HOME": "/tmp"}, mounts) for mounts in ({}, hidden)]
    results = [
        subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_START_S, check=False)
        for command in commands
    ]
    assert [result.returncode for result in results] == [0, 1]
    assert "libcudart.so" in results[1].stderr
    files = [image_runner.mount(ENGINE) / file.lstrip("/") for file in results[0].stdout.splitlines()]
    assert len(files) > 4000
    compiled = [file for file in files if list((file.parent / "__pycache__").glob(f"{file.stem}.cpython-*.pyc"))]
    assert len(compiled) == len(files), "no start compiles a module again"


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
            page = f"http://127.0.0.1:{metrics_port}/metrics"
            counter = rf"(?m)^{deployment.router.metrics['requests']}\{{.* 1$"
            processes.wait_until(lambda: re.search(counter, _read(page)) is not None, "the count of requests", START_S)
            _check_confinement(front)
        for engine in (prefill, decode):
            engine.shutdown()


def _count_workers(router_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{router_port}/workers", timeout=60) as response:
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
        from batch.layout import Submission

        rows = {f"row-{number}": f"answer {number}" for number in range(20)}
        run.s3.put_object(Bucket=batch_kills.BUCKET, Key="input.jsonl", Body=batch_kills.format_rows(rows))
        job = jobs.submit(Submission("input.jsonl", team="default"))
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


GATEWAY_BLUEPRINT = """\
kind: gateway
pattern: gateway
teams: {search: {models: chat, requests_per_minute: 100}}
routes: {chat: {deployments: {url: "http://engine.example.com", model: known}, price: {input: 1 USD, output: 2 USD}}}
"""


@pytest.mark.skipif(bool(database.find_missing()), reason=f"no Postgres on this machine. Fix: {database.INSTALL}")
def test_the_gateway_serves_a_team_and_records_its_use_in_its_image(image_runner: ImageRunner, tmp_path: Path) -> None:
    """With what its stack makes: secrets, a database and a cache with TLS at their ports. Prisma's engine is a stand-in."""
    _, gateway = test_cloud.resolve(tmp_path, GATEWAY_BLUEPRINT, "ecs").services
    port, admin_port = processes.claim_free_ports(2)
    host = f"127.{port >> 8}.{port & 255}.2"  # nobody else's, as the port is
    certificate, private_key = tls.make_certificate(tmp_path, f"IP:{host}")
    authorities = tmp_path / "authorities"
    authorities.mkdir()
    shutil.copy(certificate, authorities / f"{REGION}.pem")
    mounts = {
        str(cloud_program.AUTHORITIES): authorities,
        "/mine": emulator.CONFIG_FILE.parent,
        "/standin": prisma_standin.install().parent,
    }
    command = _move(gateway.command, {r"0\.0\.0\.0:8080": f"127.0.0.1:{port}", r"\b4000$": str(admin_port)})
    with (
        emulator.start(tmp_path, bare=True) as aws,
        test_cloud_program.run_postgres(tmp_path, host, str(certificate)) as login,
        test_gateway.run_redis(tmp_path) as cache_port,
        tls.run_proxy(cache_port, certificate, private_key, (host, CACHE_PORT)),
        known_server.run_server() as engine,
    ):
        connect = partial(emulator.create_client, endpoint=aws, region=REGION)
        place = test_cloud_program.make_place(connect, host, host)
        [config] = _move([gateway.env[gateway_program.CONFIG_VARIABLE]], {"http://engine.example.com": engine})
        environment = {**gateway.env, **emulator.build_client_env(aws, REGION), gateway_program.CONFIG_VARIABLE: config}
        environment |= {"AWS_CONFIG_FILE": f"/mine/{emulator.CONFIG_FILE.name}", "HOME": "/tmp"}
        environment["SSL_CERT_FILE"] = f"{cloud_program.AUTHORITIES}/{REGION}.pem"
        url = f"http://127.0.0.1:{port}"
        with image_runner.run("gateway", command, environment, mounts) as front:
            assert gateway.probe
            processes.wait_until(
                partial(_has_started, front, f"{url}{gateway.probe.health}"), "LiteLLM", gateway.probe.deadline_s
            )
            secret = cloud_program.read_secret(connect("secretsmanager"), place.secret)
            key, _ = AdminClient(f"http://127.0.0.1:{admin_port}", secret).create_key("search")
            assert test_gateway.read_status(f"{url}/key/list") == 404, "the administration"
            assert [validate.call(url, text, "chat", 8).status for text in ("", key)] == [401, 200]
            processes.wait_until(lambda: redis.Redis(port=cache_port).dbsize() > 0, "counts of limits", START_S)
            records = "SELECT 1 FROM \"LiteLLM_SpendLogs\" WHERE status = 'success'"
            processes.wait_until(lambda: database.query(login, records) != [], "the record of its use", START_S)
            _check_confinement(front)
            _stop(front, gateway.stop.stop_s)
        assert "Application shutdown complete." in (image_runner.folder / "gateway.log").read_text(encoding="utf-8")
        words = cloud.build_command(cloud_program.USAGE, "0", str(time.time() + 60), "edge")
        show_usage = image_runner.format_command("gateway", words, environment, mounts)
        shown = subprocess.run(show_usage, capture_output=True, text=True, timeout=START_S, check=False)
        assert [(row["team"], row["requests"]) for row in access.parse_rows(shown.stdout)["requests"]] == [
            ("search", 1)
        ]


def _has_started(container: Container, url: str) -> bool:
    assert container.process.poll() is None, "it ended"
    return _answers(url)
