"""Latencies that other tools report, by their definitions, to compare with their numbers. No input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics import sample_statistics
from llm_serving.validation.statistics.sample_statistics import Latency


class Definition(PlainData):
    """What a latency is, and who defines it so."""

    title: str
    text: str


DEFINITIONS = own_yaml.read_rows(Path(__file__).with_suffix(".yaml"), Definition)


def summarize(answered: Sequence[Sample]) -> dict[str, Latency]:
    """Return each latency over the answered requests, in milliseconds."""
    values: dict[str, list[float]] = {name: [] for name in DEFINITIONS}
    for sample in answered:
        for name, value in _measure(sample):
            values[name].append(value)
    return {name: sample_statistics.summarize_latency(series) for name, series in values.items()}


def _measure(sample: Sample) -> Iterator[tuple[str, float]]:
    if sample.ttfo_ms is not None:
        yield "ttfo_ms", sample.ttfo_ms
    yield from (("icl_ms", gap.ms * gap.tokens) for gap in sample.gaps)
    tokens = sample.output_tokens or 0
    if sample.e2e_ms is not None and sample.ttft_ms is not None and tokens > 1:
        yield "tpot_ms", (sample.e2e_ms - sample.ttft_ms) / (tokens - 1)
    if sample.e2e_ms is not None and tokens:
        yield "normalized_ms", sample.e2e_ms / tokens
