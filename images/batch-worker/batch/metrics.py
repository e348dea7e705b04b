"""Reads the load and the latencies of engines from their metrics pages, in Prometheus' text format. Pure functions."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})? (\S+)", re.MULTILINE)
_BOUND = re.compile(r'le="([^"]+)"')

Histogram = Mapping[float, float]
"""Samples since the engine started, at or below each bound in seconds; the last bound is infinite."""


@dataclass(frozen=True)
class EngineLoad:
    """Sums over the engines at one moment; `kv_usage` is that of the fullest."""

    running: float
    waiting: float
    kv_usage: float
    """Share of the KV cache in use; 0 if the engine does not show it."""

    preemptions: float
    """Since the engine started."""


def parse_load(pages: Iterable[str], names: Mapping[str, Collection[str]]) -> EngineLoad | None:
    """Add up the load of engines; None without a page of theirs, and 0 for a missing metric.

    Args:
        names: metrics of engines, by signal (`Settings.metrics`).
    """
    signals = {name: signal for signal in names for name in names[signal]}
    values: dict[str, list[float]] = defaultdict(list)
    for page in pages:
        for name, _, value in _parse_samples(page):
            if name in signals:
                values[signals[name]].append(value)
    if not values:
        return None
    return EngineLoad(
        running=sum(values["running"]),
        waiting=sum(values["queue"]),
        kv_usage=max(values["kv-usage"], default=0.0),
        preemptions=sum(values["preemptions"]),
    )


def parse_histograms(page: str, names: Collection[str]) -> dict[str, Histogram]:
    """Parse the named histograms of a page, adding up the series of each."""
    histograms: dict[str, dict[float, float]] = {}
    for sample, labels, value in _parse_samples(page):
        name = sample.removesuffix("_bucket")
        bound = _BOUND.search(labels) if name != sample and name in names else None
        if bound and (limit := _parse_number(bound[1])) is not None:
            histograms.setdefault(name, defaultdict(float))[limit] += value
    return {name: histogram for name, histogram in histograms.items() if math.inf in histogram}


def _parse_samples(page: str) -> Iterator[tuple[str, str, float]]:
    """Parse name, labels and value of each sample; those without a number are left out."""
    for name, labels, text in _SAMPLE.findall(page):
        if (value := _parse_number(text)) is not None and math.isfinite(value):
            yield name, labels, value


def _parse_number(text: str) -> float | None:
    """Parse a number or a bound, which may be infinite; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number
