"""Whose row is next, how many are in flight, and how rows are cut to the context."""

from __future__ import annotations

from collections import Counter

import pytest
from batch import long_inputs
from batch.concurrency import ConcurrencyLimit, EngineLoad, Window
from batch.dispatch import Candidate, FairShare
from batch.endpoint import parse_load

WEIGHTS = {"a": 50, "b": 30, "c": 20}


def run_rows(share: FairShare, candidates: list[Candidate], count: int, tokens: float = 10.0) -> Counter[str]:
    chosen: Counter[str] = Counter()
    for _ in range(count):
        candidate = share.choose(candidates)
        assert candidate is not None
        chosen[candidate.team] += 1
        share.charge(candidate.team, tokens)
    return chosen


def test_teams_get_tokens_by_their_weights() -> None:
    candidates = [Candidate(index, team, "normal", 0.0) for index, team in enumerate(WEIGHTS)]
    assert run_rows(FairShare(WEIGHTS), candidates, 1000) == {"a": 500, "b": 300, "c": 200}


def test_a_row_of_higher_priority_is_next_whatever_the_weights() -> None:
    share = FairShare(WEIGHTS)
    normal = Candidate(0, "a", "normal", 0.0)
    share.charge("c", 1e9)
    assert share.choose([normal, Candidate(1, "c", "high", 0.0)]) == Candidate(1, "c", "high", 0.0)
    assert share.choose([normal, Candidate(1, "c", "low", 0.0)]) == normal


def test_the_earlier_deadline_is_next_within_a_team() -> None:
    late, early = Candidate(0, "a", "normal", 9.0), Candidate(1, "a", "normal", 3.0)
    assert FairShare(WEIGHTS).choose([late, early]) == early


def test_a_team_that_comes_back_gets_its_share_and_no_arrears() -> None:
    share = FairShare(WEIGHTS)
    alone = [Candidate(0, "a", "normal", 0.0)]
    run_rows(share, alone, 10_000)
    both = [*alone, Candidate(1, "c", "normal", 0.0)]
    chosen = run_rows(share, both, 700)
    assert chosen["a"] == pytest.approx(500, abs=2)


def test_there_is_nobody_next_without_rows() -> None:
    assert FairShare(WEIGHTS).choose([]) is None


class Engine:
    """A simulated engine: so many requests run at once, the rest wait."""

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def observe(self, limit: ConcurrencyLimit, *, metrics: bool) -> None:
        running = min(limit.value, self.slots)
        load = EngineLoad(running, limit.value - running, 0.5, 0.0) if metrics else None
        limit.observe(Window(tokens_per_s=10.0 * running, is_full=True, refusals=0, load=load))


@pytest.mark.parametrize("metrics", [True, False])
def test_the_number_in_flight_finds_what_the_engine_can_use_and_follows_it(metrics: bool) -> None:
    limit, engine = ConcurrencyLimit(2, 500), Engine(slots=64)
    values = []
    for step in range(120):
        if step == 60:
            engine.slots = 20
        engine.observe(limit, metrics=metrics)
        values.append(limit.value)
    assert 58 <= sum(values[40:60]) / 20 <= 110
    assert 18 <= sum(values[100:]) / 20 <= 40


def test_refusals_and_preemptions_lower_it_to_the_least() -> None:
    limit = ConcurrencyLimit(4, 100)
    load = EngineLoad(10, 0, 0.5, 0)
    for _ in range(20):
        limit.observe(Window(0.0, is_full=True, refusals=0, load=load))
    assert limit.value == 100
    limit.observe(Window(0.0, is_full=True, refusals=0, load=load, preemptions=2))
    assert limit.value == 90
    for _ in range(20):
        limit.observe(Window(0.0, is_full=True, refusals=3, load=load))
    assert limit.value == 4


def test_it_does_not_grow_while_rows_are_the_limit() -> None:
    limit = ConcurrencyLimit(4, 100)
    for _ in range(20):
        limit.observe(Window(0.0, is_full=False, refusals=0, load=EngineLoad(1, 0, 0.1, 0)))
    assert limit.value == 4


def test_rows_leave_no_queue_at_engines_that_answer_people_too() -> None:
    def run(*, is_shared: bool) -> list[int]:
        """In flight over time, at an engine that runs 32 at a time, of which people take 20 from the 30th step on."""
        limit, values = ConcurrencyLimit(4, 256, is_shared=is_shared), []
        for step in range(60):
            people = 20 if step >= 30 else 0
            waiting = max(0, limit.value + people - 32)
            load = EngineLoad(running=min(32, limit.value + people), waiting=waiting, kv_usage=0.5, preemptions=0.0)
            limit.observe(Window(tokens_per_s=1.0, is_full=True, refusals=0, load=load))
            values.append(limit.value)
        return values

    shared, own = run(is_shared=True), run(is_shared=False)
    assert 16 <= sum(shared[15:30]) / 15 <= 40
    assert sum(value > 12 for value in shared[36:]) <= 12  # a step beyond what is left now and then, to look
    assert all(value > 12 for value in own[36:])  # the control: whose engines are its own keeps a queue


def test_the_load_of_an_engine_is_read_from_its_page() -> None:
    page = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{reason="x"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
"""
    assert parse_load(page) == EngineLoad(running=7.0, waiting=2.0, kv_usage=0.25, preemptions=1.0)


TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 100 tokens. However, you requested 208 tokens "
        "(200 in the messages, 8 in the completion). Please reduce the length of the messages or completion.",
        "code": 400,
    }
}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("truncate-head", lambda text: text.endswith("z")),
        ("truncate-tail", lambda text: text.startswith("a")),
        ("truncate-middle", lambda text: text.startswith("a") and text.endswith("z")),
    ],
)
def test_a_row_is_cut_where_the_rule_says(rule: str, kept: object) -> None:
    text = "a" + "m" * 998 + "z"
    body = {"messages": [{"role": "system", "content": "short"}, {"role": "user", "content": text}], "max_tokens": 8}
    assert long_inputs.is_too_long(400, TOO_LONG)
    result = long_inputs.cut(body, TOO_LONG, rule)
    assert result is not None
    shortened, left_out = result
    content = shortened["messages"][1]["content"]
    assert callable(kept)
    assert kept(content)
    assert len(content) + left_out == 1000
    assert 350 < len(content) < 460  # 92 of 208 tokens, and a little less
    assert shortened["messages"][0]["content"] == "short"
    assert body["messages"][1]["content"] == text


def test_another_refusal_is_not_about_length() -> None:
    assert not long_inputs.is_too_long(400, {"error": {"message": "max_tokens must be at least 1"}})
    assert not long_inputs.is_too_long(500, TOO_LONG)
    assert long_inputs.cut({"input": [1, 2]}, TOO_LONG, "truncate-head") is None
