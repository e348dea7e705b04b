from __future__ import annotations

import random
import re

import pytest

from llm_serving.services.traffic import Slo, Traffic
from llm_serving.validation.load.answer import Gap, Sample
from llm_serving.validation.load.driver_result import DriverResult, ProcessWatch
from llm_serving.validation.statistics import soundness

OPEN = Traffic.model_validate({"arrivals": "24/s", "requests": 150})
CLOSED = Traffic.model_validate({"users": 4})
SLO = Slo.model_validate({"ttft_ms": {"p95": 400}})


def _play_queue(arrivals: float, served: float, count: int, service_s: float = 0.1) -> list[Sample]:
    """Requests at a server that serves so many a second, one after another, each `service_s` at least."""
    rng, free, due, samples = random.Random(3), 0.0, 0.0, []
    for number in range(count):
        free = max(free, due) + 1 / served
        e2e_ms = (free - due + service_s) * 1000
        samples.append(Sample(number, due, ttft_ms=e2e_ms - 10, e2e_ms=e2e_ms, gaps=[Gap(10.0, 1)]))
        due += rng.expovariate(arrivals)
    return samples


def _find_doubts(traffic: Traffic, samples: list[Sample], **options: float | None) -> list[str]:
    duration_s = max(sample.start_s + (sample.e2e_ms or 0) / 1000 for sample in samples)
    result = DriverResult(duration_s=duration_s, planned=len(samples), shared_prompt_count=len(samples))
    lasting = soundness.find_lasting_doubts(traffic, result, samples, **{"shared": 0.0, "cached": 0.0, **options})
    return [*soundness.find_doubts(traffic, SLO, result, samples), *lasting]


def test_a_queue_that_still_grows_shows_nothing() -> None:
    """24 requests a second offered to a server that does 20: 150 of them used to pass."""
    doubts = _find_doubts(OPEN, _play_queue(24, 20, 150))
    assert len(doubts) == 1
    assert doubts[0].startswith("the queue still grew when the load ended: ")


def test_a_server_keeps_up_where_it_answers_as_fast_as_requests_come() -> None:
    assert soundness.has_kept_up(_play_queue(24, 60, 300))
    assert not soundness.has_kept_up(_play_queue(24, 20, 300))
    assert not soundness.has_kept_up([])


def test_a_long_load_shows_an_overload_of_a_few_percent() -> None:
    """At its end 4.8% of the requests wait, for 24 s: of so many, that is no chance."""
    samples = _play_queue(21, 20, 10_000)
    assert sum(sample.start_s + (sample.e2e_ms or 0) / 1000 > samples[-1].start_s for sample in samples) < 500
    assert _find_doubts(OPEN, samples)[0].startswith("the queue still grew when the load ended: ")
    assert _find_doubts(OPEN, _play_queue(19, 20, 10_000)) == []


@pytest.mark.parametrize("seed_count", [150, 900])
def test_a_server_that_keeps_up_is_not_doubted(seed_count: int) -> None:
    assert _find_doubts(OPEN, _play_queue(24, 60, seed_count)) == []


def test_requests_in_flight_that_grow_by_chance_are_not_doubted() -> None:
    """More happen to come at the end of a short load; each is answered as fast as before."""
    starts = [*(number * 0.05 for number in range(60)), *(3 + number * 0.02 for number in range(50))]
    samples = [Sample(number, start, ttft_ms=190.0, e2e_ms=200.0) for number, start in enumerate(starts)]
    assert _find_doubts(OPEN, samples) == []


@pytest.mark.parametrize(("count", "doubts"), [(100, 1), (300, 0), (60, 0)], ids=["short", "missed", "all ramp"])
def test_a_limit_that_the_requests_of_the_ramp_keep_is_not_shown(count: int, doubts: int) -> None:
    """Sixty requests of 0.1 s while users begin, and of 0.9 s thereafter; in a longer load these decide by themselves."""
    slo, result = Slo.model_validate({"ttft_ms": {"p50": 500}}), DriverResult(ramp_s=3.0, duration_s=60)
    samples = [Sample(n, n / 20, ttft_ms=100.0 if n < 60 else 900.0, e2e_ms=1000.0) for n in range(count)]
    found = soundness.find_doubts(Traffic(users=30), slo, result, samples)
    reason = "ttft_ms.p50 within 500 ms: 100.0 ms, and 900.0 of the 40 requests that were sent once all users had begun"
    assert found == [f"{reason}; needs a longer load"] * doubts
    # The negative control: without a ramp all requests are of the load.
    assert soundness.find_doubts(Traffic(users=30), slo, DriverResult(duration_s=60), samples) == []


