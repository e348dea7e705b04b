"""What became of the events of a validation, from the files of images/stream-job's Driver. No output."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.kinds.streaming.validation.report import EventCounts

ANSWER = "answer"

OVERTAKEN = "overtaken"
"""Dead letter of a valid event that needs no answer: the same shopper has a newer one."""

FILES = ("sent.jsonl", "outcomes.jsonl")
"""What the driver leaves: what it sent, and what became of it."""


class Outcomes(NamedTuple):
    """Events and outcomes, in the order of sending and of arrival."""

    sent: Sequence[Mapping[str, Any]]
    """`id`, `bad` and `due_at` of each event."""

    arrived: Sequence[Mapping[str, Any]]
    """`id`, `kind` (answer, or the reason of a dead letter) and times of each outcome."""


def read(folder: Path) -> Outcomes:
    return Outcomes(*(_read_lines(folder / name) for name in FILES))


def _read_lines(file: Path) -> list[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def count(outcomes: Outcomes) -> EventCounts:
    valid = {event["id"] for event in outcomes.sent if not event["bad"]} - _list_overtaken(outcomes)
    arrivals = Counter(outcome["id"] for outcome in outcomes.arrived)
    answered = {outcome["id"] for outcome in outcomes.arrived if outcome["kind"] == ANSWER}
    dead = {outcome["id"] for outcome in outcomes.arrived if outcome["kind"] != ANSWER}
    return EventCounts(
        sent=len(outcomes.sent),
        answered=len(answered),
        lost=sum(event["id"] not in arrivals for event in outcomes.sent),
        duplicated=sum(arrivals.values()) - len(arrivals),
        dead=len(dead),
        misjudged=len(dead & valid) + len(answered - valid),
    )


def _list_overtaken(outcomes: Outcomes) -> set[str]:
    return {outcome["id"] for outcome in outcomes.arrived if outcome["kind"] == OVERTAKEN}


def count_reasons(outcomes: Outcomes) -> dict[str, int]:
    return dict(Counter(outcome["kind"] for outcome in outcomes.arrived if outcome["kind"] != ANSWER))


class Times(NamedTuple):
    """Milliseconds of each valid event that needs an answer; infinite without one, or without one in the cache."""

    answer: Sequence[float]
    endpoint: Sequence[float]
    pipeline: Sequence[float]
    committed: Sequence[float]


def measure_times(outcomes: Outcomes) -> Times:
    """Measure what each valid event took, to its first answer."""
    first = {outcome["id"]: outcome for outcome in reversed(outcomes.arrived) if outcome["kind"] == ANSWER}
    skipped = _list_overtaken(outcomes)
    times = [
        _measure(1000 * event["due_at"], first.get(event["id"]))
        for event in outcomes.sent
        if not event["bad"] and event["id"] not in skipped
    ]
    return Times(*zip(*times, strict=True))


def _measure(due_ms: float, answer: Mapping[str, Any] | None) -> tuple[float, float, float, float]:
    if answer is None:
        return math.inf, math.inf, math.inf, math.inf
    committed = answer["committed_at"] - due_ms
    endpoint = answer["answered_at"] - answer["asked_at"]
    if answer["cached_at"] is None:
        return math.inf, endpoint, math.inf, committed
    total = answer["cached_at"] - due_ms
    return total, endpoint, total - endpoint, committed
