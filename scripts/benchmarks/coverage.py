"""How often the bounds of a validation hold: simulated runs of known distributions.

    python -m scripts.benchmarks.coverage [RUNS]

Prints, for each distribution, percentile and number of requests, the share of runs whose bound lay above the true
percentile; nominal is 95%. A bound of one value a request is an order statistic, so that its share is the nominal one
rounded up to the next rank, `exact`. Tokens of one answer depend on each other: their bound is an approximation. The
bound of a share (goodput, errors) is exact or wider.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import NamedTuple

from llm_serving.validation import sample_statistics

COUNTS = (59, 300, 1000, 3000)

DISTRIBUTIONS: dict[str, tuple[Callable[[random.Random], float], Callable[[float], float]]] = {
    "exponential": (lambda rng: rng.expovariate(1), lambda share: -math.log(1 - share)),
    "lognormal": (lambda rng: rng.lognormvariate(0, 1), lambda share: math.exp(NormalDist().inv_cdf(share))),
    "pareto": (lambda rng: rng.paretovariate(1.5), lambda share: (1 - share) ** (-1 / 1.5)),
}
"""How to draw a value, and the true percentile."""

ANSWER_TOKENS = 16
ANSWER_SPREAD = 0.5
"""Standard deviation of the logarithm of an answer's own speed; that of a token within it is the same."""


class Coverage(NamedTuple):
    """How often a bound held."""

    bound: str
    percentile: str
    requests: int
    share: float
    exact: float | None


def measure(runs: int, count: int, share: float, draw: Callable[[random.Random], float], truth: float) -> float:
    """Return the share of runs whose bound lies above the truth."""
    rng = random.Random(f"{count}/{share}")
    rank = sample_statistics.compute_upper_rank(count, share)
    assert rank is not None
    # Enough to know where the bound lies: it is above the truth if at most `rank` values are below that.
    return sum(sum(draw(rng) < truth for _ in range(count)) <= rank for _ in range(runs)) / runs


def measure_tokens(runs: int, count: int, share: float) -> float:
    """Return the share of runs whose bound of inter-token latency lies above the truth.

    The logarithm of a gap is the sum of the answer's and its own normal deviation: over all tokens a lognormal one.
    """
    rng = random.Random(f"tokens/{count}/{share}")
    truth = math.exp(math.sqrt(2) * ANSWER_SPREAD * NormalDist().inv_cdf(share))
    held = 0
    for _ in range(runs):
        answers = [rng.gauss(0, ANSWER_SPREAD) for _ in range(count)]
        clusters = [
            [math.exp(answer + rng.gauss(0, ANSWER_SPREAD)) for _ in range(ANSWER_TOKENS)] for answer in answers
        ]
        bound = sample_statistics.compute_clustered_bound(clusters, share)
        held += bound is not None and bound >= truth
    return held / runs


def measure_share(runs: int, count: int, truth: float) -> float:
    """Return the share of runs whose lower bound of a share, such as goodput, lies below the truth."""
    rng = random.Random(f"share/{count}/{truth}")
    bounds: dict[int, float] = {}
    held = 0
    for _ in range(runs):
        good = sum(rng.random() < truth for _ in range(count))
        if good not in bounds:
            bounds[good] = sample_statistics.compute_share_bounds(good, count)[0]
        held += bounds[good] <= truth
    return held / runs


def simulate(runs: int) -> Iterator[Coverage]:
    """Simulate every bound, the tokens with a tenth of the runs: each run takes as long as a hundred others."""
    for name, (draw, find_truth) in DISTRIBUTIONS.items():
        for percentile, share in sample_statistics.PERCENTILES.items():
            for count in COUNTS:
                if sample_statistics.compute_upper_rank(count, share) is not None:
                    held = measure(runs, count, share, draw, find_truth(share))
                    yield Coverage(name, percentile, count, held, sample_statistics.compute_coverage(count, share))
    for truth in (0.99, 0.999):
        yield Coverage("goodput", f"{truth:.1%}", 1000, measure_share(runs, 1000, truth), None)
    for percentile in ("p50", "p95"):
        held = measure_tokens(max(1, runs // 10), 300, sample_statistics.PERCENTILES[percentile])
        yield Coverage("tokens", percentile, 300, held, None)


def main() -> None:
    """Print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{'bound':<14}{'percentile':>11}{'requests':>10}{'coverage':>10}{'exact':>10}")
    for row in simulate(runs):
        exact = "" if row.exact is None else f"{row.exact:.2%}"
        print(f"{row.bound:<14}{row.percentile:>11}{row.requests:>10}{row.share:>10.2%}{exact:>10}", flush=True)


if __name__ == "__main__":
    main()