def test_a_load_shorter_than_a_few_answers_is_all_ramp() -> None:
    samples = [Sample(number, 0.0, ttft_ms=100.0, e2e_ms=2000.0) for number in range(8)]
    assert _find_doubts(CLOSED, samples) == [
        "the load lasted 2.0 s and an answer up to 2.0 s: it is all ramp and end; needs 24 requests"
    ]


def test_sessions_that_never_offer_their_arrivals_show_nothing() -> None:
    """Five turns, 8 s apart: 300 requests start all sessions in 30 s, and are then at half of 10/s at the most."""
    traffic = Traffic.model_validate({"arrivals": "10/s", "turns": "5", "think_time": "8s"})

    def play(count: int) -> list[Sample]:
        rng, start_s, samples = random.Random(1), 0.0, list[Sample]()
        while len(samples) < count:
            start_s += rng.expovariate(2)
            turn_s = start_s
            for turn in range(1, 6):
                samples.append(Sample(len(samples), turn_s, turn, ttft_ms=50.0, e2e_ms=100.0))
                turn_s += 0.1 + rng.expovariate(1 / 8)
        return samples

    [doubt] = _find_doubts(traffic, play(300))
    assert re.fullmatch(
        r"sessions offered \d\.\d requests/s in the busiest third of the load, of 10/s: the last one started before the "
        r"first ended; needs 1,215 requests",
        doubt,
    )
    assert _find_doubts(traffic, play(1215)) == []
    assert _find_doubts(OPEN, play(300)) == [], "single requests come as they are due"


def test_tokens_found_in_caches_that_the_prompts_do_not_share_are_doubted() -> None:
    samples = _play_queue(10, 60, 100)
    assert _find_doubts(CLOSED, samples, shared=0.05, cached=0.2) == []
    doubts = _find_doubts(CLOSED, samples, shared=0.0, cached=0.91)
    assert doubts[0].startswith("91% of prompt tokens were found in caches, and the prompts share 0%: earlier traffic")
    stated = Traffic.model_validate({"users": 4, "shared_prefix": "90%"})
    assert _find_doubts(stated, samples, shared=0.0, cached=0.91) == []


def _build_growing(first_ms: float, last_ms: float, count: int = 150, tokens: int = 32) -> list[Sample]:
    """Requests whose time to first token goes evenly from one to the other, within 10% either way."""
    rng, samples = random.Random(5), []
    for number in range(count):
        ttft_ms = (first_ms + (last_ms - first_ms) * number / count) * rng.uniform(0.9, 1.1)
        sample = Sample(number, number * 0.1, ttft_ms=ttft_ms, e2e_ms=ttft_ms + 500, gaps=[Gap(16.0, 31)])
        sample.input_tokens = sample.output_tokens = tokens
        samples.append(sample)
    return samples


def test_a_latency_that_grows_through_the_load_is_not_shown_to_stay_within_its_limit() -> None:
    """From 40 to 240 ms within a limit of 400: as long a load again would exceed it."""
    samples = _build_growing(40, 240)
    assert _find_doubts(OPEN, samples) == [
        "ttft_ms grew through the whole load, from a median of 55 ms in its first sixth to 224 ms in its last: as much "
        "again would exceed its limit; needs a longer load"
    ]
    [growth] = soundness.find_growth(OPEN, samples)
    assert not growth.threatens(Slo.model_validate({"ttft_ms": {"p95": 5000}})), "far from its limit it is a remark"


