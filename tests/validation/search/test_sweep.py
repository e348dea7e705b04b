from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.settings.units import Bounds
from llm_serving.validation import run
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.load.answer import Gap, Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.pages import charts, sweep_page
from llm_serving.validation.reports import report_builder
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.reports.report import Report, Steady
from llm_serving.validation.search import sweep
from llm_serving.validation.search.knee import Knee, Point, Sweep
from llm_serving.validation.search.sweep import Loader, Options
from llm_serving.validation.statistics import sample_statistics, soundness
from tests.validation.conftest import TargetFactory, build_options
from tests.validation.search.test_knee import build_point

URL = "http://127.0.0.1:1"
SLO = {"ttft_ms": {"p95": 800, "p50": 400}, "itl_ms": {"p95": 40}}


@pytest.fixture
def target(make_target: TargetFactory) -> LoadTarget:
    return make_target(URL, {"arrivals": 20, "requests": 300}, SLO)


def build_sweep(knee: Knee, *points: float) -> Sweep:
    """A sweep of these loads, with what the page shows."""
    slo = {"ttft_ms": {"p95": 150, "p50": 100}, "itl_ms": {"p95": 20}}
    settings = {"slo": slo, "served_model": "tiny", "replicas": 2, "engine": "vllm"}
    shown = [build_point(load, "pass" if knee.kept and load <= knee.kept.load else "fail") for load in points]
    return Sweep(
        name="mine",
        target="local",
        axis="rate",
        precision=0.1,
        started_at="2026-11-23T06:00:00+00:00",
        seconds=90,
        kept=knee.kept,
        missed=knee.missed,
        capacity=None,
        per_replica={"worker": 6.0} if knee.kept else {},
        points=shown,
        settings=settings,
        notes=[],
    )


def test_a_rate_is_sent_for_the_least_time_with_the_requests_that_bounds_need(target: LoadTarget) -> None:
    slow, fast = (sweep.build_traffic(target, "rate", load, 30, 0.0, 1) for load in (0.5, 40))
    assert (slow.arrivals, slow.requests) == (0.5, 59), "95% of fewer than 59 requests have no upper bound"
    assert (fast.arrivals, fast.requests) == (40, 1200)
    assert slow.time_limit > 59 / 0.5
    longer = sweep.build_traffic(target, "rate", 40, 30, 0.0, 3)
    assert longer.requests == 3 * fast.requests


@pytest.mark.parametrize(
    ("traffic", "think_time"),
    [({"arrivals": 20, "turns": 4, "think_time": "9s"}, 9), ({"users": 2, "think_time": "9s"}, None)],
    ids=["of sessions", "of users"],
)
def test_a_rate_keeps_the_pauses_of_sessions_and_not_of_users(
    make_target: TargetFactory, traffic: dict[str, Any], think_time: float | None
) -> None:
    target = make_target(URL, traffic, SLO)
    assert sweep.build_traffic(target, "rate", 5, 30, 0.0, 1).think_time == think_time


def test_users_send_several_requests_each_and_for_the_least_time_once_the_rate_is_known(
    target: LoadTarget,
) -> None:
    first = sweep.build_traffic(target, "users", 32, 30, 0.0, 1)
    assert (first.users, first.arrivals, first.requests) == (32, None, 32 * sweep.TURNS)
    assert sweep.build_traffic(target, "users", 32, 30, 2.5, 1).requests == math.ceil(2.5 * 32 * 30)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Traffic, int]]:
    """Loads whose answers take 50 s, each with its first prompt; nothing is sent."""
    loads: list[tuple[Traffic, int]] = []

    def validate(target: LoadTarget, options: ValidationOptions) -> tuple[Report, Path]:
        traffic = target.traffic
        assert traffic.arrivals
        loads.append((traffic, options.first_prompt))
        samples = [
            Sample(number, number / traffic.arrivals, ttft_ms=50.0, e2e_ms=50_000.0, gaps=[Gap(10.0, 1)] * 3)
            for number in range(traffic.requests)
        ]
        result = DriverResult(duration_s=traffic.requests / traffic.arrivals + 50, planned=traffic.requests)
        folder = options.runs / "known" / "run"
        folder.mkdir(parents=True)
        return report_builder.build(Measured(target, result, samples)), folder

    monkeypatch.setattr(run, "validate", validate)
    return loads


