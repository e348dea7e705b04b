"""The arithmetic against vLLM itself: what it logs when it starts, and its planner, asked for larger models."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from llm_serving.catalog import engines, models
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.targets.local.deploy import Plan
from tests.engines_own import Asked

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


SAID = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request")


def _reported(log: str) -> list[tuple[int, int]]:
    """Tokens of the cache and of the longest request, as each start of vLLM logged them."""
    return [(int(found[1].replace(",", "")), int(found[2].replace(",", ""))) for found in SAID.finditer(log)]


def test_the_engines_line_is_read_from_its_log() -> None:
    line = (
        "INFO 11-21 04:06:32 [kv_cache_utils.py:2327] CPU KV cache size: 524,288 tokens, Maximum concurrency for 2,048 "
    )
    assert _reported(f"{line}tokens per request: 256.00x\nnothing else\n") == [(524_288, 2_048)]
    assert _reported("INFO KV cache is on") == []


@pytest.mark.engine
def test_each_running_replica_reports_the_tokens_that_were_computed_for_it(served: Plan) -> None:
    deployment = served.deployment
    model = models.find(deployment.models[0].model)
    for process in deployment.replicas:
        given = int(process.command[process.command.index("--kv-cache-memory-bytes") + 1])
        computed = memory.cache_tokens(model, given, context=deployment.models[0].context, block=CPU_BLOCK)
        reported = _reported(served.run.log(process.name).read_text())
        assert reported, "the engine's log does not speak of its cache"
        assert set(reported) == {(computed, deployment.models[0].context)}


@pytest.mark.engine
def test_vllms_planner_counts_the_same_tokens_for_every_kind_of_attention(asked: Asked) -> None:
    cases = list(product(NAMES, CONTEXTS, (memory.BLOCK, CPU_BLOCK), (1, 4)))
    questions = [_question(models.find(name), context, block, ways) for name, context, block, ways in cases]
    said = [answer["said"] for answer in asked("planner", questions)]
    counted = [
        memory.cache_tokens(models.find(name), ROOM, context=context, tensor_parallel=ways, block=block)
        for name, context, block, ways in cases
    ]
    # vLLM divides in floating point, which may lose one token.
    assert [case for case, ours, theirs in zip(cases, counted, said, strict=True) if abs(ours - theirs) > 1] == []
