"""The search finds what trying everything finds, and what it chooses holds under other arrivals."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace

import pytest

from llm_serving.catalog import instances, models
from llm_serving.engines import vllm_blocks
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.prediction import configurations, problem, search
from llm_serving.prediction.configurations import Preparation
from llm_serving.prediction.problem import Limit, Problem
from llm_serving.prediction.step_time import apply_precision
from llm_serving.prediction.workload import Length, Workload

TTFT, ITL = Limit("ttft_ms", "p95", 800), Limit("itl_ms", "p95", 50)


def ask(
    model: str,
    rate: float,
    inputs: tuple[int, int],
    outputs: tuple[int, int],
    limits: tuple[Limit, ...],
    types: str,
    shared: int = 0,
) -> Problem:
    drawing = random.Random(0)
    lengths = [Length(drawing.randint(*inputs), drawing.randint(*outputs), 0, shared) for _ in range(500)]
    rows = [instances.find(name) for name in types.split()]
    prices = [(row, row.get_price_usd_h("us-west-2") or math.nan) for row in rows]
    return Problem(models.find(model), Workload(rate, lengths), limits, prices)


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate fewer requests: what is compared is simulated with the same ones."""
    monkeypatch.setattr(search, "REQUESTS", 150)
    monkeypatch.setattr(search, "SCOUTS", 60)


CASES = {
    "dense": ask("Qwen/Qwen3-8B", 4, (500, 1500), (100, 200), (TTFT, ITL), "g6.xlarge g6e.xlarge g6e.12xlarge"),
    "mixture of experts": ask("Qwen/Qwen3-30B-A3B", 5, (500, 1500), (100, 200), (TTFT, ITL), "g6e.xlarge g7e.2xlarge"),
    "tight TTFT": ask(
        "Qwen/Qwen3-8B", 2, (1000, 1500), (50, 100), (TTFT._replace(ms=250),), "g6e.xlarge g7e.2xlarge p5.4xlarge"
    ),
    "tight ITL": ask(
        "Qwen/Qwen3-8B", 2, (500, 1000), (100, 200), (ITL._replace(ms=25),), "g6e.12xlarge g7e.2xlarge p5.4xlarge"
    ),
    "long prompts": ask("Qwen/Qwen3-8B", 0.5, (8000, 16000), (100, 200), (TTFT._replace(ms=5000), ITL._replace(ms=120)),
                        "g6e.xlarge g7e.2xlarge"),
    "shared beginning": ask(
        "Qwen/Qwen3-8B", 12, (1000, 1500), (50, 100), (TTFT, ITL), "g6e.xlarge g7e.2xlarge", shared=750
    ),
    "one node": ask("Qwen/Qwen3-32B", 3, (500, 1500), (100, 200), (TTFT, ITL), "p5.48xlarge"),
    "disaggregated": ask("Qwen/Qwen3-8B", 8, (4000, 6000), (50, 100),
                         (TTFT._replace(ms=3000), Limit("itl_ms", "p99", 16)), "p4de.24xlarge"),
    "200 a second": ask("Qwen/Qwen3-8B", 200, (200, 400), (20, 50), (TTFT, ITL), "g6e.xlarge g7e.2xlarge"),
    "whole requests": ask(
        "Qwen/Qwen3-8B", 3, (500, 1500), (100, 200), (Limit("e2e_ms", "p95", 6000),), "g6e.xlarge g7e.2xlarge"
    ),
    "means": ask("Qwen/Qwen3-8B", 5, (500, 1500), (100, 200),
                 (Limit("ttft_ms", "mean", 300), Limit("itl_ms", "mean", 30)), "g6e.xlarge g7e.2xlarge"),
    "several accelerators": ask("Qwen/Qwen3-32B", 2, (500, 1500), (100, 200), (TTFT, ITL), "g6e.12xlarge g7e.2xlarge"),
}  # fmt: skip


@functools.cache
def find(name: str) -> problem.Result:
    return search.search(CASES[name])


class _TriesEverything(search._Search):
    def _get_ceiling(self, entry: configurations.Prepared) -> float:  # noqa: ARG002
        return self._problem.max_usd_h


def measure_gap(problem: Problem, candidate: problem.Candidate, seed: int) -> float:
    """Return how near a candidate comes to a limit under other arrivals, as a multiple of it; over 1 misses it."""
    own, device = candidate.configuration, candidate.configuration.instance.accelerators
    assert device
    searching = search._Search(replace(problem, seed=seed))
    model = apply_precision(problem.model, own.precision)
    fit = configurations.compute_fit(
        model, own.instance, own.split, problem.context or problem.workload.longest, own.kv_type
    )
    [prepared] = Preparation(problem, searching._reject).prepare(own, model, device, fit)
    entry = prepared._replace(prefill=candidate.prefill_replicas)
    return searching._compute_gap(searching._play(entry, candidate.replicas, search.REQUESTS, 1.0))


@pytest.mark.parametrize("name", CASES)
def test_the_choice_costs_at_most_a_twentieth_more_than_that_of_trying_everything(name: str) -> None:
    found = find(name)
    # What costs twice as much cannot be the cheapest.
    affordable = replace(CASES[name], max_usd_h=2 * found.candidates[0].usd_h)
    all_tried = _TriesEverything(affordable).run()
    assert found.candidates[0].usd_h <= 1.05 * all_tried.candidates[0].usd_h
    assert found.simulations <= all_tried.simulations


