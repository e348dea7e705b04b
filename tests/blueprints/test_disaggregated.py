"""Prefill and decode as real processes: caches that truly go from one to the other, and what a client sees of faults."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog import engines, models
from llm_serving.engines import memory
from llm_serving.targets.local import readiness, supervisor
from llm_serving.targets.local.deploy import Plan
from llm_serving.workloads.serving.deployment import Process
from tests import serving
from tests.serving import Load

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

TOKENS = 388
"""Of a prompt: some whole blocks of the KV cache, and a part of one more."""

UNTIL_COUNTED_S = 20.0
"""The engine brings its counters of transfers up to date when it logs."""


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, brought_up: Callable[[Path, Path], AbstractContextManager[Plan]]
) -> Iterator[Plan]:
    """The pattern as it is copied, up: a test that disturbs it leaves it as it was."""
    root = tmp_path_factory.mktemp("pair")
    shutil.copytree(ROOT / "blueprints" / "disaggregated", root / "mine")
    with brought_up(root / "mine", root) as plan:
        yield plan


def _process(plan: Plan, role: str) -> Process:
    return next(process for process in plan.deployment.processes if process.name.startswith(role))


def _prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts as token ids of words, no two alike from the first block on."""
    draw = random.Random(seed)
    return [[draw.randrange(300, 1200) for _ in range(TOKENS)] for _ in range(count)]


def _counts(plan: Plan) -> dict[str, float]:
    """Where the prompts' tokens came from, by the engines' own counters."""
    prefill, decode = _process(plan, "prefill"), _process(plan, "decode")
    source, computed = "vllm:prompt_tokens_by_source_total", {"source": "local_compute"}
    return {
        "computed by prefill": serving.counter(prefill, source, **computed),
        "computed by decode": serving.counter(decode, source, **computed),
        "handed to decode": serving.counter(decode, source, source="external_kv_transfer"),
        "bytes": serving.counter(decode, "vllm:nixl_bytes_transferred_sum"),
        "transfers": serving.counter(decode, "vllm:nixl_bytes_transferred_count"),
        "failed": serving.counter(decode, "vllm:nixl_num_failed_transfers_total"),
    }


def _gained(plan: Plan, before: dict[str, float], transfers: int) -> dict[str, float]:
    """What was counted since `before`, once all transfers are."""
    wanted = before["transfers"] + transfers
    processes.wait_until(lambda: _counts(plan)["transfers"] >= wanted, "the count of transfers", UNTIL_COUNTED_S, 0.5)
    return {name: count - before[name] for name, count in _counts(plan).items()}


