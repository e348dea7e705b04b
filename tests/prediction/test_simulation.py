"""The simulated replica does what vLLM's own scheduler does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.prediction.simulation import (
    Limits,
    Outcome,
    Request,
    Simulation,
    compute_percentile,
    compute_weighted_percentile,
    run_users,
)
from tests.prediction import loads

RECORDED = json.loads((Path(__file__).parent / "data/vllm-schedule.json").read_text("utf-8"))["outcomes"]
"""What vllm_schedule.py printed with vLLM 0.32.0."""


def run(load: loads.Load) -> Outcome:
    return Simulation(loads.LinearStep(load.times_us), load.limits).run(load.requests)


def differ(value: float, recorded: dict[str, Any], key: str) -> float:
    return abs(value / recorded[key] - 1)


@pytest.mark.parametrize("name", loads.LOADS)
def test_latencies_are_those_of_vllms_scheduler(name: str) -> None:
    outcome, recorded = run(loads.LOADS[name]), RECORDED[name]
    assert outcome.is_complete
    assert differ(compute_percentile(outcome.ttft_s, 95), recorded["ttft_s"], "p95") < 0.05
    assert differ(compute_percentile(outcome.e2e_s, 95), recorded["e2e_s"], "p95") < 0.02
    assert differ(compute_weighted_percentile(outcome.gaps, 95), recorded["itl_s"], "p95") < 0.02
    mean_gap = sum(gap * count for gap, count in outcome.gaps) / sum(count for _, count in outcome.gaps)
    assert differ(mean_gap, recorded["itl_s"], "mean") < 0.02


@pytest.mark.parametrize("name", loads.LOADS)
def test_requests_lose_their_blocks_as_often_as_in_vllms_scheduler(name: str) -> None:
    assert run(loads.LOADS[name]).preemptions == RECORDED[name]["preemptions"]


def test_without_the_shared_beginning_latencies_are_others() -> None:
    load = loads.LOADS["one shared beginning"]
    outcome = run(load._replace(requests=[request._replace(shared_tokens=0) for request in load.requests]))
    assert differ(compute_percentile(outcome.ttft_s, 95), RECORDED["one shared beginning"]["ttft_s"], "p95") > 0.05


def test_all_blocks_are_free_at_the_end() -> None:
    load = loads.LOADS["preemption with shared beginnings"]
    simulation = Simulation(loads.LinearStep(load.times_us), load.limits)
    outcome = simulation.run(load.requests)
    assert outcome.preemptions > 0
    assert simulation._free == simulation._total_blocks


def test_a_request_that_never_fits_ends_the_simulation() -> None:
    outcome = Simulation(loads.LinearStep(loads.TIMES_US), Limits(8, 2048, 64)).run([Request(0.0, 200, 10)])
    assert not outcome.is_complete


def test_users_send_their_next_request_when_the_last_ends() -> None:
    simulation = Simulation(loads.LinearStep((1000.0, 0.0, 0.0, 0.0)), Limits(8, 2048, 64_000))
    outcome = simulation.run([Request(0.0, 10, 5)] * 6, users=2)
    # Two at a time, five steps each.
    assert outcome.seconds == pytest.approx(0.015)
    assert outcome.e2e_s == pytest.approx([0.005] * 6)


def test_the_first_tokens_of_users_are_those_of_a_loop_that_goes_on() -> None:
    """Prompts of 1,000 tokens that take 0.1 s each, of 16 users: begun at once, they wait for each other."""

    def build() -> Simulation:
        return Simulation(loads.LinearStep((10_000.0, 100.0, 0.0, 0.0)), Limits(32, 2048, 640_000))

    def measure_ttft_s(outcome: Outcome) -> float:
        return sum(outcome.ttft_s) / len(outcome.ttft_s)

    def list_requests(rounds: int) -> list[Request]:
        return [Request(0.0, 1000, 300 + 37 * number % 100) for number in range(16 * rounds)]

    few, many = (measure_ttft_s(run_users(build, list_requests(rounds), 16, warm_up=4)) for rounds in (4, 40))
    assert few == pytest.approx(many, rel=0.1)
    # The negative control: what a loop that begins at once shows depends on how long it is.
    few, many = (measure_ttft_s(build().run(list_requests(rounds), 16)) for rounds in (4, 40))
    assert few > 1.5 * many
