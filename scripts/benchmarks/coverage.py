"""How often the bounds of a validation hold: simulated runs of known distributions.

    python -m scripts.benchmarks.coverage [RUNS]

Prints, for each distribution, percentile and number of requests, the share of runs whose bound lay above the true
percentile; nominal is 95%. A bound of one value a request is an order statistic: its share is the nominal one rounded
up to the next rank, `exact`, whatever the distribution, and more where values are equal. Tokens of one answer depend on
each other: their bound is an approximation. The bound of a share (goodput, errors) is exact or wider.

All of them take requests as independent. Those of a queue wait for each other, so that a run sees only a few of its ups
and downs: `queue` is the latency of one server with exponential arrivals and services at a share of its capacity, whose
distribution is exponential again (D. Gross et al., "Fundamentals of Queueing Theory", 4th edition, section 2.2.5).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_serving import program
from llm_serving.validation import sample_statistics

COUNTS = (59, 300, 1000, 3000)
"""Requests of a run."""

SEED = 20261123

BLOCK = 500
"""Runs that are drawn at once: 12 MB of the longest."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

DISTRIBUTIONS: dict[str, tuple[Draw, Callable[[float], float]]] = {
    "exponential": (lambda rng, shape: rng.standard_exponential(shape), lambda share: -math.log(1 - share)),
    "lognormal": (lambda rng, shape: rng.lognormal(0, 1, shape), lambda share: math.exp(NormalDist().inv_cdf(share))),
    # Tails of a service that stalls: its variance is infinite.
    "pareto": (lambda rng, shape: 1 + rng.pareto(1.5, shape), lambda share: (1 - share) ** (-1 / 1.5)),
    # A clock of whole steps, so that many values are equal.
    "steps": (
        lambda rng, shape: np.ceil(4 * rng.standard_exponential(shape)),
        lambda share: float(math.ceil(-4 * math.log(1 - share))),
    ),
}
"""How to draw values, and the true percentile."""

SHARES = (0.95, 0.99, 0.999)
"""True goodputs."""

ANSWER_TOKENS = 16
ANSWER_SPREAD = 0.5
"""Standard deviation of the logarithm of an answer's own speed; that of a token within it is the same."""


QUEUE_LOADS = (0.5, 0.8)
"""Arrivals at a queue, as a share of its capacity."""

QUEUE_START = 2000
"""Requests until an empty queue has forgotten that it was: they are not counted."""


class Coverage(NamedTuple):
    """How often a bound held."""

    bound: str
    percentile: str
    requests: int
    share: float
    exact: float | None
    factor: float | None = None


def measure(rng: np.random.Generator, runs: int, count: int, share: float, draw: Draw, truth: float) -> float:
    """Return the share of runs whose bound lies at or above the truth."""
    rank = sample_statistics.compute_upper_rank(count, share)
    assert rank is not None
    hits = 0
    for start in range(0, runs, BLOCK):
        values = draw(rng, (min(BLOCK, runs - start), count))
        hits += int((np.partition(values, rank, axis=1)[:, rank] >= truth).sum())
    return hits / runs


def measure_tokens(rng: np.random.Generator, runs: int, count: int, share: float) -> float:
    """Return the share of runs whose bound of inter-token latency lies above the truth.

    The logarithm of a gap is the sum of the answer's and its own normal deviation: over all tokens a lognormal one.
    """
    truth = math.exp(math.sqrt(2) * ANSWER_SPREAD * NormalDist().inv_cdf(share))
    hits = 0
    for _ in range(runs):
        answers = rng.normal(0, ANSWER_SPREAD, (count, 1))
        gaps = np.exp(answers + rng.normal(0, ANSWER_SPREAD, (count, ANSWER_TOKENS)))
        bound = sample_statistics.compute_clustered_bound(gaps.tolist(), share)
        hits += bound is not None and bound >= truth
    return hits / runs


def draw_queue(rng: np.random.Generator, runs: int, count: int, load: float) -> NDArray[np.float64]:
    """Draw the latencies of consecutive requests at one server, in mean services: D. V. Lindley's recursion, 1952."""
    spaces = rng.exponential(1 / load, (runs, QUEUE_START + count))
    services = rng.standard_exponential((runs, QUEUE_START + count))
    walk = np.cumsum(services[:, :-1] - spaces[:, 1:], axis=1)
    waits = np.pad(walk, ((0, 0), (1, 0)))
    waits -= np.minimum.accumulate(waits, axis=1)
    return np.asarray((waits + services)[:, QUEUE_START:])


class QueueCoverage(NamedTuple):
    """How often the bound of a queue held."""

    share: float
    factor: float
    """How many times as large it would have to be to hold as often as it says."""


def measure_queue(rng: np.random.Generator, runs: int, count: int, share: float, load: float) -> QueueCoverage:
    """Measure how often the bound of a percentile lies at or above the truth, for requests of a queue."""
    truth = -math.log(1 - share) / (1 - load)
    rank = sample_statistics.compute_upper_rank(count, share)
    assert rank is not None
    latencies = (draw_queue(rng, min(BLOCK, runs - start), count, load) for start in range(0, runs, BLOCK))
    ratios = np.concatenate([truth / np.partition(values, rank, axis=1)[:, rank] for values in latencies])
    return QueueCoverage(float((ratios <= 1).mean()), float(np.quantile(ratios, sample_statistics.CONFIDENCE)))


def measure_share(rng: np.random.Generator, runs: int, count: int, truth: float) -> float:
    """Return the share of runs whose lower bound of a share, such as goodput, lies below the truth."""
    good, times = np.unique(rng.binomial(count, truth, runs), return_counts=True)
    is_below = [sample_statistics.compute_share_bounds(value, count)[0] <= truth for value in good.tolist()]
    return float(times[is_below].sum()) / runs


def simulate(runs: int) -> Iterator[Coverage]:
    """Simulate every bound."""
    rng = np.random.default_rng(SEED)
    for name, (draw, find_truth) in DISTRIBUTIONS.items():
        for percentile, share in sample_statistics.PERCENTILES.items():
            for count in COUNTS:
                if sample_statistics.compute_upper_rank(count, share) is not None:
                    hit_share = measure(rng, runs, count, share, draw, find_truth(share))
                    yield Coverage(name, percentile, count, hit_share, sample_statistics.compute_coverage(count, share))
    for truth in SHARES:
        for count in COUNTS[1:]:
            yield Coverage("goodput", f"{truth:.1%}", count, measure_share(rng, runs, count, truth), None)
    for percentile, share in sample_statistics.PERCENTILES.items():
        yield Coverage("tokens", percentile, 300, measure_tokens(rng, runs, 300, share), None)
    for load in QUEUE_LOADS:
        for percentile, share in sample_statistics.PERCENTILES.items():
            for count in COUNTS[1:]:
                queue = measure_queue(rng, runs, count, share, load)
                yield Coverage(f"queue at {load:.0%}", percentile, count, queue.share, None, queue.factor)


def main() -> None:
    """Print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{'bound':<14}{'percentile':>11}{'requests':>10}{'coverage':>10}{'exact':>10}{'factor':>10}")
    for row in simulate(runs):
        exact = "" if row.exact is None else f"{row.exact:.2%}"
        factor = "" if row.factor is None else f"{row.factor:.2f}"
        numbers = f"{row.percentile:>11}{row.requests:>10}{row.share:>10.2%}{exact:>10}{factor:>10}"
        print(f"{row.bound:<14}{numbers}", flush=True)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
