"""Prefill and decode replicas: what one of each is simulated to do, against all of them."""

from __future__ import annotations

import random

import pytest

from llm_serving.catalog import instances, models
from llm_serving.engines.memory import Split
from llm_serving.prediction import disaggregation
from llm_serving.prediction.simulation import Limits, Request, Simulation, compute_percentile
from llm_serving.prediction.workload import Length, Workload
from tests.prediction.loads import TIMES_US, LinearStep

LIMITS = Limits(sequences=256, batch_tokens=2048, cache_tokens=100_000)
TOKEN_S = 1e-6


def play(requests: list[Request], step: LinearStep | None = None) -> Simulation:
    simulation = Simulation(step or LinearStep(TIMES_US), LIMITS)
    assert simulation.run(requests).is_complete
    return simulation


def only_read(requests: list[Request]) -> list[Request]:
    return [request._replace(output_tokens=1) for request in requests]


def test_a_first_token_waits_for_the_prompt_its_transfer_and_one_step_of_decode() -> None:
    millisecond, requests = LinearStep((1000.0, 0.0, 0.0, 0.0)), [Request(3.0, 100, 5)]
    read = play(only_read(requests), millisecond)
    decode = play(list(disaggregation.hand_over(requests, read.ttft_s, TOKEN_S)), millisecond)
    assert decode.ttft_s == pytest.approx([0.001 + 100 * TOKEN_S + 0.001])
    assert decode.e2e_s == pytest.approx([0.001 + 100 * TOKEN_S + 5 * 0.001])


def test_transfers_to_a_replica_follow_each_other() -> None:
    requests = [Request(0.0, 100, 5), Request(0.0, 300, 5)]
    ready = [request.at_s for request in disaggregation.hand_over(requests, [0.01], TOKEN_S)]
    assert ready == pytest.approx([0.01 + 1e-4, 0.01 + 4e-4])


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 3), (3, 1)])
def test_one_replica_of_each_role_does_what_all_of_them_do(prefill: int, decode: int) -> None:
    drawing, count = random.Random(1), 1200
    lengths = [Length(drawing.randint(500, 2500), drawing.randint(50, 150)) for _ in range(500)]
    workload = Workload(8.0 * prefill, lengths)
    read = play(only_read(workload.draw(count, prefill, 0)))
    one = play(list(disaggregation.hand_over(workload.draw(count, decode, 0), read.ttft_s, TOKEN_S)))

    requests = workload.draw(count * decode, 1, 0)
    seconds = [0.0] * len(requests)
    for replica in range(prefill):
        seconds[replica::prefill] = play(only_read(requests[replica::prefill])).ttft_s
    ordered = sorted(zip(requests, seconds, strict=True), key=lambda row: row[0].at_s + row[1])
    everyone = []
    for replica in range(decode):
        mine = ordered[replica::decode]
        everyone.append(
            play(list(disaggregation.hand_over([row[0] for row in mine], [row[1] for row in mine], TOKEN_S)))
        )

    for metric, tolerance in (("ttft_s", 0.15), ("e2e_s", 0.05)):
        values = [value for simulation in everyone for value in getattr(simulation, metric)]
        assert compute_percentile(getattr(one, metric), 95) == pytest.approx(compute_percentile(values, 95), tolerance)


def test_a_cache_is_fetched_over_the_share_of_the_network_that_a_replica_has() -> None:
    model, instance = models.find("Qwen/Qwen3-8B"), instances.find("p5.48xlarge")
    one, two = (disaggregation.compute_transfer_s(model, instance, Split(tensor), "auto") for tensor in (1, 2))
    token_bytes = 2 * model.layers * model.kv_heads * model.head_dim * 2
    assert one > token_bytes / (3200e9 / 8 / 8)
    assert two == pytest.approx(one / 2)


@pytest.mark.parametrize(
    ("type_", "tensor", "can"),
    [("g6e.xlarge", 1, False), ("p5.4xlarge", 1, False), ("p4d.24xlarge", 1, False), ("p4d.24xlarge", 2, True),
     ("p5.48xlarge", 1, True)],
)  # fmt: skip
def test_a_replica_needs_an_interface_that_reads_the_accelerators_memory(type_: str, tensor: int, can: bool) -> None:
    assert disaggregation.can_transfer(instances.find(type_), Split(tensor)) == can
