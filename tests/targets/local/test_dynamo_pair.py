"""Dynamo's real frontend before prefill and decode: caches handed over, and prompts routed by what prefill's engines say that
they have cached."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog import engines
from llm_serving.services.service import Service
from llm_serving.targets.deployment_plan import DeploymentPlan
from tests import serving

pytestmark = serving.mark_framework("dynamo")

BLUEPRINT = """\
pattern: disaggregated
framework: dynamo
model: tiny
context: 2k
roles:
  router: {policy: kv-aware}
  prefill: {pool: general, replicas: 2}
  decode: {pool: general}
traffic: {users: 2}
slo: {}
"""

PROMPTS, TOKENS = 12, 300
BLOCK = engines.load_engines()["vllm"].platforms["cpu"].kv_block

COUNTED_S = 120.0
"""The engines' counters may be seconds behind, and minutes on a busy machine."""


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """Two engines of prefill and one of decode."""
    root = tmp_path_factory.mktemp("pair")
    folder = Path(shutil.copytree(serving.ROOT / "blueprints" / "disaggregated", root / "mine"))
    (folder / "blueprint.yaml").write_text(BLUEPRINT)
    with start_blueprint(folder, root) as started:
        yield started


def make_prompts(seed: int, count: int = PROMPTS) -> list[list[int]]:
    """Prompts as token ids of words, no two alike from the first block on."""
    rng = random.Random(seed)
    return [[rng.randrange(300, 1200) for _ in range(TOKENS)] for _ in range(count)]


def list_workers(plan: DeploymentPlan, role: str) -> list[Service]:
    return [worker for worker in plan.deployment.workers if worker.role == role]


def count(workers: Sequence[Service], name: str, **labels: str) -> float:
    return sum(serving.read_counter(worker, name, **labels) for worker in workers)


def ask(plan: DeploymentPlan, url: str, prompts: Sequence[Sequence[int]]) -> float:
    """Send the prompts one after the other; return the tokens that prefill's engines had in their caches."""
    prefill = list_workers(plan, "prefill")
    before = [count(prefill, f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits")]
    for prompt in prompts:
        serving.complete(url, prompt=prompt, max_tokens=2)
    expected = before[0] + sum(map(len, prompts))
    processes.wait_until(
        lambda: count(prefill, "vllm:prefix_cache_queries_total") >= expected, "the counters", COUNTED_S, 1
    )
    return count(prefill, "vllm:prefix_cache_hits_total") - before[1]


@contextlib.contextmanager
def run_frontend(plan: DeploymentPlan, folder: Path, *words: str) -> Iterator[str]:
    """Run a further frontend before the same workers; yield its URL."""
    [port] = processes.claim_free_ports(1)
    [router] = plan.deployment.entries
    start = router.command.index("dynamo.frontend")
    command = [*router.command[start - 2 : start + 1], "--http-host", "127.0.0.1", "--http-port", str(port), *words]
    with (folder / f"{port}.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **router.env}, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return bool(serving.request_completion(url))
        return False

    try:
        processes.wait_until(answers, f"the frontend with {words}", 180, 1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def test_it_listens_on_loopback_addresses_alone(plan: DeploymentPlan) -> None:
    serving.assert_loopback(plan)


def test_prefill_computes_a_prompt_and_decode_receives_it(plan: DeploymentPlan) -> None:
    source, decode, prefill = (
        "vllm:prompt_tokens_by_source_total",
        *(list_workers(plan, role) for role in ("decode", "prefill")),
    )
    names = {
        "computed": (prefill, "local_compute"),
        "received": (decode, "external_kv_transfer"),
        "again": (decode, "local_compute"),
    }

    def read() -> dict[str, float]:
        return {name: count(workers, source, source=kind) for name, (workers, kind) in names.items()}

    before, prompts = read(), make_prompts(1, 4)
    texts = [serving.complete(plan.deployment.url, prompt=prompt, max_tokens=8) for prompt in prompts]
    expected = len(prompts) * TOKENS
    processes.wait_until(lambda: read()["received"] - before["received"] >= expected, "the counters", COUNTED_S, 1)
    assert {name: value - before[name] for name, value in read().items()} == {
        "computed": expected,
        "received": expected,
        "again": 0,
    }
    assert texts == [serving.complete(plan.deployment.url, prompt=prompt, max_tokens=8) for prompt in prompts]
    assert len(set(texts)) > 1


def test_a_prompt_goes_to_the_prefill_engine_that_has_it_though_the_router_never_saw_it(
    plan: DeploymentPlan, tmp_path: Path
) -> None:
    """Another frontend spreads prompts over both engines in turn: the engines' events alone tell where they are."""
    all_found = PROMPTS * (TOKENS // BLOCK) * BLOCK
    first, second, third = (make_prompts(seed) for seed in (2, 3, 4))
    probes = itertools.count(5)
    with run_frontend(plan, tmp_path, "--router-mode", "round-robin") as around:
        assert ask(plan, around, [*first, *second, *third]) == 0

        def knows_latest() -> bool:
            """Whether the events of prompts of just now have come, and so all before them."""
            latest = make_prompts(next(probes), 4)
            ask(plan, around, latest)
            return ask(plan, plan.deployment.url, latest) == 4 * (TOKENS // BLOCK) * BLOCK

        processes.wait_until(knows_latest, "the events of both engines", 300, 1)
    for worker in list_workers(plan, "prefill"):
        assert serving.read_counter(worker, "vllm:request_success_total") >= PROMPTS
    assert ask(plan, plan.deployment.url, first) == all_found
    with run_frontend(plan, tmp_path, "--router-mode", "kv") as late:
        assert ask(plan, late, second) == all_found, "a frontend that starts asks the workers for what was before"
    with run_frontend(plan, tmp_path, "--router-mode", "kv", "--no-router-kv-events") as remembering:
        assert ask(plan, remembering, third) < all_found, "what it did not send it does not remember"


def test_no_request_fails_when_a_prefill_engine_is_killed(plan: DeploymentPlan) -> None:
    victim, *_ = [
        process
        for process in serving.list_processes(plan)
        if {"dynamo.vllm", "--disaggregation-mode", "prefill"} <= {*process.cmdline()}
    ]
    assert psutil.pid_exists(victim.pid)
    with serving.Load(plan.deployment.url, deadline_s=300, users=4) as load:
        load.wait_answers(4)
        victim.kill()
        load.wait_answers(12)
    assert load.failed == []
