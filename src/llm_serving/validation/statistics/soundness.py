"""Whether a load can show anything: a queue that still grows, a starved driver or full caches prove nothing.

No input or output.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from llm_serving.services.traffic import Slo, Traffic
from llm_serving.validation.load import answer
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.statistics import distribution, sample_statistics, time_series
from llm_serving.validation.statistics.sample_statistics import METRICS, Metric
from llm_serving.validation.statistics.time_series import Steady

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

MAX_DRIVER_SHARE: dict[Metric, float] = {"ttft_ms": 0.25, "itl_ms": 1.0, "e2e_ms": 0.25}
"""Delay of the driver as a share of a limit, above which it may decide the verdict. Tokens that come while it is held
up are read at once, with the time of the last: the gaps between them seem 0, and a percentile hides the others."""

MIN_DRIVER_DELAY_MS = 20.0
"""Delay that any machine shows now and then, whatever the limit."""

UNEXPLAINED_CACHE = 0.3
"""Share of prompt tokens found in caches beyond what the prompts share: chat templates are the rest."""

TREND_PARTS = 6
"""Parts of a load, each of whose medians is above that of the part before where a latency grows through it. Of 1,000
simulated loads of 300 requests on a server with one queue, 2 grow so by chance at half of its capacity, 2 at 80% and 15
at 90%."""

LATENCY_GROWTH = 2.0
"""Growth of the median from the first part to the last, below which it is no remark."""

MIN_LATE_GROWTH = 0.2
"""Share of that growth in the last two parts at the least (40% of an even growth): else the load has left its ramp."""

MIN_LATENCY_GROWTH_MS = 20.0
"""Growth that any machine shows now and then."""

MIN_TREND_ANSWERS = 60
"""Answers without which the parts of a load show no trend."""

MAX_SHORT_ANSWERS = 0.1
"""Share of the requested output tokens that the answers may lack. Shorter answers make each request shorter by about as
much, and a tenth is the difference that a bound of a few hundred requests leaves open anyway."""

MIN_STALL_S = 1.0
"""Time without any token that a user notices."""

STALL_FACTOR = 3.0
"""Median times to first token of a stall at the least: a client that waits alone for a first token is no stall."""

MIN_OFFERED = 0.8
"""Share of `arrivals` that sessions offer in the busiest third of a load, below which they never offered that load. In
a steady state a third of 300 requests is that few by chance in 2% of loads, and the busiest of three hardly ever."""

MIN_TURNS = 3
"""Answers that follow each other within a load, at the least: fewer are its ramp and its end only."""


def find_doubts(traffic: Traffic, slo: Slo, result: DriverResult, samples: Sequence[Sample]) -> list[str]:
    """Return why the load shows nothing where a longer or a lower one might, a sentence each."""
    queue = list(_check_queue(samples)) if traffic.is_open_loop else []
    growths = [
        f"{growth.describe()}: as much again would exceed its limit; needs a longer load"
        for growth in find_growth(traffic, samples)
        if growth.threatens(slo)
    ]
    return [
        *_check_duration(result, samples),
        *_check_ramp(slo, result, samples),
        *_check_sessions(traffic, samples),
        *(queue or growths),
    ]


def find_lasting_doubts(
    traffic: Traffic,
    result: DriverResult,
    samples: Sequence[Sample],
    *,
    shared: float | None,
    cached: float | None,
) -> list[str]:
    """Return why no load of these prompts, shared and cached by these shares, shows anything, a sentence each."""
    unseen = "a picture has no tokens in the server's usage: the model may not see it; needs a server that counts them"
    return [
        *_check_answer_lengths(samples),
        *_check_caches(traffic, result, shared, cached),
        *([unseen] if result.picture_tokens == 0 else []),
    ]


def has_kept_up(samples: Sequence[Sample]) -> bool:
    """Return whether requests are answered at the rate at which they come, ramp and drain left out."""
    steady = time_series.compute_steady_rates(samples)
    return steady is not None and steady.requests_per_s >= MIN_SERVED * steady.offered_per_s


def find_rate_doubt(traffic: Traffic, samples: Sequence[Sample], steady: Steady | None) -> str:
    """Return why a low rate of answers is the load's doing, and what would show another; "" where it is not."""
    if traffic.is_open_loop and has_kept_up(samples):
        return "the load asked for no more; needs more arrivals"
    if not traffic.is_open_loop and samples and steady is None:
        return "it is all ramp and end; needs more requests"
    return ""


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


