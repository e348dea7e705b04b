"""Whose row is next, how many are in flight, and how rows are cut to the context."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from batch import long_inputs
from batch.concurrency import ConcurrencyLimit, Window
from batch.fair_share import Candidate, FairShare
from batch.metrics import EngineLoad, parse_load

from tests.images.batch_worker.conftest import read_settings

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
    candidates = [Candidate(index, team, 1, 0.0) for index, team in enumerate(WEIGHTS)]
    assert run_rows(FairShare(WEIGHTS), candidates, 1000) == {"a": 500, "b": 300, "c": 200}


def test_a_row_of_higher_priority_is_next_whatever_the_weights() -> None:
    share = FairShare(WEIGHTS)
    normal = Candidate(0, "a", 1, 0.0)
    share.charge("c", 1e9)
    assert share.choose([normal, Candidate(1, "c", 0, 0.0)]) == Candidate(1, "c", 0, 0.0)
    assert share.choose([normal, Candidate(1, "c", 2, 0.0)]) == normal


def test_the_earlier_deadline_is_next_within_a_team() -> None:
    late, early = Candidate(0, "a", 1, 9.0), Candidate(1, "a", 1, 3.0)
    assert FairShare(WEIGHTS).choose([late, early]) == early


def test_a_team_that_comes_back_gets_its_share_and_no_arrears() -> None:
    share = FairShare(WEIGHTS)
    alone = [Candidate(0, "a", 1, 0.0)]
    run_rows(share, alone, 10_000)
    both = [*alone, Candidate(1, "c", 1, 0.0)]
    chosen = run_rows(share, both, 700)
    assert chosen["a"] == pytest.approx(500, abs=2)


def test_there_is_nobody_next_without_rows() -> None:
    assert FairShare(WEIGHTS).choose([]) is None


class Engine:
    """A simulated engine, second by second: so many requests run at once, the rest wait in line."""

    def __init__(self, slots: int, answer_s: int = 1) -> None:
        self.slots, self.answer_s = slots, answer_s
        self.second, self.waiting = 0, 0
        self.ends: list[int] = []

    def run(self, limit: ConcurrencyLimit, seconds: int, *, metrics: bool) -> list[int]:
        """Let a worker keep as many in flight as it may; returns the numbers over time."""
        values = []
        for _ in range(seconds):
            self.waiting += max(0, limit.value - len(self.ends) - self.waiting)
            started = max(0, min(self.waiting, self.slots - len(self.ends)))
            self.waiting -= started
            self.ends += [self.second + self.answer_s] * started
            load = EngineLoad(len(self.ends), self.waiting, 0.5, 0.0) if metrics else None
            self.second += 1
            answers = sum(end <= self.second for end in self.ends)
            self.ends = [end for end in self.ends if end > self.second]
            limit.observe(Window(seconds=1, answers=answers, tokens=8.0 * answers, is_full=True, refusals=0, load=load))
            values.append(limit.value)
        return values


@pytest.mark.parametrize(
    ("metrics", "answer_s", "rise_s", "fall_s"),
    [(True, 1, 8, 6), (False, 1, 16, 16), (True, 20, 8, 30), (False, 20, 400, 400)],
)
def test_the_number_in_flight_finds_what_the_engine_can_use_and_follows_it(
    metrics: bool, answer_s: int, rise_s: int, fall_s: int
) -> None:
    limit, engine = ConcurrencyLimit(2, 500), Engine(16, answer_s)
    engine.run(limit, 600, metrics=metrics)
    engine.slots = 96
    rise = engine.run(limit, 1200, metrics=metrics)
    engine.slots = 24
    fall = engine.run(limit, 1200, metrics=metrics)
    assert min(index for index, value in enumerate(rise) if value >= 86) < rise_s
    assert min(index for index, value in enumerate(fall) if value <= 48) < fall_s
    assert 92 <= sum(rise[600:]) / 600 <= 190
    assert 23 <= sum(fall[600:]) / 600 <= 60


def build_window(load: EngineLoad | None = None, **changes: Any) -> Window:
    return Window(
        **{"seconds": 1.0, "answers": 0, "tokens": 0.0, "is_full": True, "refusals": 0, "load": load, **changes}
    )


def test_refusals_and_preemptions_lower_it_to_the_least() -> None:
    limit = ConcurrencyLimit(4, 100)
    load = EngineLoad(10, 0, 0.5, 0)
    for _ in range(20):
        limit.observe(build_window(load))
    assert limit.value == 100
    limit.observe(build_window(load, preemptions=2))
    assert limit.value == 90
    for _ in range(20):
        limit.observe(build_window(load, refusals=3))
    assert limit.value == 4


def test_embeddings_count_by_the_tokens_of_their_prompts_and_rows_without_counts_by_themselves() -> None:
    for tokens in (100.0, 0.0):
        limit = ConcurrencyLimit(4, 64)
        for _ in range(40):
            limit.observe(build_window(answers=4 * limit.value, tokens=tokens * limit.value))
        assert limit.value == 64


def test_it_does_not_grow_while_rows_are_the_limit() -> None:
    limit = ConcurrencyLimit(4, 100)
    for _ in range(20):
        limit.observe(build_window(EngineLoad(1, 0, 0.1, 0), is_full=False))
    assert limit.value == 4


def test_rows_leave_no_queue_at_engines_that_answer_people_too() -> None:
    def run(*, is_shared: bool) -> list[int]:
        """In flight over time, at an engine that runs 32 at a time, of which people take 20 from the 30th step on."""
        limit, values = ConcurrencyLimit(4, 256, is_shared=is_shared), []
        for step in range(60):
            people = 20 if step >= 30 else 0
            waiting = max(0, limit.value + people - 32)
            load = EngineLoad(running=min(32, limit.value + people), waiting=waiting, kv_usage=0.5, preemptions=0.0)
            limit.observe(build_window(load))
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
    names = read_settings().metrics
    assert parse_load([page], names) == EngineLoad(running=7.0, waiting=2.0, kv_usage=0.25, preemptions=1.0)
    assert parse_load([page, page], names) == EngineLoad(running=14.0, waiting=4.0, kv_usage=0.25, preemptions=2.0)


def test_rows_follow_the_queue_of_llama_cpp_too() -> None:
    """Its page has neither the KV cache's use nor preemptions."""
    names = read_settings().metrics

    def show(limit: ConcurrencyLimit, slots: int) -> EngineLoad | None:
        running = min(slots, limit.value)
        return parse_load(
            [f"llamacpp:requests_processing {running}\nllamacpp:requests_deferred {limit.value - running}\n"], names
        )

    limit = ConcurrencyLimit(4, 256)
    in_flight = []
    for step in range(60):
        load = show(limit, slots=48 if step < 30 else 12)
        assert load is not None
        limit.observe(build_window(load))
        in_flight.append(limit.value)
    assert all(48 <= value <= 100 for value in in_flight[10:30])
    assert all(12 <= value <= 30 for value in in_flight[45:])


TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 100 tokens. However, you requested 208 tokens "
        "(200 in the messages, 8 in the completion). Please reduce the length of the messages or completion.",
        "code": 400,
    }
}


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ("truncate-head", lambda text: text.endswith("z")),
        ("truncate-tail", lambda text: text.startswith("a")),
        ("truncate-middle", lambda text: text.startswith("a") and text.endswith("z")),
    ],
)
def test_a_row_is_cut_where_the_rule_says(rule: str, matches: object) -> None:
    text = "a" + "m" * 998 + "z"
    body = {"messages": [{"role": "system", "content": "short"}, {"role": "user", "content": text}], "max_tokens": 8}
    assert long_inputs.is_too_long(400, TOO_LONG)
    result = long_inputs.cut(body, TOO_LONG, rule)
    assert result is not None
    shortened, left_out = result
    content = shortened["messages"][1]["content"]
    assert callable(matches)
    assert matches(content)
    assert len(content) + left_out == 1000
    assert 350 < len(content) < 460  # 92 of 208 tokens, and a little less
    assert shortened["messages"][0]["content"] == "short"
    assert body["messages"][1]["content"] == text


# llama.cpp, server-context.cpp; SGLang, managers/tokenizer_manager.py; TensorRT-LLM, executor/base_worker.py and, without
# chunked prefill, llmapi/llm.py; all main, 2026-11.
@pytest.mark.parametrize(
    "message",
    [
        "request (1000 tokens) exceeds the available context size (400 tokens), try increasing it",
        "The input (1000 tokens) is longer than the model's context length (400 tokens).",
        "Requested token count exceeds the model's maximum context length of 400 tokens. You requested a total of 1000 "
        "tokens: 990 tokens from the input messages and 10 tokens for the completion.",
        "`default_max_tokens` (-600) must be greater than 0, `default_max_tokens` (-600) = max_seq_len (400) - "
        "`splited_prompt_len` (1000)",
        "The sum of prompt length (1000.0), query length (0) should not exceed max_num_tokens (400)",
    ],
    ids=["llama.cpp", "SGLang", "SGLang with max_tokens", "TensorRT-LLM", "TensorRT-LLM without chunked prefill"],
)
def test_one_cut_is_enough_where_the_engine_names_both_lengths(message: str) -> None:
    refusal = {"error": {"message": message, "code": 400}}
    assert long_inputs.is_too_long(400, refusal)
    result = long_inputs.cut({"prompt": "x" * 1000, "max_tokens": 10}, refusal, "truncate-tail")
    assert result is not None
    assert 370 < len(result[0]["prompt"]) <= 390


def test_another_refusal_is_not_about_length() -> None:
    assert not long_inputs.is_too_long(400, {"error": {"message": "max_tokens must be at least 1"}})
    assert not long_inputs.is_too_long(500, TOO_LONG)
    assert long_inputs.cut({"input": [1, 2]}, TOO_LONG, "truncate-head") is None
