"""What the program that breaks a stream (tests/stream_faults.py) finds wrong."""

from __future__ import annotations

from typing import Any

from llm_serving.kinds.streaming.validation.outcomes import Outcomes
from tests.stream_faults import find_mistakes

SENT = [{"id": name, "bad": False, "due_at": 10.0} for name in ("a", "b")]
CACHED = {"mia": 12_000}


def answer(name: str, at: int) -> dict[str, Any]:
    return {"id": name, "kind": "answer", "shopper": "mia", "at": at}


ANSWERS = [answer("a", 10_000), answer("b", 12_000)]


def test_events_answered_once_whose_newest_is_in_the_cache_are_right() -> None:
    assert find_mistakes(Outcomes(SENT, ANSWERS), CACHED) == []


def test_a_lost_event_is_found() -> None:
    assert find_mistakes(Outcomes(SENT, ANSWERS[1:]), CACHED) == ["1 events are lost"]


def test_a_doubled_event_is_found() -> None:
    assert find_mistakes(Outcomes(SENT, [*ANSWERS, ANSWERS[0]]), CACHED) == ["1 events are doubled"]


def test_an_older_answer_and_none_in_the_cache_are_found() -> None:
    message = ["the cache has not the newest answer of 1 shoppers"]
    assert find_mistakes(Outcomes(SENT, ANSWERS), {"mia": 10_000}) == message
    assert find_mistakes(Outcomes(SENT, ANSWERS), {}) == message
    assert find_mistakes(Outcomes(SENT, ANSWERS), None) == [], "the cache itself was away"