def _check_ramp(slo: Slo, result: DriverResult, samples: Sequence[Sample]) -> Iterator[str]:
    """In the closed loop: limits that hold by the requests that were sent before all users had begun."""
    later = [sample for sample in samples if sample.start_s >= result.ramp_s]
    if not result.ramp_s or not later:
        return
    whole, steady = distribution.collect(samples), distribution.collect(later)
    for metric in METRICS:
        for statistic, limit in getattr(slo, metric).model_dump(exclude_none=True).items():
            of_all, of_later = (part[metric].estimate(statistic).value for part in (whole, steady))
            if of_all is not None and of_later is not None and of_all <= limit < of_later:
                sent = f"{len(later)} requests that were sent once all users had begun"
                reason = f"{of_all:.1f} ms, and {of_later:.1f} of the {sent}"
                yield f"{metric}.{statistic} within {limit:g} ms: {reason}; needs a longer load"


def _check_sessions(traffic: Traffic, samples: Sequence[Sample]) -> Iterator[str]:
    """In the open loop: sessions that start for so short a time that never as many are under way as they make."""
    last_start = max((sample.start_s for sample in samples), default=0.0)
    if traffic.arrivals is None or traffic.turns.max == 1 or last_start <= 0:
        return
    thirds = Counter(min(2, int(3 * sample.start_s / last_start)) for sample in samples)
    offered = 3 * max(thirds.values()) / last_start
    if offered < MIN_OFFERED * traffic.arrivals:
        turn_s = fmean((sample.in_flight_ms or 0.0) / 1000 for sample in samples) + (traffic.think_time or 0.0)
        needed = math.ceil(MIN_TURNS * traffic.arrivals * traffic.turns.max * turn_s)
        yield (
            f"sessions offered {offered:.1f} requests/s in the busiest third of the load, of {traffic.arrivals:g}/s: "
            f"the last one started before the first ended; needs {max(needed, 2 * len(samples)):,} requests"
        )


def _check_queue(samples: Sequence[Sample]) -> Iterator[str]:
    """In the open loop: requests in flight that grow while fewer are answered than offered."""
    start_times = [sample.start_s for sample in samples]
    last_start = max(start_times, default=0.0)
    if last_start <= 0:
        return
    in_thirtieths = [*time_series.compute_in_flight(samples, last_start / 30), *[0.0] * 30]
    in_flight = _Trend(fmean(in_thirtieths[10:20]), fmean(in_thirtieths[20:30]))
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
    """Measure end-to-end latency by the start of answered requests, in seconds."""
    thirds: list[list[float]] = [[], [], []]
    for sample in samples:
        if sample.error is None and sample.e2e_ms is not None:
            thirds[min(2, int(3 * sample.start_s / last_start))].append(sample.e2e_ms / 1000)
    # Where none of the last third is answered, they take for ever.
    return _Trend(fmean(thirds[1] or [0.0]), fmean(thirds[2] or [math.inf]))


class LatencyGrowth(NamedTuple):
    """A latency that grows through a load: the medians of its first and its last part, in milliseconds."""

    metric: Metric
    first: float
    last: float

    def describe(self) -> str:
        return (
            f"{self.metric} grew through the whole load, from a median of {self.first:.0f} ms in its first sixth to "
            f"{self.last:.0f} ms in its last"
        )

    def threatens(self, slo: Slo) -> bool:
        """Return whether as much growth again would exceed a limit."""
        limits = getattr(slo, self.metric).model_dump(exclude_none=True).values()
        return self.last**2 > min(limits, default=math.inf) * self.first


