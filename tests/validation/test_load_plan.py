from __future__ import annotations

import itertools
import statistics

import pytest

from llm_serving.validation import load_plan
from llm_serving.workloads.serving.traffic import Traffic


def _build_traffic(**overrides: object) -> Traffic:
    return Traffic.model_validate({"arrivals": "50/s", "requests": 5000, **overrides})


def _compute_gaps(traffic: Traffic) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(load_plan.draw_arrivals(traffic) or [])]


def test_poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential() -> None:
    spaces = _compute_gaps(_build_traffic())
    assert statistics.mean(spaces) == pytest.approx(1 / 50, rel=0.05)
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
