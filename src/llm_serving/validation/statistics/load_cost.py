"""What a measured load costs: the accelerators' prices over the tokens and requests that they answered.

Of a load that goes on: its ramp and its end, in which fewer requests are under way, are no part of a service's day.
Only of a target with prices: what a GPU would do is not reckoned from this machine. No input or output.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_serving.settings.plain import PublishedData
from llm_serving.validation.load.answer import Sample


class Cost(PublishedData):
    """Cost in US dollars, on demand."""

    usd_h: float
    """The engines' share of their instances, by accelerators, at the deployment's least number of replicas; of 0, one
    that answers."""

    per_million_input_tokens: float | None
    """The hour's cost over the prompts' tokens only, if the load went on; null without any."""

    per_million_output_tokens: float | None
    """The hour's cost over the answers' tokens only; null without any."""

    per_million_tokens: float | None
    """The hour's cost over both."""

    per_thousand_requests: float | None
    """The hour's cost over the answered requests."""

    basis: str
    """Instances and prices in words, with their date."""


def estimate(price: tuple[float, str] | None, answered: Sequence[Sample], requests_per_s: float) -> Cost | None:
    """Estimate the cost of a load at a lasting rate, from the price of an hour and its basis; None without a price."""
    if price is None or requests_per_s <= 0:
        return None
    usd_h, basis = price
    spent = usd_h * len(answered) / requests_per_s / 3600
    input_tokens = sum(sample.input_tokens or 0 for sample in answered)
    output_tokens = sum(sample.output_tokens or 0 for sample in answered)
    return Cost(
        usd_h=round(usd_h, 4),
        per_million_input_tokens=_divide(spent * 1e6, input_tokens),
        per_million_output_tokens=_divide(spent * 1e6, output_tokens),
        per_million_tokens=_divide(spent * 1e6, input_tokens + output_tokens),
        per_thousand_requests=_divide(spent * 1e3, len(answered)),
        basis=basis,
    )


def _divide(usd: float, count: float) -> float | None:
    return round(usd / count, 6) if count else None
