from __future__ import annotations

import pytest

from llm_serving.settings.errors import Unavailable
from llm_serving.validation.search import racing
from llm_serving.validation.search.knee import Point, Search
from llm_serving.validation.search.racing import Trial
from tests.validation.search.test_knee import build_point

SEARCH = Search(start=8, lowest=0.1, highest=1000, precision=0.1)


class Server:
    """Configurations with known capacities."""

    def __init__(self, *capacities: float) -> None:
        self.capacities = capacities
        self.sent: list[tuple[int, float]] = []

    def measure(self, trial: Trial, load: float, earlier: Point | None) -> Point:
        self.sent.append((trial.number, load))
        is_kept = load <= self.capacities[trial.number - 1]
        return build_point(load, "pass" if is_kept else "fail", longer=earlier is not None)


def _build_trials(*usd_h: float | None) -> list[Trial]:
    return [
        Trial(number=number, settings={"tuning.sequences": str(number)}, usd_h=usd)
        for number, usd in enumerate(usd_h, 1)
    ]


def test_the_best_is_found_and_a_loser_costs_one_load() -> None:
    server, trials = Server(20, 12, 47, 44, 3), _build_trials(*[None] * 5)
    best = racing.race(trials, server.measure, SEARCH)
    assert best and best.number == 3
    assert best.kept and best.kept.load == pytest.approx(47, rel=0.1)
    assert [trial.state for trial in trials] == ["kept", "dropped", "kept", "dropped", "dropped"]
    assert [len([load for number, load in server.sent if number == loser]) for loser in (2, 4, 5)] == [1, 1, 1]
    assert "is too much" in trials[1].why
    assert racing.find_best(trials, None) is best


def test_with_prices_the_best_is_the_one_that_carries_the_most_for_its_price() -> None:
    """The second carries half as much again, for twice the price."""
    trials = _build_trials(1.0, 2.0, 0.25)
    best = racing.race(trials, Server(20, 30, 6).measure, SEARCH)
    assert best and best.number == 3, "6/s for 0.25 USD/h are 24/s for each USD/h"
    assert trials[1].state == "dropped"
    # Negative control: without prices it is the second.
    unpriced = racing.race(_build_trials(None, None, None), Server(20, 30, 6).measure, SEARCH)
    assert unpriced and unpriced.number == 2


def test_a_configuration_that_fails_or_is_refused_does_not_end_the_race() -> None:
    server, trials = Server(20, 20, 30), _build_trials(None, None, None)
    trials[0].state = "refused"

    def measure(trial: Trial, load: float, earlier: Point | None) -> Point:
        if trial.number == 2:
            raise Unavailable("worker-0 ended at its start")
        return server.measure(trial, load, earlier)

    best = racing.race(trials, measure, SEARCH)
    assert best and best.number == 3
    assert [trial.state for trial in trials] == ["refused", "failed", "kept"]
    assert trials[1].why == "worker-0 ended at its start"
    assert [trial.number for trial in racing.order(trials)] == [1, 3, 2], "the next run tries it last"


@pytest.mark.parametrize(
    ("wanted", "best", "sent"),
    [
        (None, 1, [17.6, 35.2]),
        (20, 3, [17.6, 20]),  # the first carries too little, the third enough
        (6, 1, [17.6, 35.2]),  # the first carries enough, and the most for its price
        (100, 1, [17.6, 35.2]),  # none carries enough
    ],
)
def test_what_carries_the_load_of_the_blueprint_is_better_than_what_carries_more_for_its_price(
    wanted: float | None, best: int, sent: list[float]
) -> None:
    """One, two and four replicas."""
    server, trials = Server(8, 15, 30), _build_trials(10.0, 20.0, 40.0)
    found = racing.race(trials, server.measure, SEARCH._replace(precision=0.1), wanted)
    assert found and found.number == best
    assert found is racing.find_best(trials, wanted)
    assert [next(load for number, load in server.sent if number == other) for other in (2, 3)] == sent


def test_a_load_that_shows_nothing_drops_nothing() -> None:
    trials = _build_trials(None, None)

    def measure(trial: Trial, load: float, _: Point | None) -> Point:
        verdict = "not shown" if trial.number == 2 else "pass" if load <= 20 else "fail"
        return build_point(load, verdict, longer=True)

    racing.race(trials, measure, SEARCH)
    assert [trial.state for trial in trials] == ["kept", "not shown"]
    assert trials[1].why.startswith("at 2")


def test_a_first_that_keeps_nothing_leaves_the_start_to_the_next() -> None:
    trials = _build_trials(None, None)
    server = Server(0.01, 20)
    best = racing.race(trials, server.measure, SEARCH)
    assert best and best.number == 2
    assert trials[0].state == "kept nothing"
    assert (2, 8) in server.sent


def test_the_most_promising_by_arithmetic_comes_first_and_the_rest_as_written() -> None:
    trials = _build_trials(2.0, 1.0, 1.0)
    for trial, expected in zip(trials, (30, 20, None), strict=True):
        trial.expected_per_s = expected
    assert [trial.number for trial in racing.order(trials)] == [2, 1, 3]
    assert [trial.number for trial in racing.order(_build_trials(None, None))] == [1, 2]