def test_a_latency_that_does_not_grow_by_itself_is_no_growth() -> None:
    assert soundness.find_growth(OPEN, _build_growing(100, 100)) == []
    assert soundness.find_growth(OPEN, _build_growing(240, 40)) == [], "a ramp ends"
    assert soundness.find_growth(OPEN, _build_growing(1, 6)) == [], "a few milliseconds are the machine's"
    assert soundness.find_growth(OPEN, _build_growing(40, 240, count=20)) == [], "too few answers for a trend"
    plateau = [*_build_growing(40, 240, 50), *_build_growing(240, 240, 200)]
    for number, sample in enumerate(plateau):
        sample.start_s = number * 0.1
    assert soundness.find_growth(OPEN, plateau) == [], "it ends with its ramp"
    longer = _build_growing(40, 240)
    for number, sample in enumerate(longer):
        sample.input_tokens = 100 + 10 * number
    assert soundness.find_growth(OPEN, longer) == [], "the prompts grow too"
    replayed = Traffic.model_validate({"trace": "a.csv", "input_tokens": "1..8k", "output_tokens": "1..1k"})
    assert soundness.find_growth(replayed, _build_growing(40, 240)) == [], "a trace has ups and downs of its own"


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_queue_in_its_steady_state_seldom_grows_by_chance(load: float) -> None:
    def play(seed: int) -> list[Sample]:
        rng, free, due, samples = random.Random(seed), 0.0, 0.0, []
        for number in range(300):
            due += rng.expovariate(load)
            free = max(free, due) + rng.expovariate(1)
            samples.append(Sample(number, due, ttft_ms=(free - due) * 1000, e2e_ms=(free - due) * 1000))
        return samples

    assert sum(bool(soundness.find_growth(OPEN, play(seed))) for seed in range(100)) <= 2


def test_answers_much_shorter_than_requested_are_another_load() -> None:
    def build(received: int) -> list[Sample]:
        samples = _play_queue(24, 60, 100)
        for sample in samples:
            sample.asked_output, sample.output_tokens = 64, received
        return samples

    assert _find_doubts(OPEN, build(16)) == [
        "the answers have 25% of the output tokens that were asked for, and at least 90% make it the load of this "
        "traffic; needs output_tokens as the model answers, or a server that takes min_tokens and ignore_eos"
    ]
    assert _find_doubts(OPEN, build(58)) == []


def test_a_service_that_freezes_is_described_without_a_limit_of_stalls() -> None:
    """Frozen for the last 2 s of every 10, it answers what came meanwhile at once."""

    def play(ttft_s: float, frozen_s: float) -> list[Sample]:
        samples = []
        for number in range(600):
            start_s = number * 0.05
            first_s = start_s + ttft_s
            if first_s % 10 > 10 - frozen_s:
                first_s += 10 - first_s % 10
            ttft_ms = (first_s - start_s) * 1000
            samples.append(Sample(number, start_s, ttft_ms=ttft_ms, e2e_ms=ttft_ms + 20, gaps=[Gap(20.0, 1)]))
        return samples

    assert soundness.describe_stalls(play(0.05, 2.0), 60) == (
        "The service stalled 3 times: no token came for up to 2.0 s while requests were in flight; "
        "slo.stall sets a limit."
    )
    assert soundness.describe_stalls(play(0.05, 0.0), 60) == ""
    alone = [Sample(number, number * 3.0, ttft_ms=2000.0, e2e_ms=2100.0) for number in range(20)]
    assert soundness.find_longest_stall(alone, 60) == pytest.approx(2.0), "a long prompt of one client at a time"
    assert soundness.describe_stalls(alone, 60) == ""


def _watch_lag(lag_p99_ms: float) -> DriverResult:
    return DriverResult(processes=[ProcessWatch(), ProcessWatch(lag_p99_ms=lag_p99_ms)])


def test_a_starved_driver_has_no_verdict() -> None:
    samples = [Sample(number, 0.0, late_ms=0.1) for number in range(100)]
    assert soundness.find_driver_doubts(SLO, _watch_lag(90), samples) == []
    doubts = soundness.find_driver_doubts(SLO, _watch_lag(120), samples)
    assert doubts == [
        (
            "the load driver was starved: it acted up to 120 ms late (p99), and the tightest limit is 400 ms; "
            "needs an idle machine, or fewer requests at once",
            120,
        )
    ]
    assert soundness.find_driver_doubts(Slo(), _watch_lag(120), samples) == []


