"""Statistics of samples. No input or output.

A percentile is the linear interpolation between the two closest ranks (numpy's default, type 7 of Hyndman and Fan): of
the sorted values x[0] to x[n-1], the share q lies at rank q * (n - 1).

A bound is one-sided: with CONFIDENCE, the percentile of the service lies below it. Of one value a request it is exact,
an order statistic, whatever the distribution. Tokens of one answer depend on each other, so that of inter-token latency
takes the answer as the unit (R. S. Woodruff, "Confidence Intervals for Medians and Other Position Measures", 1952).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

from llm_serving.settings.plain import PublishedData

Metric = Literal["ttft_ms", "itl_ms", "e2e_ms"]
"""Time to first token, inter-token latency, end to end; all in milliseconds."""

METRICS: tuple[Metric, ...] = get_args(Metric)

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


class Latency(PublishedData):
    """A latency in milliseconds over all samples; null without samples."""

    count: int
    """Samples: answered requests, or for inter-token latency the tokens after each answer's first."""

    p50: float | None = None
    """Median."""

    p90: float | None = None
    """90th percentile."""

    p95: float | None = None
    """95th percentile."""

    p99: float | None = None
    """99th percentile."""

    mean: float | None = None
    """Arithmetic mean."""

    min: float | None = None
    """Minimum."""

    max: float | None = None
    """Maximum."""


def compute_percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile `share` (0 to 1) of sorted values, of which there is at least one; some may be infinite."""
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    if math.isinf(ordered[high]):
        return ordered[high] if rank > low else ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summarize_latency(values: Sequence[float]) -> Latency:
    """Return mean and percentiles of milliseconds in any order."""
    if not values:
        return Latency(count=0)
    ordered = sorted(values)
    percentiles = {name: round(compute_percentile(ordered, share), 3) for name, share in PERCENTILES.items()}
    mean = round(sum(ordered) / len(ordered), 3)
    return Latency(count=len(ordered), mean=mean, min=round(ordered[0], 3), max=round(ordered[-1], 3), **percentiles)


CONFIDENCE = 0.95
"""Confidence of every bound."""

MAX_SAMPLES = 10_000_000
"""More than any load is asked for."""

_NEGLIGIBLE_SD = 12
"""Standard deviations beyond which a binomial tail adds nothing to a double."""


def compute_upper_rank(count: int, share: float) -> int | None:
    """Return the index of the sorted values that bounds a percentile from above; None if `count` is too small.

    The value of rank k lies above the percentile unless k or more of the values lie below it, and that number is
    binomial. Source: David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
    """
    mean, deviation = count * share, math.sqrt(count * share * (1 - share))
    tail, rank = 0.0, min(count, math.ceil(mean + _NEGLIGIBLE_SD * deviation))
    if count < 1 or _compute_binomial(count, count, share) > 1 - CONFIDENCE:
        return None
    # From the far end of the tail to the lowest rank whose tail is small enough.
    while rank > 0:
        tail += _compute_binomial(rank, count, share)
        if tail > 1 - CONFIDENCE:
            break
        rank -= 1
    return rank


@functools.cache
def compute_min_samples(share: float, exceeding: float = 0.0) -> int | None:
    """Return the samples that bound a percentile if a share `exceeding` of them lies above the limit.

    None if no number up to MAX_SAMPLES would do: then too many lie above it.
    """

    def is_enough(count: int) -> bool:
        rank = compute_upper_rank(count, share)
        return rank is not None and rank < count - round(exceeding * count)

    high = 1
    while not is_enough(high):
        high *= 2
        if high > MAX_SAMPLES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def compute_share_samples(limit: float, share: float) -> int | None:
    """Return the samples that bound a share below `limit` if it is `share` of them; None if no number would do.

    A share lies below the limit where the percentile of the rest does: failures are values above it.
    """
    # Steps of a hundredth of the limit: the search is cached by them.
    step = limit / 100
    return compute_min_samples(1 - limit, math.ceil(share / step) * step) if limit else None


def compute_upper_bound(ordered: Sequence[float], share: float) -> float | None:
    """Return the upper bound of a percentile of sorted, independent values; None if there are too few."""
    rank = compute_upper_rank(len(ordered), share)
    return None if rank is None else ordered[rank]


def compute_share_bounds(count: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the lower and the upper bound of a share, each one-sided and exact (Clopper and Pearson, 1934)."""
    if total == 0:
        return 0.0, 1.0
    lower = _bisect(lambda share: _compute_tail(count, total, share) < 1 - confidence)[0] if count else 0.0
    upper = 1 - _bisect(lambda share: _compute_tail(total - count, total, share) < 1 - confidence)[0]
    return lower, upper if count < total else 1.0


