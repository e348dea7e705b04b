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
from llm_serving.services.service import Service
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import readiness, supervisor
from tests import serving
from tests.serving import Load

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

TOKENS = 388
"""Of a prompt: some whole blocks of the KV cache, and a part of one more."""

COUNTER_TIMEOUT_S = 60.0
"""The engine brings its counters of transfers up to date when it logs."""


@pytest.fixture(scope="module")
def disaggregated_plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """The pattern as it is copied, up: a test that disturbs it leaves it as it was."""
    root = tmp_path_factory.mktemp("pair")
    shutil.copytree(ROOT / "blueprints" / "disaggregated", root / "mine")
    with start_blueprint(root / "mine", root) as plan:
        yield plan


def _find_process(plan: DeploymentPlan, role: str) -> Service:
    return next(process for process in plan.deployment.all_services if process.name.startswith(role))


def _make_prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts as token ids of words, no two alike from the first block on."""
    rng = random.Random(seed)
    return [[rng.randrange(300, 1200) for _ in range(TOKENS)] for _ in range(count)]


def _read_counters(plan: DeploymentPlan) -> dict[str, float]:
    """Where the prompts' tokens came from, by the engines' own counters."""
    prefill, decode = _find_process(plan, "prefill"), _find_process(plan, "decode")
    source, computed = "vllm:prompt_tokens_by_source_total", {"source": "local_compute"}
    return {
        "computed by prefill": serving.read_counter(prefill, source, **computed),
        "computed by decode": serving.read_counter(decode, source, **computed),
        "handed to decode": serving.read_counter(decode, source, source="external_kv_transfer"),
        "bytes": serving.read_counter(decode, "vllm:nixl_bytes_transferred_sum"),
        "transfers": serving.read_counter(decode, "vllm:nixl_bytes_transferred_count"),
        "failed": serving.read_counter(decode, "vllm:nixl_num_failed_transfers_total"),
    }


def _measure_transfers(plan: DeploymentPlan, before: dict[str, float], transfers: int) -> dict[str, float]:
    """What was counted since `before`, once all transfers are."""
    expected = before["transfers"] + transfers
    processes.wait_until(
        lambda: _read_counters(plan)["transfers"] >= expected, "the count of transfers", COUNTER_TIMEOUT_S, 0.5
    )
    return {name: count - before[name] for name, count in _read_counters(plan).items()}


def test_prefill_computes_every_prompt_and_transfers_its_cache_to_decode_byte_for_byte(
    disaggregated_plan: DeploymentPlan,
) -> None:
    before, prompts = _read_counters(disaggregated_plan), _make_prompts(6, seed=1)
    for prompt in prompts:
        serving.complete(disaggregated_plan.deployment.url, prompt=prompt)
    block = engines.load_engines()["vllm"].platforms["cpu"].kv_block
    full_tokens = -(-TOKENS // block) * block
    assert _measure_transfers(disaggregated_plan, before, len(prompts)) == {
        "computed by prefill": len(prompts) * TOKENS,
        "computed by decode": 0,
        "handed to decode": len(prompts) * TOKENS,
        "bytes": len(prompts) * full_tokens * memory.compute_kv_bytes_per_token(models.find("tiny")),
        "transfers": len(prompts),
        "failed": 0,
    }


def _complete_aggregated(plan: DeploymentPlan, prompt: list[int]) -> str:
    """Return the completion of a single process, prefill, called like any engine."""
    return serving.complete(
        serving.get_url(_find_process(plan, "prefill")), prompt=prompt, max_tokens=16, ignore_eos=True
    )


def test_disaggregated_text_equals_that_of_one_process(disaggregated_plan: DeploymentPlan) -> None:
    for prompt in _make_prompts(6, seed=2):
        disaggregated_text = serving.complete(
            disaggregated_plan.deployment.url, prompt=prompt, max_tokens=16, ignore_eos=True
        )
        assert disaggregated_text == _complete_aggregated(disaggregated_plan, prompt)


def test_a_chat_is_streamed_through_the_pair(disaggregated_plan: DeploymentPlan) -> None:
    messages = [{"role": "user", "content": "Where do the keys and values go?"}]
    events = serving.post(
        disaggregated_plan.deployment.url,
        "/v1/chat/completions",
        model="tiny",
        messages=messages,
        max_tokens=8,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, end = [line.removeprefix("data: ") for line in events.splitlines() if line]
    assert end == "[DONE]"
    # Tokens, not chunks: where the reader is slow, one chunk carries several.
    assert json.loads(chunks[-1])["usage"]["completion_tokens"] == 8
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in json.loads(chunk)["choices"])


_KV_TRANSFER_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What the router tells prefill; prefill's answer then tells decode where the cache lies."""


def _complete_with_cache(plan: DeploymentPlan, prompt: list[int], other: list[int]) -> str:
    """Return decode's completion of `prompt` with the transferred cache of `other`."""
    prefill, decode = (serving.get_url(_find_process(plan, role)) for role in ("prefill", "decode"))
    prefill_response = json.loads(
        serving.request_completion(prefill, prompt=other, max_tokens=1, kv_transfer_params=_KV_TRANSFER_PARAMS)
    )
    transfer_params = prefill_response["kv_transfer_params"]
    return serving.complete(decode, prompt=prompt, max_tokens=16, ignore_eos=True, kv_transfer_params=transfer_params)


