"""What a validation counts and measures, and when it misses its SLO."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from llm_serving.kinds.streaming.blueprint import StreamSlo
from llm_serving.kinds.streaming.validation import outcomes, validate
from llm_serving.kinds.streaming.validation.outcomes import Outcomes
from llm_serving.kinds.streaming.validation.report import EventCounts, StreamMetrics, StreamReport
from llm_serving.validation.statistics import gate
from llm_serving.validation.statistics.gate import Judgement
from llm_serving.validation.statistics.sample_statistics import Latency

SLO = StreamSlo.model_validate({"answer_p99": "1s", "pipeline_p99": "0.1s"})


def send(name: str, *, bad: bool = False) -> dict[str, Any]:
    return {"id": name, "bad": bad, "due_at": 10.0}


def answer(name: str, *, cached_ms: int | None = 300) -> dict[str, Any]:
    cached_at = None if cached_ms is None else 10_000 + cached_ms
    return {"id": name, "kind": "answer", "asked_at": 10_010, "answered_at": 10_290, "cached_at": cached_at,
            "committed_at": 10_900}  # fmt: skip


def bury(name: str, reason: str) -> dict[str, Any]:
    return {"id": name, "kind": reason}


def judge(measured: Outcomes) -> Judgement:
    return gate.sort_findings(
        validate._judge(SLO, measured, outcomes.count(measured), outcomes.measure_times(measured))
    )


def list_missed(measured: Outcomes) -> list[str]:
    return [objective.metric for objective in judge(measured).missed]


def test_events_that_are_answered_and_buried_as_they_should_meet_the_slo() -> None:
    measured = Outcomes([send("a"), send("b", bad=True)], [answer("a"), bury("b", "schema")])
    counts = outcomes.count(measured)
    assert counts.model_dump() == {
        "sent": 2, "answered": 1, "lost": 0, "duplicated": 0, "dead": 1, "misjudged": 0,
    }  # fmt: skip
    assert outcomes.count_reasons(measured) == {"schema": 1}
    assert outcomes.measure_times(measured)._asdict() == {
        "answer": (300.0,), "endpoint": (280,), "pipeline": (20.0,), "committed": (900.0,),
    }  # fmt: skip
    assert list_missed(measured) == []


def test_a_lost_event_and_one_that_comes_twice_miss_the_slo() -> None:
    measured = Outcomes([send("a"), send("b")], [answer("a"), answer("a")])
    assert list_missed(measured) == ["events.lost", "events.duplicated", "answer_p99", "pipeline_p99"]
    assert outcomes.measure_times(measured).answer == (300.0, math.inf)


def test_an_event_with_an_answer_and_a_dead_letter_is_duplicated() -> None:
    measured = Outcomes([send("a")], [answer("a"), bury("a", "deadline")])
    assert outcomes.count(measured).duplicated == 1


def test_a_valid_event_that_is_buried_and_another_that_is_answered_miss_the_slo() -> None:
    valid = Outcomes([send("a"), send("b")], [answer("a"), bury("b", "endpoint")])
    assert list_missed(valid) == ["dead_events", "answer_p99", "pipeline_p99"]
    other = Outcomes([send("a"), send("b", bad=True)], [answer("a"), answer("b")])
    assert list_missed(other) == ["dead_events"]


def test_an_event_that_is_overtaken_needs_no_answer_and_one_that_is_shed_does() -> None:
    overtaken = Outcomes([send("a"), send("b")], [answer("a"), bury("b", "overtaken")])
    assert list_missed(overtaken) == []
    assert outcomes.measure_times(overtaken).answer == (300.0,)
    shed = Outcomes([send("a"), send("b")], [answer("a"), bury("b", "shed")])
    assert list_missed(shed) == ["dead_events", "answer_p99", "pipeline_p99"]


def test_an_answer_that_did_not_reach_the_cache_counts_as_never() -> None:
    measured = Outcomes([send("a")], [answer("a", cached_ms=None)])
    assert list_missed(measured) == ["answer_p99", "pipeline_p99"]


def test_few_events_do_not_show_a_percentile_though_all_are_fast() -> None:
    def play(count: int) -> Outcomes:
        names = [str(number) for number in range(count)]
        return Outcomes([send(name) for name in names], [answer(name) for name in names])

    assert judge(play(200)) == (
        [],
        [
            "answer_p99 within 1 s: 200 events do not bound it; needs 300 events",
            "pipeline_p99 within 0.1 s: 200 events do not bound it; needs 300 events",
        ],
    )
    assert judge(play(299)) == ([], [])


def test_late_answers_miss_the_slo_with_value_and_limit() -> None:
    measured = Outcomes([send("a")], [answer("a", cached_ms=2500)])
    first, *_ = judge(measured).missed
    assert (first.metric, first.value, first.limit) == ("answer_p99", 2.5, 1.0)
    assert first.why == "2.500 s; the limit is 1 s"


def test_the_summary_says_why_events_have_no_answer() -> None:
    none = Latency(count=0)
    report = StreamReport.model_construct(
        name="shop", verdict="fail", missed=[], not_shown=[], emulated=(),
        events=EventCounts(sent=610, answered=0, lost=0, duplicated=0, dead=610, misjudged=600),
        metrics=StreamMetrics(answer_ms=none, endpoint_ms=none, pipeline_ms=none, committed_ms=none),
        dead_reasons={"schema": 10, "endpoint": 600},
    )  # fmt: skip
    console = Console(record=True, file=io.StringIO())
    console.print(validate.render(report, Path("runs/shop/1")))
    assert "\ndead letters: 600 endpoint, 10 schema\n" in console.export_text()
