from __future__ import annotations

from typing import Any

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


def _find(capacity: float, search: Search, shortly: float = 1.0) -> tuple[Knee, list[float]]:
    """Search where loads up to a capacity are kept, and up to `shortly` times as much while they are short.

    Returns the loads as they were sent too.
    """
    sent: list[float] = []

    def measure(load: float, earlier: Point | None) -> Point:
        sent.append(load)
        most = capacity * (1 if earlier else shortly)
        return build_point(load, "pass" if load <= most else "fail", longer=earlier is not None)

    return knee.find_knee(measure, search)[0], sent


@pytest.mark.parametrize("capacity", [0.7, 3.3, 20.0, 47.0, 380.0])
@pytest.mark.parametrize("start", [1.0, 20.0, 300.0])
@pytest.mark.parametrize(("shortly", "most"), [(1.0, 15), (1.3, 21)])
def test_the_knee_is_found_within_the_precision_from_wherever_the_search_starts(
    capacity: float, start: float, shortly: float, most: int
) -> None:
    """Also where a load has to be long to show that it is too much."""
    bracket, loads = _find(capacity, Search(start, 0.1, 1000, 0.1), shortly)
    assert bracket.kept and bracket.missed and bracket.kept.longer
    assert bracket.kept.load <= capacity < bracket.missed.load
    assert bracket.missed.load <= bracket.kept.load * 1.11, "the precision, and the rounding to three figures"
    assert len(loads) <= most, "a grid of that precision from 0.1 to 1,000 has 97 loads"
    if shortly == 1:
        assert loads[-1] in loads[:-1] and len(set(loads)) == len(loads) - 1, "the highest alone is sent twice"


def test_users_are_whole_numbers() -> None:
    bracket, loads = _find(5, Search(4, 1, 100, 0.01, whole=True))
    assert bracket.kept and bracket.missed
    assert (bracket.kept.load, bracket.missed.load) == (5, 6)
    assert all(load == int(load) for load in loads)


def test_a_lowest_load_that_fails_ends_the_search_without_a_knee() -> None:
    bracket, loads = _find(0.5, Search(8, 1, 100, 0.1))
    assert bracket.kept is None
    assert bracket.missed and bracket.missed.load == loads[-1] == 1


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"e2e_p50_ms": 500}, [1, 0.5, 0.25]),
        ({"e2e_p50_ms": 60_000, "shown_by_no_load": True}, [1]),
        ({"e2e_p50_ms": 60_000}, [1, 0.5, 0.25, 0.125, 0.0625, 0.0312, 0.0156, 0.01]),
    ],
    ids=["alone", "shown by no load", "neither"],
)
def test_what_no_lower_load_would_change_ends_the_search_downwards(fields: dict[str, Any], sent: list[float]) -> None:
    """Answers of 500 ms: at 0.25/s seven of eight requests meet no other, and a lower load takes hours."""
    bracket, points = knee.find_knee(lambda load, _: build_point(load, "fail", **fields), Search(1, 0.01, 100, 0.1))
    assert bracket.kept is None and bracket.missed
    assert [point.load for point in points] == sent


def test_a_highest_load_that_is_kept_ends_the_search_there() -> None:
    bracket, loads = _find(1000, Search(8, 1, 20, 0.1))
    assert bracket.kept and bracket.kept.load == loads[-1] == 20
    assert bracket.missed is None


def test_a_load_that_shows_nothing_does_not_keep_the_slo() -> None:
    bracket, _ = knee.find_knee(
        lambda load, _: build_point(load, "pass" if load < 10 else "not shown", longer=True), Search(8, 1, 100, 0.5)
    )
    assert bracket.kept and bracket.kept.load < 10


@pytest.mark.parametrize(("loads", "highest", "missed"), [(1, 4, None), (3, 8, 16), (4, 11.3, 16)])
def test_a_search_that_is_over_ends_with_what_is_known(loads: int, highest: float, missed: float | None) -> None:
    sent: list[float] = []

    def measure(load: float, _: Point | None) -> Point:
        sent.append(load)
        return build_point(load, "pass" if load <= 13 else "fail")

    bracket, points = knee.find_knee(measure, Search(4, 1, 64, 0.1), lambda: len(sent) >= loads)
    assert len(points) == loads
    assert bracket.kept and (bracket.kept.load, bracket.missed and bracket.missed.load) == (highest, missed)
