"""Latencies that other tools report, by their definitions, to compare with their numbers. No input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics import sample_statistics
from llm_serving.validation.statistics.sample_statistics import Latency


class Definition(NamedTuple):
    """What a latency is, and who defines it so."""

    title: str
    text: str


DEFINITIONS = {
    "ttfo_ms": Definition(
        "Time to first output",
        "Until the first content or tool call; reasoning does not count. AIPerf's time to first output token.",
    ),
    "icl_ms": Definition(
        "Inter-chunk latency",
        "Between two events with tokens, however many they have. AIPerf's definition; ITL of vllm bench serve, which "
        "counts events without tokens too.",
    ),
    "tpot_ms": Definition(
        "Time per output token",
        "Of an answer: end to end less time to first token, by its tokens but one. TPOT of vllm bench serve; AIPerf "
        "calls it inter-token latency.",
    ),
    "normalized_ms": Definition(
        "Normalized latency",
        "Of an answer: end to end by its tokens. Of the paper on PagedAttention (Kwon et al., 2023), and NTPOT of "
        "inference-perf.",
    ),
}
"""Sources, read 2026-11-23: vLLM's benchmarks/serve.py; AIPerf 0.13's Metrics Reference at docs.nvidia.com/aiperf;
inference-perf's summarize_requests."""


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
