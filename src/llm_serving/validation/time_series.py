"""Time series of a load: latencies by start, output tokens per second, requests in flight. No input or output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import get_args

from llm_serving.validation.answer import Sample
from llm_serving.validation.statistics import Metric

STEP_WIDTHS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Possible intervals, in seconds."""


def choose_width(duration_s: float, max_count: float) -> float:
    """Return the shortest interval of which at most `max_count` cover the duration, in seconds."""
    return next((width for width in STEP_WIDTHS_S if duration_s / width <= max_count), STEP_WIDTHS_S[-1])


def collect_points(answered: Sequence[Sample]) -> dict[Metric, list[tuple[float, float]]]:
    """Return each answered request's start, in seconds, and latency; its mean for inter-token latency."""
    points: dict[Metric, list[tuple[float, float]]] = {metric: [] for metric in get_args(Metric)}
    for sample in answered:
        if sample.ttft_ms is not None:
            points["ttft_ms"].append((sample.start_s, sample.ttft_ms))
        if (mean := sample.compute_mean_gap_ms()) is not None:
            points["itl_ms"].append((sample.start_s, mean))
        if sample.e2e_ms is not None:
            points["e2e_ms"].append((sample.start_s, sample.e2e_ms))
    return points


def compute_token_rates(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Return the output tokens per second of each interval of `width_s` seconds."""
    counts: dict[int, float] = {}
    for sample in answered:
        if sample.ttft_ms is None:
            continue
        first = sample.start_s + sample.ttft_ms / 1000
        gaps = sum(gap.tokens for gap in sample.gaps)
        # The first event may have more than one token.
        counts[int(first / width_s)] = counts.get(int(first / width_s), 0) + max(1, (sample.output_tokens or 1) - gaps)
        for after, gap in zip(itertools.accumulate(g.ms * g.tokens for g in sample.gaps), sample.gaps, strict=True):
            step = int((first + after / 1000) / width_s)
            counts[step] = counts.get(step, 0) + gap.tokens
    return [counts.get(index, 0) / width_s for index in range(max(counts, default=-1) + 1)]


def compute_in_flight(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Return the mean number of requests in flight of each interval of `width_s` seconds."""
    in_flight: dict[int, float] = {}
    for sample in answered:
        start, end = sample.start_s, sample.start_s + (sample.e2e_ms or 0) / 1000
        for index in range(int(start / width_s), math.floor(end / width_s) + 1):
            overlap = min(end, (index + 1) * width_s) - max(start, index * width_s)
            in_flight[index] = in_flight.get(index, 0) + max(0.0, overlap)
    return [in_flight.get(index, 0) / width_s for index in range(max(in_flight, default=-1) + 1)]
