"""The requests that a deployment gets, drawn for one of its replicas."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from llm_serving.prediction.simulation import Request


class Length(NamedTuple):
    """What one request has."""

    input_tokens: int
    output_tokens: int
    group: int = 0
    shared_tokens: int = 0


@dataclass(frozen=True)
class Workload:
    """Arrivals at all replicas together, in turns: a router that looks at load spreads them as evenly."""

    rate: float
    """Requests a second."""

    lengths: Sequence[Length]
    """Of requests, in the order of a trace, or drawn beforehand."""

    times: Sequence[float] = ()
    """When the requests of a trace came, in seconds."""

    burstiness: float = 1.0
    """Shape of the gamma distribution between arrivals; infinity where they are constant."""

    @cached_property
    def mean_input(self) -> float:
        return math.fsum(length.input_tokens for length in self.lengths) / len(self.lengths)

    @cached_property
    def mean_output(self) -> float:
        return math.fsum(length.output_tokens for length in self.lengths) / len(self.lengths)

    @cached_property
    def mean_shared(self) -> float:
        """Mean tokens that a prompt's beginning shares with others."""
        return math.fsum(length.shared_tokens for length in self.lengths) / len(self.lengths)

    @property
    def mean_own(self) -> int:
        """Mean tokens of a request, prompt and answer, that it shares with no other."""
        return max(1, round(self.mean_input - self.mean_shared + self.mean_output))

    @cached_property
    def longest(self) -> int:
        """Most tokens of a request."""
        return max(length.input_tokens + length.output_tokens for length in self.lengths)

    def draw(self, count: int, replicas: int, seed: int) -> list[Request]:
        """Return the first requests of one of so many replicas."""
        if self.times:
            rows = range(seed % replicas, len(self.times), replicas)
            return [Request(self.times[row], *self.lengths[row]) for row in rows[:count]]
        drawing = random.Random(seed)
        at_s, requests, size = 0.0, [], len(self.lengths)
        shape, rate = self.burstiness * replicas, self.rate * self.burstiness
        first = drawing.randrange(size)
        for number in range(count):
            requests.append(Request(at_s, *self.lengths[(first + number) % size]))
            constant = math.isinf(self.burstiness)
            at_s += replicas / self.rate if constant else drawing.gammavariate(shape, 1 / rate)
        return requests