def test_every_prompt_is_computed_by_prefill_and_arrives_at_decode_by_transfer_byte_for_byte(pair: Plan) -> None:
    before, prompts = _counts(pair), _prompts(6, seed=1)
    for prompt in prompts:
        serving.text(pair.deployment.url, prompt=prompt)
    block = engines.engines()["vllm"].platforms["cpu"].kv_block
    whole = -(-TOKENS // block) * block
    assert _gained(pair, before, len(prompts)) == {
        "computed by prefill": len(prompts) * TOKENS,
        "computed by decode": 0,
        "handed to decode": len(prompts) * TOKENS,
        "bytes": len(prompts) * whole * memory.kv_bytes_per_token(models.find("tiny")),
        "transfers": len(prompts),
        "failed": 0,
    }


def _aggregated(pair: Plan, prompt: list[int]) -> str:
    """What one process says that computes all of it: prefill, asked as any engine is."""
    return serving.text(serving.url(_process(pair, "prefill")), prompt=prompt, max_tokens=16, ignore_eos=True)


def test_the_text_is_that_of_one_process_which_does_both_halves(pair: Plan) -> None:
    for prompt in _prompts(6, seed=2):
        split = serving.text(pair.deployment.url, prompt=prompt, max_tokens=16, ignore_eos=True)
        assert split == _aggregated(pair, prompt)


def test_a_chat_is_streamed_through_the_pair(pair: Plan) -> None:
    messages = [{"role": "user", "content": "Where do the keys and values go?"}]
    said = serving.post(
        pair.deployment.url, "/v1/chat/completions", model="tiny", messages=messages, max_tokens=8, stream=True
    )
    assert said.count('"content"') >= 8
    assert "data: [DONE]" in said


_TO_HAND_ON: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What the router tells prefill; prefill's answer then tells decode where the cache lies."""


def _with_cache_of(pair: Plan, prompt: list[int], other: list[int]) -> str:
    """What decode says to `prompt` where it is handed the cache of `other`."""
    prefill, decode = (serving.url(_process(pair, role)) for role in ("prefill", "decode"))
    read = json.loads(serving.ask(prefill, prompt=other, max_tokens=1, kv_transfer_params=_TO_HAND_ON))
    where = read["kv_transfer_params"]
    return serving.text(decode, prompt=prompt, max_tokens=16, ignore_eos=True, kv_transfer_params=where)


def test_another_prompts_cache_changes_the_text_so_the_cache_that_arrives_is_what_decode_reads(pair: Plan) -> None:
    mine, others = _prompts(6, seed=3), _prompts(6, seed=4)
    right = [_aggregated(pair, prompt) for prompt in mine]
    assert [_with_cache_of(pair, prompt, prompt) for prompt in mine] == right
    wrong = [_with_cache_of(pair, prompt, other) for prompt, other in zip(mine, others, strict=True)]
    # Random weights heed what lies far back but weakly, so that some texts may stay.
    assert sum(one != other for one, other in zip(wrong, right, strict=True)) >= 2


def test_an_idle_pair_leaves_the_cores_to_others(pair: Plan) -> None:
    up = supervisor.running(pair.run)
    assert up is not None
    families = [
        psutil.Process(up.state(process.name).pid).children(recursive=True) for process in pair.deployment.replicas
    ]
    before = [_worked_s(family) for family in families]
    time.sleep(3)
    # NIXL's thread that asks without a pause takes each of these seconds.
    assert [_worked_s(family) - earlier < 1 for family, earlier in zip(families, before, strict=True)] == [True, True]


def _worked_s(family: list[psutil.Process]) -> float:
    """CPU-seconds of all of them."""
    return sum(sum(process.cpu_times()[:2]) for process in family)


@pytest.mark.parametrize("role", ["decode", "prefill", "router"])
def test_a_process_killed_under_load_comes_back_and_the_others_need_no_restart(pair: Plan, role: str) -> None:
    up = supervisor.running(pair.run)
    assert up is not None
    victim = _process(pair, role)
    before = {state.name: state for state in up.states()}
    deadline = pair.deployment.traffic.deadline
    with Load(pair.deployment.url, deadline, users=2, pause_s=0.2) as load:
        processes.wait_until(lambda: len(load.done) > 4, "answers", 60)
        for process in psutil.Process(before[victim.name].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one may end with another
                process.kill()
        processes.wait_until(lambda: len(load.failed) > 2, "what a client sees", 30)
        processes.wait_until(lambda: up.state(victim.name).pid not in (0, before[victim.name].pid), "its restart", 30)
        readiness.wait(up, [*pair.deployment.replicas, *pair.deployment.router.processes])
        back = time.monotonic()
        processes.wait_until(lambda: sum(start > back for start in load.done) > 4, "answers again", 60)
    assert load.longest_s < deadline, "nothing hangs"
    assert set(map(_kind, load.failed)) <= KINDS[role], load.failed
    after = {state.name: state for state in up.states()}
    assert {name for name in after if after[name].pid != before[name].pid} == {victim.name}
    prompt = _prompts(1, seed=20 + len(KINDS[role]))[0]
    assert serving.text(pair.deployment.url, prompt=prompt, max_tokens=16, ignore_eos=True) == _aggregated(pair, prompt)


KINDS = {"decode": {"500", "503", "cut"}, "prefill": {"500", "503", "cut"}, "router": {"refused", "cut"}}
"""What a client may see: the answer broken off where it was under way, then a clear refusal at once."""

CUT = ("stream was cut", "IncompleteRead", "RemoteDisconnected", "reset by peer")


def _kind(failure: str) -> str:
    status = re.search(r"HTTPError (\d+)", failure)
    if status:
        return status[1]
    return "refused" if "refused" in failure else "cut" if any(word in failure for word in CUT) else failure
