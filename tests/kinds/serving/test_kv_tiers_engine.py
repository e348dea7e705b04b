"""The file tier of cached prompts with the real engine: what it evicts comes back, and a damaged file costs time alone.

The engine runs in a process of its own on CPU, without a server; tests/cpu_tiers.py replaces the copy from GPUs. Connector,
tiers, eviction, files and metrics are vLLM's own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llm_serving.hub import make_tiny
from llm_serving.targets.local import engine_env
from tests.kv_tiers_program import CHUNK_TOKENS, PROMPT_TOKENS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1900)]

PROGRAM = Path(__file__).parents[2] / "kv_tiers_program.py"

CACHED_TOKENS = PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS
"""Of a prompt: whole chunks alone."""

CHUNK_BYTES = 262_144
"""Of `tiny`, 128 tokens."""

HITS, QUERIES = "vllm:external_prefix_cache_hits", "vllm:external_prefix_cache_queries"
READ_BYTES, FAILED = "vllm:kv_offload_tiering_read_bytes 1:fs", "vllm:kv_offload_tiering_promotion_job_failures 1:fs"


def _run(settings: dict[str, Any]) -> dict[str, Any]:
    variables = {
        "PYTHONPATH": str(PROGRAM.parent),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    command = [str(engine_env.find_executables() / "python"), str(PROGRAM), json.dumps(settings)]
    result = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def test_an_evicted_prompt_comes_back_from_files_and_a_damaged_one_is_computed_again(tmp_path: Path) -> None:
    settings = {"model": str(make_tiny.make("tiny", tmp_path / "model")), "folder": str(tmp_path / "kv")}
    first = _run({**settings, "steps": [0, 1, 2, 3, 0]})
    cached = [tokens for tokens, _ in first["answers"]]
    assert cached == [0, 0, 0, 0, CACHED_TOKENS], "each of four prompts is new, and the first was evicted"
    assert first["answers"][-1][1] == first["answers"][0][1], "the same text"
    assert first["metrics"][HITS] == CACHED_TOKENS
    assert first["metrics"][READ_BYTES] == CACHED_TOKENS // CHUNK_TOKENS * CHUNK_BYTES

    # Another process on the same folder has the last prompt of the first one; then every file is half.
    second = _run({**settings, "steps": [3, "truncate", 0]})
    restarted, damaged = second["answers"]
    assert restarted == [CACHED_TOKENS, first["answers"][3][1]], "at its first request"
    assert damaged == [0, first["answers"][0][1]], "computed again, the same text"
    assert second["metrics"][HITS] == CACHED_TOKENS, "of the first request alone"
    assert second["metrics"][FAILED] == 1
