from __future__ import annotations

import itertools
import statistics

import pytest

from llm_serving.services.traffic import Traffic
from llm_serving.validation.load import load_plan
from llm_serving.validation.load.load_plan import Shard
from llm_serving.validation.load.trace import TraceRow


def _build_traffic(**overrides: object) -> Traffic:
    return Traffic.model_validate({"arrivals": "50/s", "requests": 5000, **overrides})


def _compute_gaps(traffic: Traffic) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(load_plan.draw_arrivals(traffic) or [])]


def test_poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential() -> None:
    spaces = _compute_gaps(_build_traffic())
    assert statistics.mean(spaces) == pytest.approx(1 / 50)
    assert statistics.stdev(spaces) == pytest.approx(1 / 50, rel=0.10)
    # A share 1 - 1/e of exponential spaces is below their mean; of constant ones none is.
    assert sum(space < 1 / 50 for space in spaces) / len(spaces) == pytest.approx(0.632, abs=0.03)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert _compute_gaps(_build_traffic(process="constant", requests=100)) == pytest.approx([1 / 50] * 99)


def test_the_same_seed_gives_the_same_arrivals_and_lengths_and_another_seed_others() -> None:
    def draw(seed: int) -> tuple[object, object]:
        traffic = _build_traffic(seed=seed, requests=50, input_tokens="10..1k", output_tokens="5..50")
        return load_plan.draw_arrivals(traffic), list(itertools.islice(load_plan.draw_lengths(traffic, "load"), 50))

    assert draw(1) == draw(1)
    assert draw(1)[0] != draw(2)[0]
    assert draw(1)[1] != draw(2)[1]


def test_the_warm_up_draws_other_lengths_than_the_load() -> None:
    traffic = _build_traffic(input_tokens="10..1k")
    warm, load = (list(itertools.islice(load_plan.draw_lengths(traffic, phase), 20)) for phase in ("warm-up", "load"))
    assert warm != load


def test_arrivals_end_at_the_time_limit() -> None:
    times = load_plan.draw_arrivals(_build_traffic(time_limit="10s"))
    assert times
    assert times[-1] <= 10
    assert len(times) < 5000


def test_lengths_fill_their_range_and_share_the_requested_prefix() -> None:
    traffic = Traffic.model_validate(
        {"users": 1, "input_tokens": "100..110", "output_tokens": 7, "shared_prefix": "25%", "prefix_groups": 3}
    )
    lengths = list(itertools.islice(load_plan.draw_lengths(traffic, "load"), 500))
    assert {length.input_tokens for length in lengths} == set(range(100, 111))
    assert {length.output_tokens for length in lengths} == {7}
    assert {length.group for length in lengths} == {0, 1, 2}
    assert all(length.shared_tokens == round(length.input_tokens / 4) for length in lengths)


def test_the_closed_loop_has_its_number_of_users() -> None:
    assert load_plan.count_users(Traffic(users=7)) == 7


def test_in_the_open_loop_every_request_due_within_a_deadline_has_a_user() -> None:
    settings = {"arrivals": "10/s", "process": "constant", "requests": 1000, "deadline": "2s"}
    assert load_plan.count_users(Traffic.model_validate(settings)) == 21
    assert load_plan.count_users(Traffic.model_validate({**settings, "requests": 5})) == 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("burstiness", [0.1, 1.0])
def test_few_arrivals_too_come_at_their_rate(burstiness: float, seed: int) -> None:
    """By chance alone 59 of burstiness 0.1 come at 30/s to 90/s."""
    times = load_plan.draw_arrivals(_build_traffic(requests=59, burstiness=burstiness, seed=seed)) or []
    assert (len(times), times[0], times[-1]) == (59, 0.0, pytest.approx(58 / 50))
    assert load_plan.draw_arrivals(_build_traffic(requests=1)) == [0.0]


