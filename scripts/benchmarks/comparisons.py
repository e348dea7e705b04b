"""How often `blueprint compare` calls equal services different, and sees that one is slower: simulated.

    python -m scripts.benchmarks.comparisons [PAIRS]

A queue before one server at half its capacity, whose answers have speeds of their own, on a machine whose speed differs
from run to run. Groups are five runs on each side.
"""

from __future__ import annotations

import dataclasses
import random
import sys

from llm_serving import program
from llm_serving.validation import comparison
from llm_serving.validation.answer import Gap, Sample
from llm_serving.validation.validation_run import ValidationRun

SEED = 20261124
ARRIVALS, SERVED = 40.0, 80.0
"""Requests a second."""

ANSWER_SPREAD, TOKEN_SPREAD = 0.3, 0.3
"""Standard deviations of the logarithm of an answer's speed, and of a gap within it."""

UNREST = (0.0, 0.015, 0.03, 0.05, 0.2)
"""Standard deviations of the logarithm of the machine's speed from run to run."""

SLOWER = (1.1, 1.15, 1.2)
SECONDS = (15, 60)
GROUP = 5


def simulate(rng: random.Random, seconds: float, factor: float = 1.0, unrest: float = 0.0) -> ValidationRun:
    """Return a run of a service that takes `factor` times as long, on a machine of that unrest."""
    factor *= rng.lognormvariate(0, unrest)
    due = free = 0.0
    samples: list[Sample] = []
    while (due := due + rng.expovariate(ARRIVALS)) < seconds:
        free = max(free, due) + factor * rng.expovariate(SERVED)
        ttft_ms, answer = factor * 20 + 1000 * (free - due), factor * rng.lognormvariate(0, ANSWER_SPREAD)
        gaps = [Gap(3 * answer * rng.lognormvariate(0, TOKEN_SPREAD), 1) for _ in range(rng.randint(8, 16))]
        e2e_ms = ttft_ms + sum(gap.ms for gap in gaps)
        samples.append(
            Sample(len(samples), due, ttft_ms=ttft_ms, e2e_ms=e2e_ms, gaps=gaps, output_tokens=len(gaps) + 1)
        )
    settings = {"traffic": {}, "slo": {"ttft_ms": {"p95": 300}}, "target": "local", "model": "tiny"}
    return ValidationRun("run", {"duration_s": seconds, "settings": settings}, samples)


def simulate_group(rng: random.Random, seconds: float, factor: float = 1.0, unrest: float = 0.0) -> ValidationRun:
    """Return several runs that count together."""
    first, *others = (simulate(rng, seconds, factor, unrest) for _ in range(GROUP))
    return dataclasses.replace(first, repeats=others)


def count_differences(pairs: int, seconds: float, factor: float, unrest: float, *, groups: bool = False) -> float:
    """Return the share of pairs that differ, of which the second takes `factor` times as long."""
    rng, build = random.Random(SEED), simulate_group if groups else simulate
    compared = (
        comparison.compare(build(rng, seconds, 1.0, unrest), build(rng, seconds, factor, unrest)) for _ in range(pairs)
    )
    return sum(entry.verdict != comparison.NONE for entry in compared) / pairs


def main() -> None:
    """Print the tables."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    few = pairs // (2 * GROUP)
    print(f"{'machine differs by':<20}{'single, equal':>15}{'groups, equal':>15}{'groups, 20% slower':>20}")
    for unrest in UNREST:
        single = count_differences(pairs, 15, 1.0, unrest)
        equal, slower = (count_differences(few, 15, factor, unrest, groups=True) for factor in (1.0, 1.2))
        print(f"{unrest:<20.1%}{single:>15.1%}{equal:>15.1%}{slower:>20.1%}", flush=True)
    print(f"{'single, slower by':<20}" + "".join(f"{seconds:>13} s" for seconds in SECONDS))
    for factor in SLOWER:
        shares = (count_differences(pairs * 7 // seconds, seconds, factor, 0.0) for seconds in SECONDS)
        print(f"{factor - 1:<20.0%}" + "".join(f"{share:>15.1%}" for share in shares), flush=True)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
