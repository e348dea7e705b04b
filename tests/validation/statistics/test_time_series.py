from __future__ import annotations

import heapq
import itertools
import json
import math
import random

import pytest

from llm_serving.validation.load import answer
from llm_serving.validation.load.answer import Gap, Sample
from llm_serving.validation.statistics import time_series

EVENTS, TOKENS, SPACE_S = 16, 64, 0.2


def _stream_steadily() -> Sample:
    """An answer of four tokens every 0.2 s, from a server that reports their number at the end alone."""
    chunks = [
        (1.1 + index * SPACE_S, b'data: {"choices": [{"delta": {"content": "four whole tokens here "}}]}\n\n')
        for index in range(EVENTS)
    ]
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": TOKENS}}
    chunks.append((chunks[-1][0], f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode()))
    parsed = answer.parse_stream(chunks)
    return Sample(0, 0.0, ttft_ms=1100.0, output_tokens=parsed.output_tokens, gaps=parsed.compute_gaps())


def test_a_steady_answer_draws_as_steady_without_a_usage_in_each_event() -> None:
    sample = _stream_steadily()
    assert time_series.compute_token_rates([sample], 1.0) == [0, 20, 20, 20, 4]
    assert {gap.tokens for gap in sample.gaps} == {4}
    assert sample.compute_mean_gap_ms() == pytest.approx(SPACE_S * 1000 / 4)


def test_one_token_for_each_event_would_draw_all_others_into_the_first() -> None:
    """The negative control: the same answer, with the tokens of an event unknown."""
    sample = _stream_steadily()
    sample.gaps = [Gap(SPACE_S * 1000, 1) for _ in sample.gaps]
    assert time_series.compute_token_rates([sample], 1.0) == [0, 53, 5, 5, 1]


@pytest.mark.parametrize("events", [1, 7, 16, 63])
def test_the_usage_is_spread_without_rest(events: int) -> None:
    parsed = answer.Answer(times=list(map(float, range(events))), counts=[1] * events, output_tokens=TOKENS)
    parsed.spread_usage()
    assert sum(parsed.counts) == TOKENS
    assert max(parsed.counts) - min(parsed.counts) <= 1


def test_token_times_are_those_of_the_events() -> None:
    sample = Sample(0, 2.0, ttft_ms=500.0, output_tokens=6, gaps=[Gap(10.0, 2), Gap(30.0, 1)])
    times = list(sample.list_token_times())
    assert [tokens for _, tokens in times] == [3, 2, 1]
    assert [time for time, _ in times] == pytest.approx([2.5, 2.52, 2.55])
    assert list(itertools.islice(Sample(0, 0.0).list_token_times(), 1)) == []


def test_steady_rates_leave_out_ramp_and_drain() -> None:
    """Ten requests a second, each of two seconds and 20 tokens: the first ends at 2 s, the last starts at 9.9 s."""
    samples = [
        Sample(number, number * 0.1, ttft_ms=100.0, e2e_ms=2000.0, output_tokens=20, gaps=[Gap(100.0, 1)] * 19)
        for number in range(100)
    ]
    rates = time_series.compute_steady_rates(samples)
    assert rates is not None
    assert (rates.from_s, rates.to_s) == pytest.approx((2.0, 9.9))
    assert rates.offered_per_s == pytest.approx(10, rel=0.02)
    assert rates.requests_per_s == pytest.approx(10, rel=0.02)
    assert rates.output_tokens_per_s == pytest.approx(200, rel=0.02)
    # The negative control: over the whole load, with its ramp and its drain, the same service looks slower.
    assert 100 / 11.9 < 8.5
    assert time_series.compute_steady_rates(samples[:5]) is None, "all were sent before the first was answered"
    for sample in samples[50:]:
        sample.turn = 2
    sessions = time_series.compute_steady_rates(samples)
    assert sessions and sessions.to_s == 4.9, "no session begins thereafter"
    for sample in samples:
        sample.turn = 1
    ramp = time_series.compute_steady_rates(samples, users=31)
    assert ramp and ramp.from_s == 3.0, "in the closed loop all users have begun"


def test_users_who_begin_over_several_answers_are_no_steady_load() -> None:
    """Thirty users of one second each, who begin over three: thirty requests a second once all of them send."""
    users, ramp_s = 30, 3.0
    ready = [ramp_s * user / users for user in range(users)]
    samples = []
    for number in range(150):
        start = heapq.heappop(ready)
        heapq.heappush(ready, start + 1.0)
        samples.append(Sample(number, start, e2e_ms=1000.0))
    rates = time_series.compute_steady_rates(samples, users, ramp_s)
    assert rates and (rates.from_s, rates.requests_per_s) == (ramp_s, pytest.approx(users, rel=0.02))
    # The negative control: as many requests as users are sent when a third of the users are still to begin.
    early = time_series.compute_steady_rates(samples, users)
    assert early and early.from_s < 2.1 and early.requests_per_s < 0.93 * users
    assert time_series.compute_steady_rates(samples[:80], users, ramp_s) is None, "less than an answer takes is left"


def test_the_last_pauses_of_users_are_no_steady_load() -> None:
    """Twelve users who think for two seconds and wait for half of one: 4.8 requests a second while none has ended."""
    users, count = 12, 240
    pauses = [-2 * math.log((number + 0.5) / count) for number in range(count)]
    random.Random(0).shuffle(pauses)
    ready, samples = sorted(pauses[:users]), []
    for number, pause in enumerate([*pauses[users:], *[math.inf] * users]):
        start = heapq.heappop(ready)
        heapq.heappush(ready, start + 0.5 + pause)
        samples.append(Sample(number, start, e2e_ms=500.0))
    rates = time_series.compute_steady_rates(samples, users)
    assert rates and rates.requests_per_s == pytest.approx(4.8, rel=0.05)
    # The negative control: until the last start fewer and fewer users are left.
    assert samples[-1].start_s > rates.to_s + 3
    assert len(samples) / samples[-1].start_s < 0.95 * rates.requests_per_s


def test_a_failed_request_is_in_flight_until_it_fails() -> None:
    samples = [Sample(0, 0.0, e2e_ms=1000.0), Sample(1, 0.0, error="http_504", failed_ms=2000.0)]
    assert time_series.compute_in_flight(samples, 1.0)[:2] == [2.0, 1.0]
