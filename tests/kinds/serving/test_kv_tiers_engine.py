"""The file tier of cached prompts with the real engine: what it evicts comes back, and a damaged file costs time alone.

The engine runs in a process of its own on CPU, without an HTTP server: a fork of one that has imported it. For its own tiers tests/cpu_tiers.py replaces the
copy from GPUs; connector, tiers, eviction, files and metrics are vLLM's. LMCache and its server run as they are rendered.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from llm_serving import processes
from llm_serving.hub import make_tiny
from tests import engines_own
from tests.engines_own import EngineProbe
from tests.kinds.serving import resolving
from tests.kv_tiers_program import CHUNK_TOKENS, PROMPT_TOKENS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1900)]

PROGRAM = Path(__file__).parents[2] / "kv_tiers_program.py"

CACHED_TOKENS = PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS
"""Of a prompt: whole chunks alone."""

CHUNK_BYTES = 262_144
"""Of `tiny`, 128 tokens."""

LMCACHE_CHUNK_TOKENS = 256
"""Its default."""

HITS, QUERIES = "vllm:external_prefix_cache_hits", "vllm:external_prefix_cache_queries"
READ_BYTES, FAILED = "vllm:kv_offload_tiering_read_bytes 1:fs", "vllm:kv_offload_tiering_promotion_job_failures 1:fs"


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(engine_probe: EngineProbe, tmp_path: Path) -> Run:
    """Run the program and return what it printed.

    Args:
        settings: its own.
        starter: what starts it in place of the engine, and a server beside it.
    """
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "LMCACHE_TRACK_USAGE": "false",
    }

    def run_program(settings: dict[str, Any], starter: Sequence[str] = ()) -> dict[str, Any]:
        log = tmp_path / "log"
        words = [str(PROGRAM), json.dumps(settings)]
        if starter:
            words = [*starter[1:], starter[0], *words]
        keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        [ended] = engine_probe("run", [{"words": words, "environment": environment | keys, "log": str(log)}])
        assert ended == {"result": 0}, log.read_text()[-4000:]
        [answer] = [line for line in log.read_text().splitlines() if line.startswith('{"answers"')]
        return dict(json.loads(answer))

    return run_program


def test_an_evicted_prompt_comes_back_from_files_and_a_damaged_one_is_computed_again(tmp_path: Path, run: Run) -> None:
    model, parts = make_tiny.make("tiny", tmp_path / "model"), CACHED_TOKENS // CHUNK_TOKENS
    settings = {"model": str(model), "folder": str(tmp_path / "kv"), "parts": parts}
    first = run({**settings, "steps": [0, 1, 2, 3, 0]})
    cached = [tokens for tokens, _ in first["answers"]]
    assert cached == [0, 0, 0, 0, CACHED_TOKENS], "each of four prompts is new, and the first was evicted"
    assert first["answers"][-1][1] == first["answers"][0][1], "the same text"
    assert first["metrics"][HITS] == CACHED_TOKENS
    assert first["metrics"][READ_BYTES] == parts * CHUNK_BYTES

    # Another process on the same folder has the last prompt of the first one; then every file is half.
    second = run({**settings, "steps": [3, "truncate", 0]})
    restarted, damaged = second["answers"]
    assert restarted == [CACHED_TOKENS, first["answers"][3][1]], "at its first request"
    assert damaged == [0, first["answers"][0][1]], "computed again, the same text"
    assert second["metrics"][HITS] == CACHED_TOKENS, "of the first request alone"
    assert second["metrics"][FAILED] == 1


def _render_lmcache(folder: Path) -> tuple[list[str], dict[str, Any], Path]:
    """Return what starts an engine on this machine beside LMCache, its connector, and the folder of the file tier."""
    deployment = resolving.resolve_files(
        folder,
        "name: mine\npattern: aggregated\nmodel: tiny\nroles: {worker: {pool: small}}\ntraffic: {users: 1}\nslo: {}\n"
        "tuning: {kv_tiers: {by: lmcache, ram: 64Mi, disk: 1Gi}}\n",
        "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools: {small: {types: g6e.xlarge, size: 0..1}}\n",
        "local",
        engine_folder=str(engines_own.find_executables()),
        data_folder=str(folder),
        ports={"worker-0-cache": processes.claim_free_ports(1)[0]},
    )
    [engine] = deployment.workers
    command = list(engine.command)
    connector = json.loads(command[command.index("--kv-transfer-config") + 1])
    [tier] = [json.loads(word.partition("=")[2]) for word in command if word.startswith("--l2-adapter=")]
    return command[: command.index(str(engines_own.find_executables() / "vllm"))], connector, Path(tier["base_path"])


def test_lmcache_serves_what_another_process_stored_and_an_engine_without_its_server_computes(
    tmp_path: Path, run: Run
) -> None:
    starter, connector, folder = _render_lmcache(tmp_path)
    model = make_tiny.make("tiny", tmp_path / "model")
    parts = PROMPT_TOKENS // LMCACHE_CHUNK_TOKENS
    settings = {"model": str(model), "folder": str(folder), "parts": parts, "connector": connector}
    cached_tokens = parts * LMCACHE_CHUNK_TOKENS
    first = run({**settings, "steps": [0, 1, 2, 0, "kill"]}, starter)
    assert [tokens for tokens, _ in first["answers"]] == [0, 0, 0, cached_tokens, 0, 0, cached_tokens]
    texts = [text for _, text in first["answers"]]
    assert (texts[3], texts[5], texts[6]) == (texts[0], texts[1], texts[0])

    # Another engine, and another server with empty memory: from files, at the first request. Then every file is half.
    second = run({**settings, "steps": [1, 3, "truncate", 2]}, starter)
    assert second["answers"] == [[cached_tokens, texts[1]], [0, texts[4]], [0, texts[2]]]
    assert second["metrics"][HITS] == cached_tokens

    other = shutil.copytree(model, tmp_path / "other")
    third = run({**settings, "model": str(other), "steps": [1]}, starter)
    assert third["metrics"][HITS] == 0, "another model"


@contextmanager
def _run_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run an S3 whose address is that of one bucket; yields HOST:PORT."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    moto = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        if not environ["PATH_INFO"].startswith(f"/{bucket}"):  # as boto3 writes it
            for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
                environ[name] = f"/{bucket}{environ[name]}"
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{server.port}"
    client = boto3.Session(region_name="us-east-1").client("s3", endpoint_url=f"http://{host}")
    client.create_bucket(Bucket=bucket)
    try:
        yield host
    finally:
        server.shutdown()


def test_lmcache_serves_from_a_bucket_what_another_process_stored(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter, connector, _ = _render_lmcache(tmp_path)
    model, parts = make_tiny.make("tiny", tmp_path / "model"), PROMPT_TOKENS // LMCACHE_CHUNK_TOKENS
    with _run_bucket("kv-of-mine", monkeypatch) as host:
        settings = {"model": str(model), "folder": "", "listing": f"http://{host}/?list-type=2", "parts": parts}
        settings |= {"connector": connector}
        # The address is the only difference to what is rendered for AWS.
        tier = {"type": "s3", "s3_endpoint": host, "s3_region": "us-east-1", "disable_tls": True}
        place = next(place for place, word in enumerate(starter) if word.startswith("--l2-adapter="))
        starter[place] = f"--l2-adapter={json.dumps(tier)}"
        first = run({**settings, "steps": [0, 1, 2, 0]}, starter)
        second = run({**settings, "steps": [0]}, starter)
    cached_tokens = parts * LMCACHE_CHUNK_TOKENS
    assert second["answers"] == [[cached_tokens, first["answers"][0][1]]]
    assert second["metrics"][HITS] == cached_tokens


def test_vllm_takes_the_settings_of_mooncakes_pool(tmp_path: Path, engine_probe: EngineProbe) -> None:
    # The connector itself needs a GPU; its class of settings does not.
    deployment = resolving.resolve_files(
        tmp_path,
        "name: mine\npattern: aggregated\nmodel: Qwen/Qwen3-8B\nroles: {worker: {pool: general, accelerators: 4}}\n"
        "tuning: {kv_tiers: {by: mooncake, ram: 8Gi}}\ntraffic: {users: 1}\nslo: {}\n",
        "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools: {general: {types: g6e.12xlarge, size: 0..1}}\n",
        "eks",
    )
    [engine] = deployment.workers
    file = tmp_path / "settings.json"
    file.write_text(engine.command[4])
    [answer] = engine_probe("mooncake", [str(file)])
    settings, prefix = answer["result"]
    written = json.loads(engine.command[4])
    assert settings == {**written, "mode": "embedded", "enable_offload": False, "tenant_id": "default"}
    # Names hold no number of ranks and no number format: `cache_prefix` does.
    assert prefix == "key@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0"
