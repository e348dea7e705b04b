"""Whether a load can show anything: a queue that still grows, a starved driver or full caches prove nothing.

No input or output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from llm_serving.services.traffic import Slo, Traffic
from llm_serving.validation import answer, gate, sample_statistics, time_series
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import DriverResult, ProcessWatch

GROWTH = 1.25
"""Growth of the requests in flight from the middle third of a load to its last, above which the queue still grows."""

SLOWING = 1.1
"""Growth of the end-to-end latency over the same time, above which answers take longer and longer."""

MIN_GROWTH = 2.0
"""Requests by which it grows at least: fewer are chance."""

MIN_SERVED = 0.95
"""Share of the offered rate that is answered, below which a grown queue is overload and not chance."""

MAX_WAITING = 2.0
"""Requests that wait at the end, in square roots of all, above which it is overload too: by chance they grow no faster,
so that a share of many is too much. In a simulated queue of four servers, 10,000 requests at 105% of its capacity are
then doubted in five of six loads instead of one, and those at up to 95% in no more loads than before."""

MAX_BUSY = 0.95
"""Share of the time in which a process of the driver runs or waits for a core, above which it is never idle: it cannot
have sent what was planned when it was planned."""

MAX_DRIVER_SHARE = 0.25
"""Delay of the driver as a share of the tightest limit on a latency, above which it may decide the verdict."""

MIN_DRIVER_DELAY_MS = 20.0
"""Delay that any machine shows now and then, whatever the limit."""

UNEXPLAINED_CACHE = 0.3
"""Share of prompt tokens found in caches beyond what the prompts share: chat templates are the rest."""

MIN_TURNS = 3
"""Answers that follow each other within a load, at the least: fewer are its ramp and its end alone."""


def find_doubts(
    traffic: Traffic,
    result: DriverResult,
    samples: Sequence[Sample],
    *,
    shared: float | None,
    cached: float | None,
) -> list[str]:
    """Return why the load shows nothing, a sentence each.

    Args:
        shared: share of the prompts' text that an earlier prompt of this load began with.
        cached: share of the prompt tokens that the engines found in their caches.
    """
    return [
        *_check_duration(result, samples),
        *(_check_growth(samples) if traffic.is_open_loop else ()),
        *_check_caches(traffic, result, shared, cached),
        *_check_pictures(result),
    ]


def _check_duration(result: DriverResult, samples: Sequence[Sample]) -> Iterator[str]:
    latencies = sorted(sample.e2e_ms / 1000 for sample in samples if sample.error is None and sample.e2e_ms)
    if not latencies or not result.duration_s:
        return
    longest_s = sample_statistics.compute_percentile(latencies, 0.95)
    if result.duration_s < MIN_TURNS * longest_s:
        needed = round(len(samples) * MIN_TURNS * longest_s / result.duration_s)
        yield (
            f"the load lasted {result.duration_s:.1f} s and an answer up to {longest_s:.1f} s: it is all ramp and end; "
            f"needs {needed:,} requests"
        )


def _check_growth(samples: Sequence[Sample]) -> Iterator[str]:
    """In the open loop: requests in flight that grow while fewer are answered than offered."""
    start_times = [sample.start_s for sample in samples]
    last_start = max(start_times, default=0.0)
    if last_start <= 0:
        return
    in_flight = _measure_in_flight(samples, last_start)
    answered = sum(
        sample.error is None and sample.start_s + (sample.e2e_ms or 0) / 1000 <= last_start for sample in samples
    )
    grows = in_flight.last > GROWTH * in_flight.middle and in_flight.last - in_flight.middle > MIN_GROWTH
    latency = _measure_latency(samples, last_start)
    # Requests in flight also grow by chance, where more happen to come; answers then take no longer.
    slows = latency.last > SLOWING * latency.middle
    waiting = len(samples) - answered
    is_overloaded = waiting > min((1 - MIN_SERVED) * len(samples), MAX_WAITING * math.sqrt(len(samples)))
    if grows and slows and is_overloaded:
        yield (
            f"the queue still grew when the load ended: {in_flight.middle:.1f} requests in flight in its middle third "
            f"and {in_flight.last:.1f} in its last, of {latency.middle:.1f} s and {latency.last:.1f} s each; "
            f"{len(samples) / last_start:.1f}/s were offered and {answered / last_start:.1f}/s answered; needs a "
            "longer load, or fewer arrivals"
        )


class _Trend(NamedTuple):
    """A mean in the middle and in the last third of the sending."""

    middle: float
    last: float


def _measure_latency(samples: Sequence[Sample], last_start: float) -> _Trend:
    """End-to-end latency by the start of answered requests, in seconds."""
    thirds: list[list[float]] = [[], [], []]
    for sample in samples:
        if sample.error is None and sample.e2e_ms is not None:
            thirds[min(2, int(3 * sample.start_s / last_start))].append(sample.e2e_ms / 1000)
    # Where none of the last third is answered, they take for ever.
    return _Trend(fmean(thirds[1] or [0.0]), fmean(thirds[2] or [math.inf]))


def _measure_in_flight(samples: Sequence[Sample], last_start: float) -> _Trend:
    """Requests in flight."""
    width = last_start / 30
    rates = time_series.compute_in_flight(samples, width)[:30]
    rates += [0.0] * (30 - len(rates))
    return _Trend(fmean(rates[10:20]), fmean(rates[20:30]))


class DriverDoubt(NamedTuple):
    """Why the driver itself may have decided the verdict."""

    reason: str

    delay_ms: float
    """By how much it may have changed a latency; infinite where the load itself was another."""


def find_driver_doubts(slo: Slo, result: DriverResult, samples: Sequence[Sample]) -> list[DriverDoubt]:
    """Return why the driver itself may have decided the verdict."""
    return [*_check_delays(slo, result, samples), *_check_busy(result)]


def _check_busy(result: DriverResult) -> Iterator[DriverDoubt]:
    busiest = max(result.processes, key=_compute_busy, default=None)
    if busiest is not None and _compute_busy(busiest) > MAX_BUSY:
        yield DriverDoubt(
            f"the load driver was starved: a process of it used a core for {busiest.cpu_share:.0%} of the time and "
            f"waited for one for {busiest.queue_share or 0:.0%}; needs an idle machine, or fewer requests at once",
            math.inf,
        )


def _compute_busy(process: ProcessWatch) -> float:
    return process.cpu_share + (process.queue_share or 0.0)


def _check_delays(slo: Slo, result: DriverResult, samples: Sequence[Sample]) -> Iterator[DriverDoubt]:
    limits = itertools.chain.from_iterable(
        getattr(slo, metric).model_dump(exclude_none=True).values() for metric in gate.LATENCIES if metric != "itl_ms"
    )
    tightest = min(limits, default=None)
    lateness = sample_statistics.summarize_latency([sample.late_ms for sample in samples]).p99 or 0.0
    # Of each answer the chunk that waited longest: already the tail, so that the median of these is compared.
    unread = sample_statistics.summarize_latency([sample.unread_ms for sample in samples]).p50 or 0.0
    delay = max([lateness, unread, *(process.lag_p99_ms for process in result.processes)])
    if tightest is not None and delay > max(MIN_DRIVER_DELAY_MS, MAX_DRIVER_SHARE * tightest):
        yield DriverDoubt(
            f"the load driver was starved: it acted up to {delay:.0f} ms late (p99), and the tightest limit is "
            f"{tightest:g} ms; needs an idle machine, or fewer requests at once",
            delay,
        )


def _check_caches(traffic: Traffic, result: DriverResult, shared: float | None, cached: float | None) -> Iterator[str]:
    explained = max(shared or 0.0, traffic.shared_prefix)
    if cached is None or cached <= explained + UNEXPLAINED_CACHE:
        return
    sent = result.planned
    reason = (
        f"{traffic.data} has {result.shared_prompt_count} prompts, fewer than the {sent} requests"
        if traffic.data and result.shared_prompt_count < sent
        else "earlier traffic had filled the caches"
    )
    yield (
        f"{cached:.0%} of prompt tokens were found in caches, and the prompts share {explained:.0%}: {reason}; "
        "needs prompts that the caches do not have, or shared_prefix in traffic"
    )


def _check_pictures(result: DriverResult) -> Iterator[str]:
    if result.picture_tokens == 0:
        yield "a picture has no tokens in the server's usage: the model may not see it; needs a server that counts them"


def find_longest_stall(samples: Sequence[Sample], deadline_s: float) -> float:
    """Return the longest time without any token while a request was in flight, in seconds.

    A stall of one stream is hidden among others; a stall of all of them is the service's. A failed request was in
    flight until it failed.
    """
    events = sorted(_list_events(samples, deadline_s))
    longest, in_flight, quiet_since = 0.0, 0, 0.0
    for time, change in events:
        if in_flight:
            longest = max(longest, time - quiet_since)
        # A request that starts or ends breaks no silence; the first one in flight begins to wait.
        if change == 0 or not in_flight:
            quiet_since = time
        in_flight += change
    return longest


def _list_events(samples: Sequence[Sample], deadline_s: float) -> Iterator[tuple[float, int]]:
    """Each start (+1), token (0) and end (-1) with its time in seconds."""
    for sample in samples:
        end_ms = sample.in_flight_ms
        if end_ms is None and sample.error == answer.DEADLINE:
            end_ms = deadline_s * 1000
        if end_ms is None:
            continue
        yield sample.start_s, 1
        for time, _ in sample.list_token_times():
            yield time, 0
        if sample.error is None and sample.ttft_ms is None:  # an answer without tokens comes at its end
            yield sample.start_s + end_ms / 1000, 0
        yield sample.start_s + end_ms / 1000, -1
