"""What a search of deployments is asked, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.catalog.step_times import StepTimes
from llm_serving.engines.memory import Split, count_ranks
from llm_serving.prediction.workload import Workload

METRICS = ("ttft_ms", "itl_ms", "e2e_ms")


class Limit(NamedTuple):
    metric: str
    statistic: str
    """`p95`, or `mean`."""

    ms: float

    def __str__(self) -> str:
        return f"{self.metric.removesuffix('_ms').upper()} {self.statistic} {self.ms:g} ms"


@dataclass(frozen=True)
class Configuration:
    """How each replica runs on a type."""

    instance: Instance
    usd_h: float
    split: Split
    precision: str
    kv_type: str
    batch_tokens: int | None
    """Of a step; None for the engine's own."""
    is_disaggregated: bool = False
    """Whether some replicas read prompts, and others write the answers."""

    @property
    def replicas_per_node(self) -> int:
        """Replicas that one node holds; 0 where one takes several nodes."""
        assert self.instance.accelerators
        return count_ranks(self.instance.accelerators) // self.split.ranks

    def count_nodes(self, replicas: int) -> int:
        if not self.replicas_per_node:
            return replicas * self.split.pipeline
        return math.ceil(replicas / self.replicas_per_node)


Metrics = Mapping[str, Mapping[str, float]]
"""Statistics of each metric, in milliseconds."""


class MeasuredPoint(NamedTuple):
    """One load of a sweep."""

    rate: float
    """Requests a second of each replica; 0 of a closed loop, and where a queue grew or the load was too short."""

    metrics: Metrics

    upper: Metrics
    """Their upper bounds at 95% confidence; infinite where requests failed."""


class Measured(NamedTuple):
    """A sweep of a configuration, which outranks its simulation."""

    configuration: Configuration
    points: Sequence[MeasuredPoint]
    """From the lowest rate on."""

    source: str


Calibrations = Mapping[tuple[str, Split, str], StepTimes]
"""A user's own step times by accelerator, split and precision."""


class Latency(NamedTuple):
    """Percentiles of one metric in milliseconds; `low` and `high` bound the 95th."""

    p50: float
    p95: float
    p99: float
    low: float
    high: float


class Candidate(NamedTuple):
    """A configuration with its replicas, as simulated."""

    configuration: Configuration
    replicas: int
    """Those of prefill beside them are `prefill_replicas`."""
    usd_h: float
    usd_per_million_output_tokens: float
    predicted: Mapping[str, Latency]
    basis: str
    limited_by: str
    gap: float
    """The pessimistic end of the metric nearest to its limit, as a multiple of it; at most 1 where it is met."""
    prefill_replicas: int = 0
    source: str = ""
    """Of what was measured."""

    @property
    def nodes(self) -> int:
        return self.configuration.count_nodes(self.prefill_replicas + self.replicas)


class Rejection(NamedTuple):
    """Why a type is out."""

    instance: str
    reason: str
    limited_by: str


@dataclass
class Result:
    """What a search found."""

    candidates: list[Candidate] = field(default_factory=list)
    """Those that meet the SLO, the cheapest first."""

    rejected: list[Rejection] = field(default_factory=list)
    closest: Candidate | None = None
    """Where none meets it: the one with the smallest gap."""

    floor: str = ""
    """Where none meets it, and none was simulated: why."""

    simulations: int = 0


@dataclass(frozen=True)
class Problem:
    """What is asked."""

    model: Model
    workload: Workload
    limits: Sequence[Limit]
    prices: Sequence[tuple[Instance, float]]
    """Types that may be rented, each with US dollars an hour."""

    max_usd_h: float = math.inf
    top: int = 1
    """Types to find: what costs more than the last of them is not simulated."""
    seed: int = 0
    context: int = 0
    """Tokens of the longest request; 0 for that of the workload."""

    measured: Sequence[Measured] = ()
    calibrations: Calibrations = field(default_factory=dict)