@pytest.mark.parametrize(("burstiness", "spread"), [(0.25, 2.0), (4.0, 0.5)])
def test_burstiness_is_the_shape_of_the_gamma_distribution(burstiness: float, spread: float) -> None:
    spaces = _compute_gaps(_build_traffic(burstiness=burstiness))
    assert statistics.mean(spaces) == pytest.approx(1 / 50)
    assert statistics.stdev(spaces) / statistics.mean(spaces) == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("shape", ["normal", "lognormal", "gamma"])
def test_lengths_of_a_distribution_have_its_mean_and_spread_within_the_bounds(shape: str) -> None:
    def draw(within: str) -> list[int]:
        lengths = {"mean": 1000, "cv": 0.3, "shape": shape, "within": within}
        traffic = Traffic.model_validate({"users": 1, "input_tokens": lengths})
        return [length.input_tokens for length in itertools.islice(load_plan.draw_lengths(traffic, "load"), 4000)]

    lengths = draw("1..10k")
    assert statistics.mean(lengths) == pytest.approx(1000, rel=0.03)
    assert statistics.stdev(lengths) == pytest.approx(300, rel=0.07)
    narrow = draw("900..1100")
    assert min(narrow) >= 900
    assert max(narrow) <= 1100
    assert len(set(narrow)) > 150, "redrawn, not moved to the bounds"


def test_a_trace_gives_times_at_its_speed_and_lengths_in_order() -> None:
    rows = [TraceRow(0, 10, 1), TraceRow(4, 20, 2), TraceRow(9, 30, 3)]
    traffic = Traffic.model_validate(
        {"trace": "a.csv", "trace_speed": 2, "input_tokens": "1..1k", "output_tokens": "1..1k", "time_limit": "4s"}
    )
    assert load_plan.draw_arrivals(traffic, rows) == [0, 2], "the third comes after the time limit"
    lengths = list(itertools.islice(load_plan.draw_lengths(traffic, "load", rows), 4))
    assert [(length.input_tokens, length.output_tokens) for length in lengths] == [(10, 1), (20, 2), (30, 3), (10, 1)]
    assert load_plan.count_users(traffic, rows) == 2


def test_no_more_users_than_requests_at_once() -> None:
    settings = {"arrivals": "10/s", "process": "constant", "requests": 1000, "deadline": "2s", "max_concurrency": 5}
    traffic = Traffic.model_validate(settings)
    assert load_plan.count_users(traffic) == 5
    assert [load_plan.count_users(traffic, shard=Shard(index, 2)) for index in (0, 1)] == [3, 2]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shards_divide_the_requests_without_rest(count: int) -> None:
    shards = [Shard(index, count) for index in range(count)]
    assert sorted(number for shard in shards for number in shard.select(range(100))) == list(range(100))
    assert [shard.count_own(100) for shard in shards] == [len(list(shard.select(range(100)))) for shard in shards]


def test_processes_follow_from_the_load_and_the_cores() -> None:
    def count(cores: int = 16, **settings: object) -> int:
        return load_plan.count_processes(Traffic.model_validate({"requests": 100_000, **settings}), cores)

    assert count(users=8) == 1
    assert count(users=5000) == 10
    assert count(users=5000, cores=2) == 2
    assert count(arrivals="20/s", output_tokens=200) == 1
    assert count(arrivals="100/s", output_tokens=200) == 5
    assert count(arrivals="100/s", output_tokens=200, max_concurrency=3) == 3
    assert count(arrivals="100/s", output_tokens=200, requests=1) == 1


def test_sessions_have_their_turns_and_together_the_counted_requests() -> None:
    traffic = _build_traffic(turns="2..6", requests=1000)
    starts = load_plan.list_starts(traffic)
    turns = [end - start for start, end in itertools.pairwise([*starts, 1000])]
    assert set(turns[:-1]) == {2, 3, 4, 5, 6}
    assert sum(turns) == 1000
    times = load_plan.draw_arrivals(traffic) or []
    assert len(times) == len(starts)
    assert 1000 / times[-1] == pytest.approx(50, rel=0.2), "arrivals counts all requests"
    assert load_plan.list_starts(_build_traffic(requests=3)) == range(3)
