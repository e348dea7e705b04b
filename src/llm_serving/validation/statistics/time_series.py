"""Time series of a load: latencies by start, output tokens per second, requests in flight. No input or output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from llm_serving.settings.plain import PublishedData
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics.sample_statistics import METRICS, Metric

STEP_WIDTHS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Possible intervals, in seconds."""


def choose_width(duration_s: float, max_count: float) -> float:
    """Return the shortest interval of which at most `max_count` cover the duration, in seconds."""
    return next((width for width in STEP_WIDTHS_S if duration_s / width <= max_count), STEP_WIDTHS_S[-1])


def collect_points(answered: Sequence[Sample]) -> dict[Metric, list[tuple[float, float]]]:
    """Return each answered request's start, in seconds, and latency; its mean for inter-token latency."""
    return {
        metric: [(sample.start_s, value) for sample in answered if (value := sample.get_latency(metric)) is not None]
        for metric in METRICS
    }


def compute_token_rates(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Return the output tokens per second of each interval of `width_s` seconds."""
    return _compute_rates((event for sample in answered for event in sample.list_token_times()), width_s)


def compute_input_rates(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Return the answered texts per second of each interval of `width_s` seconds."""
    return _compute_rates(
        ((sample.start_s + (sample.e2e_ms or 0.0) / 1000, sample.inputs) for sample in answered), width_s
    )


def _compute_rates(events: Iterable[tuple[float, float]], width_s: float) -> list[float]:
    """Return what each interval has a second of events, a time and an amount each."""
    counts: dict[int, float] = {}
    for time, amount in events:
        index = int(time / width_s)
        counts[index] = counts.get(index, 0) + amount
    return [counts.get(index, 0) / width_s for index in range(max(counts, default=-1) + 1)]


class Steady(PublishedData):
    """Rates between the first answer's end and the last request's start: without ramp and drain."""

    from_s: float
    """First answer's end, and in the closed loop not before all users have begun; in seconds from the load's start."""

    to_s: float
    """Start of the last request, or session, and in the closed loop not after the first user has no request left."""

    offered_per_s: float
    """Requests sent per second."""

    requests_per_s: float
    """Answered requests per second; fewer than offered, a queue grows."""

    output_tokens_per_s: float
    """Generated tokens per second."""


def compute_steady_rates(samples: Sequence[Sample], users: int = 0, ramp_s: float = 0.0) -> Steady | None:
    """Return the rates of a load without its ramp and its drain; None where nothing is left.

    Of users that is less than an answer takes on average: who happens to end in it decides.

    Args:
        users: of the closed loop; 0 in the open loop.
        ramp_s: time in which they began: longer than an answer takes, the first send again before the last begin.
    """
    answered = [sample for sample in samples if sample.error is None and sample.e2e_ms is not None]
    ends = [sample.start_s + (sample.e2e_ms or 0.0) / 1000 for sample in answered]
    starts = sorted(sample.start_s for sample in samples)
    first = max([min(ends, default=0.0), ramp_s, *starts[:users]])
    last = max((sample.start_s for sample in samples if sample.turn == 1), default=0.0)  # no session begins thereafter
    if users and samples:  # from then on a user whose request ends has no other, and the last ones may still think
        over = sorted(sample.start_s + (sample.in_flight_ms or 0.0) / 1000 for sample in samples)
        last = min(last, over[max(0, len(over) - users - 1)])
    least_s = fmean(sample.e2e_ms or 0.0 for sample in answered) / 1000 if users and answered else 0.0
    if last - first <= least_s:
        return None

    def count_within(times: Iterable[float]) -> int:
        return sum(first < time <= last for time in times)

    tokens = sum(count for sample in answered for time, count in sample.list_token_times() if first < time <= last)
    width = last - first
    return Steady(
        from_s=round(first, 3),
        to_s=round(last, 3),
        offered_per_s=round(count_within(starts) / width, 3),
        requests_per_s=round(count_within(ends) / width, 3),
        output_tokens_per_s=round(tokens / width, 3),
    )


def compute_in_flight(samples: Sequence[Sample], width_s: float) -> list[float]:
    """Return the mean number of requests in flight of each interval of `width_s` seconds."""
    return _compute_rates(_list_overlaps(samples, width_s), width_s)


def _list_overlaps(samples: Sequence[Sample], width_s: float) -> Iterator[tuple[float, float]]:
    """Yield the middle of each interval that a request was in flight in, with its seconds there."""
    for sample in samples:
        start, end = sample.start_s, sample.start_s + (sample.in_flight_ms or 0) / 1000
        for index in range(int(start / width_s), math.floor(end / width_s) + 1):
            overlap = min(end, (index + 1) * width_s) - max(start, index * width_s)
            yield (index + 0.5) * width_s, max(0.0, overlap)