def test_a_driver_that_reads_several_tokens_at_once_has_no_verdict_on_the_times_between_them() -> None:
    """Held up for 30 ms, it read three tokens of 10 ms at once, two of them 0 ms after the one before."""
    slo = Slo.model_validate({"itl_ms": {"p50": 25}, "ttft_ms": {"p95": 5000}})
    samples = [Sample(number, 0.0) for number in range(100)]
    [doubt] = soundness.find_driver_doubts(slo, _watch_lag(30), samples)
    assert "it acted up to 30 ms late (p99), and the tightest limit is 25 ms" in doubt.reason
    assert soundness.find_driver_doubts(slo, _watch_lag(24), samples) == []


def test_a_driver_that_leaves_answers_unread_has_no_verdict() -> None:
    """The kernel had the bytes for 150 ms before the driver read them, of most answers."""
    late, few = (
        [Sample(number, 0.0, unread_ms=150.0 * (number < count)) for number in range(100)] for count in (60, 5)
    )
    [doubt] = soundness.find_driver_doubts(SLO, DriverResult(processes=[ProcessWatch()]), late)
    assert doubt.reason.startswith("the load driver was starved: it acted up to 150 ms late")
    assert soundness.find_driver_doubts(SLO, DriverResult(processes=[ProcessWatch()]), few) == []


def test_a_driver_that_is_never_idle_has_no_verdict() -> None:
    def find(cpu: float, queue: float | None) -> list[soundness.DriverDoubt]:
        watched = DriverResult(processes=[ProcessWatch(), ProcessWatch(cpu_share=cpu, queue_share=queue)])
        return soundness.find_driver_doubts(Slo(), watched, [])

    assert find(0.6, 0.3) == []
    assert find(0.9, None) == []
    assert find(0.6, 0.39)[0].reason.startswith(
        "the load driver was starved: a process of it used a core for 60% of the time and waited for one for 39%; "
    )


def test_a_server_that_answers_nothing_stalls_until_the_deadline() -> None:
    hung = [Sample(number, number * 0.1, error="deadline") for number in range(3)]
    answered = Sample(3, 0.0, ttft_ms=500.0, e2e_ms=500.0)
    assert soundness.find_longest_stall([answered, *hung], 4.0) == pytest.approx(3.7)
    # Cut after three tokens, it waited for the next one until a gateway gave up.
    cut = Sample(0, 0.0, ttft_ms=100.0, gaps=[Gap(50.0, 2)], error="truncated", failed_ms=3000.0)
    assert soundness.find_longest_stall([cut], 4.0) == pytest.approx(2.8)
    # Refused at once, nothing waited.
    assert soundness.find_longest_stall([Sample(0, 0.0, error="http_500")], 4.0) == 0


def test_a_stall_is_of_all_streams_at_once() -> None:
    def build(number: int, start_s: float, *gaps_ms: float) -> Sample:
        return Sample(number, start_s, ttft_ms=100.0, e2e_ms=100 + sum(gaps_ms), gaps=[Gap(ms, 1) for ms in gaps_ms])

    stalled = build(0, 0.0, 100.0, 2000.0, 100.0)
    assert soundness.find_longest_stall([stalled], 60.0) == pytest.approx(2.0)
    # Another stream goes on meanwhile: that one was slow, and the service was not dead.
    others = build(1, 0.1, *[100.0] * 25)
    assert soundness.find_longest_stall([stalled, others], 60.0) == pytest.approx(0.1)
    # Requests that come meanwhile break no silence.
    waiting = [build(2 + number, 0.5 + number * 0.2, 10.0) for number in range(5)]
    for sample in waiting:
        sample.ttft_ms = (2.3 - sample.start_s) * 1000
    assert soundness.find_longest_stall([stalled, *waiting], 60.0) == pytest.approx(2.0)
    # Nothing was in flight: a pause of the traffic is no stall.
    assert soundness.find_longest_stall([build(0, 0.0, 50.0), build(1, 10.0, 50.0)], 60.0) == pytest.approx(0.1)