def test_decode_reads_the_transferred_cache(
    disaggregated_plan: DeploymentPlan,
) -> None:
    prompts, other_prompts = _make_prompts(6, seed=3), _make_prompts(6, seed=4)
    expected = [_complete_aggregated(disaggregated_plan, prompt) for prompt in prompts]
    assert [_complete_with_cache(disaggregated_plan, prompt, prompt) for prompt in prompts] == expected
    texts = [
        _complete_with_cache(disaggregated_plan, prompt, other)
        for prompt, other in zip(prompts, other_prompts, strict=True)
    ]
    # Random weights heed what lies far back but weakly, so that some texts may stay.
    assert sum(text != other for text, other in zip(texts, expected, strict=True)) >= 2


def test_an_idle_pair_does_not_busy_wait(disaggregated_plan: DeploymentPlan) -> None:
    supervisord = supervisor.find_running(disaggregated_plan.directory)
    assert supervisord is not None
    families = [
        psutil.Process(supervisord.read_state(process.name).pid).children(recursive=True)
        for process in disaggregated_plan.deployment.workers
    ]
    start, before = time.monotonic(), [_measure_cpu_s(family) for family in families]
    time.sleep(3)
    used_s = [_measure_cpu_s(family) - earlier for family, earlier in zip(families, before, strict=True)]
    # NIXL's thread that asks without a pause takes as much of this time as it gets.
    assert max(used_s) < (time.monotonic() - start) / 3


def _measure_cpu_s(family: list[psutil.Process]) -> float:
    """CPU-seconds of all of them."""
    return sum(sum(process.cpu_times()[:2]) for process in family)


@pytest.mark.parametrize("role", ["decode", "prefill", "router"])
def test_a_process_killed_under_load_restarts_alone(disaggregated_plan: DeploymentPlan, role: str) -> None:
    supervisord = supervisor.find_running(disaggregated_plan.directory)
    assert supervisord is not None
    victim = _find_process(disaggregated_plan, role)
    before = {state.name: state for state in supervisord.list_states()}
    assert supervisord.pid is not None
    keeper, deadline = psutil.Process(supervisord.pid), disaggregated_plan.deployment.traffic.deadline
    with Load(disaggregated_plan.deployment.url, deadline, users=2, pause_s=0.2) as load:
        processes.wait_until(lambda: len(load.start_times) > 4, "answers", 60)
        keeper.suspend()  # or it might be back before a client has seen that it was gone
        try:
            for process in psutil.Process(before[victim.name].pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # one may end with another
                    process.kill()
            processes.wait_until(lambda: len(load.failed) > 0, "what a client sees", 90)
        finally:
            keeper.resume()
        processes.wait_until(
            lambda: supervisord.read_state(victim.name).pid not in (0, before[victim.name].pid), "its restart", 90
        )
        readiness.wait(
            supervisord,
            [*disaggregated_plan.deployment.workers, *disaggregated_plan.deployment.entries],
        )
        recovered_at = time.monotonic()
        processes.wait_until(lambda: sum(start > recovered_at for start in load.start_times) > 4, "answers again", 60)
    assert set(map(_classify_failure, load.failed)) <= KINDS[role], f"nothing hangs: {load.failed}"
    after = {state.name: state for state in supervisord.list_states()}
    assert {name for name in after if after[name].pid != before[name].pid} == {victim.name}
    prompt = _make_prompts(1, seed=20 + len(KINDS[role]))[0]
    assert serving.complete(
        disaggregated_plan.deployment.url, prompt=prompt, max_tokens=16, ignore_eos=True
    ) == _complete_aggregated(disaggregated_plan, prompt)


KINDS = {"decode": {"500", "503", "cut"}, "prefill": {"500", "503", "cut"}, "router": {"refused", "502", "cut"}}
"""What a client may see: the answer broken off where it was under way, then a clear refusal at once; 502 is nginx's."""

DISCONNECTS = ("stream was cut", "IncompleteRead", "RemoteDisconnected", "reset by peer")


def _classify_failure(failure: str) -> str:
    status = re.search(r"HTTPError (\d+)", failure)
    if status:
        return status[1]
    return "refused" if "refused" in failure else "cut" if any(word in failure for word in DISCONNECTS) else failure


def test_prompts_with_a_cached_prefix_go_to_its_rank_and_both_ranks_of_decode_answer(
    tmp_path: Path, start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]]
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(ROOT / "blueprints" / "disaggregated", folder)
    file = folder / "blueprint.yaml"
    text = file.read_text().replace("general, replicas: 1, accelerators: 1}", "wide, accelerators: 2, data: 2}")
    file.write_text(text.replace("traffic:", "  router: {policy: cache-aware}\ntraffic:", 1))
    [shared] = _make_prompts(1, seed=9)
    with start_blueprint(folder, tmp_path) as plan:
        answered = {role: _count_by_rank(plan, role) for role in ("prefill", "decode")}
        for end in range(300, 308):
            serving.complete(plan.deployment.url, prompt=[*shared[:-1], end])
        shares = {
            role: [after - before for before, after in zip(answered[role], _count_by_rank(plan, role), strict=True)]
            for role in answered
        }
    assert sorted(shares["prefill"]) == [0, 8], shares
    assert sum(shares["decode"]) == 8 and min(shares["decode"]) > 0, shares


def _count_by_rank(plan: DeploymentPlan, role: str) -> list[float]:
    """Requests that each of two data-parallel ranks of a role has answered."""
    process = _find_process(plan, role)
    return [serving.read_counter(process, "vllm:request_success_total", engine=str(rank)) for rank in (0, 1)]
