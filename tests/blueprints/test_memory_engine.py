"""The arithmetic against vLLM itself: its planner, asked for models that no machine here holds."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from blueprints import memory
from blueprints.catalog import engines, models
from blueprints.catalog.models import Model
from scripts.local import engine_env

NAMES = ("openai/gpt-oss-20b", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B", "mid")
CONTEXTS = (2048, 8192, 10_000, 32_768)
ROOM = 20 * memory.GIB
CPU_BLOCK = engines.engines()["vllm"].platforms["cpu"].kv_block


def _question(model: Model, context: int, block: int, ways: int) -> dict[str, Any]:
    latent = model.latent
    return {
        "layers": model.layers,
        "sliding": model.sliding_layers,
        "window": model.window,
        "heads": 1 if latent else -(-model.kv_heads // ways),
        "size": latent.kv_rank + latent.rope_dim if latent else model.head_dim,
        "latent": bool(latent),
        "context": context,
        "bytes": ROOM,
        "batch": 8192,
        "block": block,
    }


@pytest.mark.engine
def test_vllms_planner_counts_the_same_tokens_for_every_kind_of_attention() -> None:
    cases = list(product(NAMES, CONTEXTS, (memory.BLOCK, CPU_BLOCK), (1, 4)))
    questions = [_question(models.find(name), context, block, ways) for name, context, block, ways in cases]
    done = subprocess.run(
        [engine_env.ensure() / "python", Path(__file__).with_name("engine_planner.py")],
        input=json.dumps(questions),
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    counted = [
        memory.cache_tokens(models.find(name), ROOM, context=context, tensor_parallel=ways, block=block)
        for name, context, block, ways in cases
    ]
    # vLLM divides in floating point, which may lose one token.
    assert [case for case, ours, theirs in zip(cases, counted, said, strict=True) if abs(ours - theirs) > 1] == []
