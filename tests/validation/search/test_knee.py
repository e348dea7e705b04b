from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_serving.validation.search import knee
from llm_serving.validation.search.knee import Knee, Point, Search


def build_point(load: float, verdict: str = "pass", **fields: object) -> Point:
    """A point with plausible numbers."""
    numbers = {"requests": 60, "failed": 0, "requests_per_s": load, "output_tokens_per_s": 10 * load, "seconds": 5.0}
    latencies = {"ttft_p50_ms": 50.0, "ttft_p95_ms": 90.0, "itl_p50_ms": 10.0, "itl_p95_ms": 12.0}
    cost = {"goodput_share": 1.0, "goodput_per_s": load, "usd_per_thousand_requests": None}
    reasons = [] if verdict == "pass" else [f"ttft_ms.p95: {load:g} is too much"]
    values = {**numbers, **latencies, **cost, "reasons": reasons, "run": f"points/{load:g}", **fields}
    return Point.model_validate({"load": load, "verdict": verdict, **values})


def _keep_up_to(capacity: float) -> Callable[[float], Point]:
    return lambda load: build_point(load, "pass" if load <= capacity else "fail")


def _find(capacity: float, search: Search) -> tuple[Knee, list[float]]:
    bracket, points = knee.find_knee(_keep_up_to(capacity), search)
    return bracket, [point.load for point in points]


@pytest.mark.parametrize("capacity", [0.7, 3.3, 20.0, 47.0, 380.0])
@pytest.mark.parametrize("start", [1.0, 20.0, 300.0])
def test_the_knee_is_found_within_the_precision_from_wherever_the_search_starts(capacity: float, start: float) -> None:
    bracket, loads = _find(capacity, Search(start, 0.1, 1000, 0.1))
    assert bracket.kept and bracket.missed
    assert bracket.kept.load <= capacity < bracket.missed.load
    assert bracket.missed.load <= bracket.kept.load * 1.11, "the precision, and the rounding to three figures"
    assert len(loads) == len(set(loads)), "no load is sent twice"
    assert len(loads) <= 14, "a grid of that precision from 0.1 to 1,000 has 97 loads"


def test_users_are_whole_numbers() -> None:
    bracket, loads = _find(5, Search(4, 1, 100, 0.01, whole=True))
    assert bracket.kept and bracket.missed
    assert (bracket.kept.load, bracket.missed.load) == (5, 6)
    assert all(load == int(load) for load in loads)


def test_a_lowest_load_that_fails_ends_the_search_without_a_knee() -> None:
    bracket, loads = _find(0.5, Search(8, 1, 100, 0.1))
    assert bracket.kept is None
    assert bracket.missed and bracket.missed.load == loads[-1] == 1


def test_a_load_of_requests_that_are_nearly_alone_ends_the_search_downwards() -> None:
    """Answers of 500 ms: at 0.25/s seven of eight requests meet no other, and a lower load takes hours."""

    def find(e2e_p50_ms: float) -> list[float]:
        measure = lambda load: build_point(load, "fail", e2e_p50_ms=e2e_p50_ms)  # noqa: E731
        bracket, points = knee.find_knee(measure, Search(1, 0.01, 100, 0.1))
        assert bracket.kept is None and bracket.missed
        return [point.load for point in points]

    assert find(500) == [1, 0.5, 0.25]
    # Negative control: answers of a minute are never alone.
    assert find(60_000)[-1] == 0.01


def test_a_highest_load_that_is_kept_ends_the_search_there() -> None:
    bracket, loads = _find(1000, Search(8, 1, 20, 0.1))
    assert bracket.kept and bracket.kept.load == loads[-1] == 20
    assert bracket.missed is None


def test_a_load_that_shows_nothing_does_not_keep_the_slo() -> None:
    bracket, _ = knee.find_knee(
        lambda load: build_point(load, "pass" if load < 10 else "not shown"), Search(8, 1, 100, 0.5)
    )
    assert bracket.kept and bracket.kept.load < 10


@pytest.mark.parametrize(("loads", "highest", "missed"), [(1, 4, None), (3, 8, 16), (4, 11.3, 16)])
def test_a_search_that_is_over_ends_with_what_is_known(loads: int, highest: float, missed: float | None) -> None:
    sent: list[float] = []

    def measure(load: float) -> Point:
        sent.append(load)
        return build_point(load, "pass" if load <= 13 else "fail")

    bracket, points = knee.find_knee(measure, Search(4, 1, 64, 0.1), lambda: len(sent) >= loads)
    assert len(points) == loads
    assert bracket.kept and (bracket.kept.load, bracket.missed and bracket.missed.load) == (highest, missed)