def test_a_load_is_as_long_as_its_answers_need_and_goes_on_in_the_prompts(
    target: LoadTarget, sent: list[tuple[Traffic, int]], tmp_path: Path
) -> None:
    loader = Loader(target.model_copy(update={"price": (36.0, "")}), "rate", 20, build_options(tmp_path))
    points = [loader.measure(load) for load in (2.0, 4.0)]
    assert [point.verdict for point in points] == ["pass", "pass"]
    # Three times the first 29.5 s would be too short too, and the next load knows what it needs.
    assert [traffic.requests / (traffic.arrivals or 1) for traffic, _ in sent] == [29.5, 150, 150]
    assert [first for _, first in sent] == [0, 59 + 10, 59 + 10 + 300 + 10]
    # A cent a second for 2 requests in it, without the 50 s in which the last answers end.
    assert [point.usd_per_thousand_requests for point in points] == [5, 2.5]


def test_the_highest_load_is_sent_again_for_longer_in_place_of_the_first(
    target: LoadTarget, sent: list[tuple[Traffic, int]], tmp_path: Path
) -> None:
    """Answers of 50 s follow each other thirty times in it."""
    loader = Loader(target, "rate", 400, build_options(tmp_path))
    first = loader.measure(2.0)
    longer = loader.measure(2.0, first)
    assert [(point.longer, point.requests) for point in (first, longer)] == [(False, 800), (True, 3000)]
    assert [path.name for path in (tmp_path / "runs" / sweep.POINTS).iterdir()] == ["2"]