def compute_clustered_bound(clusters: Sequence[Sequence[float]], share: float) -> float | None:
    """Return the upper bound of a percentile over clusters, such as the gaps of answers; None of too few clusters."""
    filled = [values for values in clusters if values]
    if compute_upper_rank(len(filled), share) is None:
        return None
    return compute_clustered_interval(filled, share, CONFIDENCE).high


_NORMAL_DEGREES = 1000
"""Degrees of freedom beyond which a quantile of Student's t changes by less than 0.2%."""


@functools.cache
def compute_t_quantile(confidence: float, degrees: int) -> float:
    """Return a quantile of Student's t: how many standard errors a bound lies from an estimate."""
    degrees = min(degrees, _NORMAL_DEGREES)
    low, high = 0.0, 1.0
    while _compute_t_probability(high, degrees) < confidence:
        low, high = high, 2 * high
    return _bisect(lambda value: _compute_t_probability(value, degrees) < confidence, low, high)[1]


def _compute_t_probability(value: float, degrees: int) -> float:
    """Return the probability of a value of Student's t below a positive one.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    angle = math.atan2(value, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2
    total, term = 0.0, cosine if is_odd else 1.0
    for power in range(1 + is_odd, degrees, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return (1 + within) / 2


class Interval(NamedTuple):
    """An estimate with its bounds."""

    low: float
    value: float
    high: float


def compute_clustered_interval(clusters: Sequence[Sequence[float]], share: float, confidence: float) -> Interval:
    """Return a percentile over two clusters or more, whose values depend on each other, and its one-sided bounds."""
    filled = [values for values in clusters if values]
    ordered = sorted(value for values in filled for value in values)
    estimate = compute_percentile(ordered, share)
    mean_size = len(ordered) / len(filled)
    below = [(sum(value <= estimate for value in values), len(values)) for values in filled]
    overall = sum(count for count, _ in below) / len(ordered)
    squares = sum((count - overall * size) ** 2 for count, size in below)
    error = math.sqrt(squares / (len(filled) * (len(filled) - 1))) / mean_size
    margin = compute_t_quantile(confidence, len(filled) - 1) * error
    low = ordered[max(0, math.floor((share - margin) * len(ordered)) - 1)] if share > margin else -math.inf
    upper_rank = math.ceil((share + margin) * len(ordered))
    high = ordered[min(len(ordered) - 1, upper_rank)] if share + margin < 1 else math.inf
    return Interval(low, estimate, high)


def _compute_binomial(successes: int, trials: int, share: float) -> float:
    if share in (0.0, 1.0):
        return float(successes == trials * share)
    logarithm = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return math.exp(logarithm + successes * math.log(share) + (trials - successes) * math.log1p(-share))


def _compute_tail(successes: int, trials: int, share: float) -> float:
    deviation = math.sqrt(trials * share * (1 - share))
    last = min(trials, math.ceil(max(trials * share, successes) + _NEGLIGIBLE_SD * deviation) + 1)
    if successes < trials * share - _NEGLIGIBLE_SD * deviation:
        return 1.0
    return min(1.0, sum(_compute_binomial(count, trials, share) for count in range(successes, last + 1)))


def _bisect(holds: Callable[[float], bool], low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """Return the largest value at which a condition still holds, and the next: it holds below and not above."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