@pytest.mark.parametrize("name", CASES)
def test_the_choice_meets_its_slo_under_other_arrivals(name: str) -> None:
    candidate = find(name).candidates[0]
    for seed in range(1, 6):
        gap = measure_gap(CASES[name], candidate, seed)
        assert gap <= 1, seed


def test_prefill_and_decode_are_split_where_that_costs_less() -> None:
    chosen = find("disaggregated").candidates[0]
    assert chosen.configuration.is_disaggregated
    assert chosen.nodes == chosen.configuration.count_nodes(chosen.prefill_replicas + chosen.replicas)
    fewer = chosen._replace(prefill_replicas=1)
    assert measure_gap(CASES["disaggregated"], fewer, 1) > 1, "one prefill replica reads as many prompts"


def test_without_its_shared_beginning_a_load_needs_more() -> None:
    problem = CASES["shared beginning"]
    lengths = [length._replace(shared_tokens=0) for length in problem.workload.lengths]
    other = replace(problem, workload=replace(problem.workload, lengths=lengths))
    assert search.search(other).candidates[0].usd_h > find("shared beginning").candidates[0].usd_h


def test_a_model_that_no_node_holds_is_split_over_several() -> None:
    problem = ask("deepseek-ai/DeepSeek-V3", 0.2, (500, 1000), (50, 100),
                  (Limit("ttft_ms", "p95", 5000), Limit("itl_ms", "p95", 500)), "p5.48xlarge")  # fmt: skip
    chosen = search.search(problem).candidates[0]
    assert chosen.configuration.split.pipeline == 2
    assert chosen.configuration.count_nodes(chosen.replicas) == 2 * chosen.replicas


def test_experts_stay_whole_where_their_parts_would_cut_the_blocks_of_fp8() -> None:
    problem = ask("Qwen/Qwen3-235B-A22B-FP8", 0.2, (500, 1000), (50, 100),
                  (Limit("ttft_ms", "p95", 5000), Limit("itl_ms", "p95", 500)), "p4d.24xlarge")  # fmt: skip
    chosen = search.search(problem).candidates[0]
    assert chosen.configuration.split == Split(8, whole_experts=True)
    assert measure_gap(problem, chosen, 1) <= 1


@pytest.mark.parametrize(
    ("name", "kind", "context", "blocks"),
    [
        # A block for its tokens, and one in each of three groups of layers with a state.
        ("Qwen/Qwen3.5-35B-A3B", "p5.4xlarge", 8192, 4),
        # 2,000 tokens by 32 in one group of layers, and in each of five the window of 1,024 by 16.
        ("google/gemma-4-31B-it", "p5en.48xlarge", 131_072, 63 + 5 * 65),
    ],
)
def test_short_requests_have_the_room_that_their_blocks_leave(name: str, kind: str, context: int, blocks: int) -> None:
    length = Length(400, 400) if blocks == 4 else Length(2500, 500, 0, 1000)
    asked = replace(CASES["one node"], model=models.find(name), context=context, workload=Workload(1, [length]))
    instance, split = instances.find(kind), Split(1)
    own = problem.Configuration(instance, 1.0, split, "fp8", "auto", None)
    model = apply_precision(asked.model, "fp8")
    fit = configurations.compute_fit(model, instance, split, context, "auto")
    total = vllm_blocks.count_cache_blocks(model, fit.cache_bytes, ReplicaSetup(context=context)).total
    assert instance.accelerators
    preparation = Preparation(asked, search._Search(asked)._reject)
    [entry] = preparation.prepare(own, model, instance.accelerators, fit)
    limits = entry.limits
    own_tokens = length.input_tokens - length.shared_tokens + length.output_tokens
    assert limits.sequences == total // blocks < fit.cache_tokens // own_tokens


def test_a_price_that_may_not_be_exceeded_leaves_nothing() -> None:
    result = search.search(replace(CASES["dense"], max_usd_h=0.5))
    assert result.candidates == []
    assert {row.limited_by for row in result.rejected} == {"price"}


def test_accelerators_that_no_engine_here_runs_on_are_out() -> None:
    problem = ask("Qwen/Qwen3-8B", 1, (200, 900), (20, 90), (TTFT, ITL), "inf2.xlarge trn1.2xlarge")
    result = search.search(problem)
    assert result.candidates == []
    assert [(row.instance, row.reason, row.limited_by) for row in result.rejected] == [
        ("inf2.xlarge", "AWS's plugin of vLLM runs on Trainium2 and later, not on Inferentia2", "engine"),
        ("trn1.2xlarge", "AWS's plugin of vLLM runs on Trainium2 and later, not on Trainium", "engine"),
    ]


def test_trainium2_of_which_an_engine_takes_whole_nodes_only_is_out() -> None:
    problem = ask("Qwen/Qwen3-8B", 1, (200, 900), (20, 90), (TTFT, ITL), "")
    result = search.search(replace(problem, prices=[(instances.find("trn2.3xlarge"), 2.0)]))
    assert result.candidates == []
    assert [(row.instance, row.limited_by) for row in result.rejected] == [("trn2.3xlarge", "engine")]


def test_simulations_are_repeatable() -> None:
    assert search.search(CASES["dense"]).candidates == find("dense").candidates