@pytest.mark.parametrize("needed", ["needs a longer load", "needs other prompts"])
def test_a_load_that_shows_nothing_whatever_its_length_is_sent_once(
    target: LoadTarget, sent: list[tuple[Traffic, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: str
) -> None:
    is_lasting = needed == "needs other prompts"
    name = "find_lasting_doubts" if is_lasting else "find_doubts"
    monkeypatch.setattr(soundness, name, lambda *_, **__: [needed])
    point = Loader(target, "rate", 400, build_options(tmp_path)).measure(2.0)
    assert (point.verdict, point.reasons, point.is_hopeless) == ("not shown", [needed], is_lasting)
    assert len(sent) == (1 if is_lasting else 2)


def test_an_slo_without_a_limit_on_a_latency_has_nothing_to_sweep_for() -> None:
    assert not Slo.model_validate({"errors": 0.01, "requests_per_s": 5}).limits_load
    assert Slo.model_validate({"stall": 2}).limits_load
    assert Slo.model_validate(SLO).limits_load


def test_the_search_starts_at_the_blueprints_own_load(target: LoadTarget) -> None:
    assert sweep.build_search(target.traffic, "rate", Options()).start == 20
    assert sweep.build_search(target.traffic, "users", Options()).start == sweep.START["users"]
    bounded = sweep.build_search(target.traffic, "rate", Options(lowest=2, highest=30))
    assert (bounded.lowest, bounded.highest) == (2, 30)
    whole = sweep.build_search(target.traffic, "users", Options(lowest=0.3, highest=4.5))
    assert (whole.lowest, whole.highest) == (1, 4), "a part of a user sends nothing more"


def test_replicas_that_come_and_go_have_no_capacity(target: LoadTarget) -> None:
    import datetime

    now, bracket = datetime.datetime.now(datetime.UTC), Knee(build_point(24, longer=True), build_point(26, "fail"))
    capacity = sweep._build_capacity(target, bracket, "rate", now)
    assert capacity and (capacity.requests_per_s, capacity.replicas) == (24, {"worker": 1})
    [engine] = target.roles
    scaled = target.model_copy(update={"roles": (engine.model_copy(update={"replicas": Bounds(1, 4)}),)})
    assert sweep._build_capacity(scaled, bracket, "rate", now) is None
    assert "come and go" in next(sweep._list_notes(scaled, bracket, "rate"))
    short = bracket._replace(kept=build_point(24))
    assert list(sweep._list_notes(target, bracket, "rate")) == []
    assert list(sweep._list_notes(target, short, "rate")) == [
        "The load of 24/s was not sent again for longer, in which a queue may grow."
    ]


@pytest.mark.parametrize(
    ("end", "note"),
    [
        (
            Unavailable("http://127.0.0.1:1 is unreachable. Fix: run blueprint status.\n  details"),
            "The load of 80/s could not be sent, and the search ended there: http://127.0.0.1:1 is unreachable. "
            "Fix: run blueprint status.",
        ),
        (KeyboardInterrupt(), "The load of 80/s was interrupted, and the search ended there."),
    ],
    ids=["broken", "interrupted"],
)
def test_a_load_that_fails_ends_the_sweep_with_what_is_known(
    target: LoadTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: BaseException, note: str
) -> None:
    """Minutes of loads are not lost because the engine restarts after the last one, or its user is in a hurry."""

    def measure(loader: Loader, load: float, _: Point | None) -> Point:
        loader.settings = {"slo": SLO, "served_model": "tiny", "replicas": 1, "engine": "vllm"}
        if load > fails_from:
            raise end
        return build_point(load)

    monkeypatch.setattr(Loader, "measure", measure)
    fails_from = 70.0
    result, folder = sweep.sweep(target, Options(), build_options(tmp_path))
    assert result.kept and result.kept.load == 40
    assert result.capacity and result.capacity.requests_per_s == 40
    assert (result.interrupted, result.notes[0]) == (isinstance(end, KeyboardInterrupt), note)
    assert Sweep.model_validate_json((folder / "sweep.json").read_text()) == result
    # Without any load there is nothing to save.
    fails_from = 10.0
    with pytest.raises(type(end)):
        sweep.sweep(target, Options(), build_options(tmp_path))
    assert list((tmp_path / "runs" / "known").iterdir()) == [folder]


@pytest.mark.parametrize(
    ("shown_by_no_load", "message"),
    [
        (
            False,
            "mine does not keep its SLO at the lowest load, 1/s:\n  ttft_ms.p95: 1 is too much\n"
            "Fix: lower --from, or set an SLO that it can keep without load.",
        ),
        (True, "no load shows whether mine keeps its SLO; that of 1/s:\n  ttft_ms.p95: 1 is too much"),
    ],
)
def test_a_sweep_without_a_kept_load_names_what_the_lowest_missed(shown_by_no_load: bool, message: str) -> None:
    result = build_sweep(Knee(None, build_point(1, "fail")), 1, 2)
    result.points[0] = build_point(1, "fail", shown_by_no_load=shown_by_no_load)
    with pytest.raises(CheckFailed) as error:
        sweep.require_kept(result)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("slo", "requests"),
    [({"ttft_ms": {"p95": 100}}, 59), ({"errors": "1%"}, 299), ({"goodput": "99%"}, 299), ({"errors": "0%"}, 1)],
)
def test_a_load_has_the_requests_that_each_bound_needs(slo: dict[str, Any], requests: int) -> None:
    assert sweep.count_least_requests(Slo.model_validate(slo)) == requests


def test_the_page_draws_each_quantity_over_the_load_with_its_limits() -> None:
    page = sweep_page.render(build_sweep(Knee(build_point(12), build_point(13, "fail")), 6, 12, 13, 24))
    assert page.count("<figure>") == 4
    assert page.count('<line class="limit"') == 2 + 1
    assert page.count('<line class="mark"') == 4, "the knee"
    assert "keeps its SLO up to 12 requests/s" in page
    assert "ttft_ms.p95: 13 is too much" in page
    assert "<script" not in page


@pytest.mark.parametrize(("answered", "overloaded"), [(19.5, False), (12.0, True)])
def test_a_load_that_is_clearly_too_much_is_not_sent_again(answered: float, overloaded: bool) -> None:
    steady = Steady(from_s=2, to_s=28, offered_per_s=20, requests_per_s=answered, output_tokens_per_s=100)
    assert sweep.is_overloaded(cast(Report, SimpleNamespace(steady=steady))) is overloaded
    assert not sweep.is_overloaded(cast(Report, SimpleNamespace(steady=None))), "too short to tell"


def test_the_name_of_the_highest_load_stays_within_the_picture() -> None:
    curve = {"p50": [(1.0, 5.0), (32.0, 9.0)]}
    anchors = [
        re.search(
            r'text-anchor="(\w+)" class="mark">kept', charts.render_curves("t", "x", "y", curve, {}, {"kept up to": at})
        )
        for at in (4.0, 32.0)
    ]
    assert [anchor and anchor[1] for anchor in anchors] == ["start", "end"]
    values = [200.0 + number for number in range(200)]
    histogram = charts.render_distribution("t", values, sample_statistics.summarize_latency(values), {"p95": 900.0})
    assert re.findall(r'text-anchor="(\w+)" class="(?:mark|limit)">(p\d+)', histogram) == [
        ("start", "p50"),
        ("end", "p95"),
        ("end", "p95"),
    ], "the limit lies beyond it"