def find_growth(traffic: Traffic, samples: Sequence[Sample]) -> list[LatencyGrowth]:
    """Return the latencies that grow through a load, by more than the length of its requests.

    A trace that is replayed has ups and downs of its own.
    """
    answered = sorted((sample for sample in samples if sample.error is None), key=lambda sample: sample.start_s)
    if traffic.replays_times or len(answered) < MIN_TREND_ANSWERS:
        return []
    bounds = [len(answered) * index // TREND_PARTS for index in range(TREND_PARTS + 1)]
    parts = [answered[start:end] for start, end in itertools.pairwise(bounds)]
    first_tokens, last_tokens = (fmean(map(_count_tokens, part)) for part in (parts[0], parts[-1]))
    explained = max(1.0, last_tokens / first_tokens) if first_tokens else 1.0
    return [growth for metric in METRICS if (growth := _measure_growth(metric, parts, explained))]


def _count_tokens(sample: Sample) -> int:
    return (sample.input_tokens or 0) + (sample.output_tokens or 0)


def _measure_growth(metric: Metric, parts: Sequence[Sequence[Sample]], explained: float) -> LatencyGrowth | None:
    """Return a latency's growth; None where it is small, or `explained` by the length of the requests."""
    latencies = [_list_latencies(metric, part) for part in parts]
    if not all(latencies):
        return None
    medians = list(map(median, latencies))
    first, last = medians[0], medians[-1]
    is_steady = all(later > earlier for earlier, later in itertools.pairwise(medians))
    is_late = last - medians[-3] >= MIN_LATE_GROWTH * (last - first)
    is_large = last >= LATENCY_GROWTH * explained * first and last - first >= MIN_LATENCY_GROWTH_MS
    return LatencyGrowth(metric, first, last) if is_steady and is_late and is_large else None


def _list_latencies(metric: Metric, samples: Sequence[Sample]) -> list[float]:
    return [value for sample in samples if (value := sample.get_latency(metric)) is not None]


def _check_answer_lengths(samples: Sequence[Sample]) -> Iterator[str]:
    """Answers that lack tokens: the load asked for is not the load measured."""
    requested_tokens = output_tokens = 0
    for sample in samples:
        if sample.error is None and sample.asked_output is not None and sample.output_tokens is not None:
            requested_tokens += sample.asked_output
            output_tokens += sample.output_tokens
    if output_tokens < (1 - MAX_SHORT_ANSWERS) * requested_tokens:
        yield (
            f"the answers have {output_tokens / requested_tokens:.0%} of the output tokens that were asked for, and "
            f"at least {1 - MAX_SHORT_ANSWERS:.0%} make it the load of this traffic; needs output_tokens as the model "
            "answers, or a server that takes min_tokens and ignore_eos"
        )


class DriverDoubt(NamedTuple):
    """Why the driver itself may have decided the verdict."""

    reason: str

    delay_ms: float
    """By how much it may have changed a latency; infinite where the load itself was another."""


def find_driver_doubts(slo: Slo, result: DriverResult, samples: Sequence[Sample]) -> list[DriverDoubt]:
    """Return why the driver itself may have decided the verdict."""
    return [*_check_delays(slo, result, samples), *_check_busy(result)]


def _check_busy(result: DriverResult) -> Iterator[DriverDoubt]:
    busiest = max(result.processes, key=lambda process: process.busy_share, default=None)
    if busiest is not None and busiest.busy_share > MAX_BUSY:
        yield DriverDoubt(
            f"the load driver was starved: a process of it used a core for {busiest.cpu_share:.0%} of the time and "
            f"waited for one for {busiest.queue_share or 0:.0%}; needs an idle machine, or fewer requests at once",
            math.inf,
        )


def _check_delays(slo: Slo, result: DriverResult, samples: Sequence[Sample]) -> Iterator[DriverDoubt]:
    limits = [
        (share * limit, limit)
        for metric, share in MAX_DRIVER_SHARE.items()
        for limit in getattr(slo, metric).model_dump(exclude_none=True).values()
    ]
    borne, tightest = min(limits, default=(math.inf, math.inf))
    lateness = sample_statistics.summarize_latency([sample.late_ms for sample in samples]).p99 or 0.0
    # Of each answer the chunk that waited longest: already the tail, so that the median of these is compared.
    unread = sample_statistics.summarize_latency([sample.unread_ms for sample in samples]).p50 or 0.0
    delay = max([lateness, unread, *(process.lag_p99_ms for process in result.processes)])
    if delay > max(MIN_DRIVER_DELAY_MS, borne):
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


def find_longest_stall(samples: Sequence[Sample], deadline_s: float) -> float:
    """Return the longest time without any token while a request was in flight, in seconds."""
    return max(_list_silences(samples, deadline_s), default=0.0)


def _list_silences(samples: Sequence[Sample], deadline_s: float) -> list[float]:
    """Return the times without any token while a request was in flight, in seconds.

    A stall of one stream is hidden among others; a stall of all of them is the service's. A failed request was in
    flight until it failed.
    """
    events = sorted(_list_events(samples, deadline_s))
    silences, in_flight, quiet_since = list[float](), 0, 0.0
    for time, change in events:
        # A request that starts or ends breaks no silence; the first one in flight begins to wait.
        if in_flight and (change == 0 or in_flight + change == 0):
            silences.append(time - quiet_since)
        if change == 0 or not in_flight:
            quiet_since = time
        in_flight += change
    return silences


def describe_stalls(samples: Sequence[Sample], deadline_s: float) -> str:
    """Return a sentence on the stalls of a service that nobody set a limit for; empty without any."""
    waits = _list_latencies("ttft_ms", samples) or _list_latencies("e2e_ms", samples)
    least = max(MIN_STALL_S, STALL_FACTOR * median(waits) / 1000 if waits else 0.0)
    stalls = [silence for silence in _list_silences(samples, deadline_s) if silence >= least]
    if not stalls:
        return ""
    times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
    return (
        f"The service stalled {times}: no token came for up to {max(stalls):.1f} s while requests were in flight; "
        "slo.stall sets a limit."
    )


def _list_events(samples: Sequence[Sample], deadline_s: float) -> Iterator[tuple[float, int]]:
    """Yield each start (+1), token (0) and end (-1) with its time in seconds."""
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
