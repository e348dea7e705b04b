"""The cheapest deployment that meets an SLO, by simulation; what cannot win is not simulated.

An optimistic bound of each configuration, its busy seconds a request at the best batch, gives the fewest replicas that
can carry the load, and so its least price. Configurations are simulated from the lowest such price on, until that price
exceeds the best one found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from llm_serving.catalog.instances import Instance
from llm_serving.prediction import disaggregation
from llm_serving.prediction.configurations import ALONE, Preparation, Prepared
from llm_serving.prediction.problem import (
    METRICS,
    Candidate,
    Latency,
    Limit,
    Measured,
    MeasuredPoint,
    Problem,
    Rejection,
    Result,
)
from llm_serving.prediction.simulation import (
    Limits,
    Outcome,
    Request,
    Simulation,
    Step,
    compute_percentile,
    compute_weighted_percentile,
)
from llm_serving.prediction.step_time import StepTime
from llm_serving.prediction.workload import Workload

REQUESTS = 800
"""Simulated for each answer: p95 of fewer is noise."""

SCOUTS = 250
"""Simulated first: what misses its limits by far with these is out."""

_SMALLER_STEPS = (2048, 512)
"""Tokens of a step that are tried beside the engine's own: smaller ones shorten the gaps that prompts make."""

_MAX_REPLICAS = 4096

_CLEARLY = 1.15
"""Multiple of a limit at which a scout's answer stands."""

_HALVINGS = 7
"""Of the rates between none and the most that a replica carries: to a hundredth."""

_CUT_OFF = 3.0
"""Multiple of the time of arrivals after which what is still under way shows an overload."""


def search(problem: Problem) -> Result:
    """Find the deployments that meet the SLO."""
    return _Search(problem).run()


def find_highest_rate(step: Step, limits: Limits, workload: Workload, slo: Sequence[Limit], most: float) -> float:
    """Return the highest rate at which one replica meets an SLO, by halving; 0 where none of `most` shows it."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        requests = replace(workload, rate=middle).draw(len(workload.lengths), 1, 0)
        outcome = Simulation(step, limits).run(requests, limit_s=_CUT_OFF * (requests[-1].at_s + 1))
        gap = max(compute_statistic(outcome, limit) / limit.ms for limit in slo) if outcome.is_complete else math.inf
        low, high = (middle, high) if gap <= 1 else (low, middle)
    return low


class _Search:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._result = Result()
        self._best_by_type: dict[str, float] = {}
        self._reasons: dict[str, list[tuple[float, Rejection]]] = {}
        self._met: list[Candidate] = []
        self._missed: list[tuple[float, Prepared, int, Outcome]] = []
        self._measured = [measured.configuration for measured in problem.measured]
        self._read: dict[tuple[StepTime, int, int, float], Outcome] = {}

    def run(self) -> Result:
        for measured in self._problem.measured:
            self._add_measured(measured)
        for entry in sorted(Preparation(self._problem, self._reject).prepare_all(), key=_rank):
            if entry.least_usd_h > self._get_ceiling(entry):
                self._reject_dearer(entry)
            else:
                self._try(entry)
        self._conclude()
        return self._result

    def _get_ceiling(self, entry: Prepared) -> float:
        """Return the price above which a configuration cannot be among those to find."""
        prices = sorted(self._best_by_type.values())
        last = prices[self._problem.top - 1] if len(prices) >= self._problem.top else math.inf
        own = self._best_by_type.get(entry.configuration.instance.name, math.inf)
        # At the same price the one that was found first changes less of the model.
        return min(last, own * (1 - 1e-9), self._problem.max_usd_h)

    # What was measured

    def _add_measured(self, measured: Measured) -> None:
        """Add the replicas that a sweep shows to be enough: at a load that it measured, or less."""
        own, rate = measured.configuration, self._problem.workload.rate
        passing = list(itertools.takewhile(lambda point: self._compute_measured_gap(point) <= 1, measured.points))
        if not passing:
            reason = f"{measured.source} shows that the lowest load measured misses the SLO"
            self._reject(own.instance, reason, "ttft", 0.0)
            return
        replicas = max(1, math.ceil(rate / passing[-1].rate - 1e-9))
        usd_h = own.count_nodes(replicas) * own.usd_h
        if usd_h > self._problem.max_usd_h:
            ceiling = self._problem.max_usd_h
            reason = f"{_format_replicas(replicas)}, as measured, for {usd_h:,.2f} USD/h, more than {ceiling:,.2f}"
            self._reject(own.instance, reason, "price", usd_h)
            return
        above = next(point for point in passing if point.rate * replicas >= rate * (1 - 1e-9))
        below = next((point for point in reversed(passing) if point.rate * replicas <= rate), above)
        gap_metric = max(self._problem.limits, key=lambda limit: above.upper[limit.metric][limit.statistic] / limit.ms)
        self._add(
            Candidate(
                own,
                replicas,
                usd_h,
                self._compute_usd_per_million_output_tokens(usd_h),
                {metric: _interpolate(below, above, metric, rate / replicas) for metric in METRICS},
                "measured",
                gap_metric.metric.removesuffix("_ms"),
                self._compute_measured_gap(above),
                source=measured.source,
            )
        )

    def _compute_measured_gap(self, point: MeasuredPoint) -> float:
        return max(point.upper[limit.metric][limit.statistic] / limit.ms for limit in self._problem.limits)

    def _add(self, candidate: Candidate) -> None:
        self._met.append(candidate)
        name = candidate.configuration.instance.name
        self._best_by_type[name] = min(candidate.usd_h, self._best_by_type.get(name, math.inf))

    def _compute_usd_per_million_output_tokens(self, usd_h: float) -> float:
        workload = self._problem.workload
        return usd_h / (3600 * workload.rate * workload.mean_output) * 1e6

    # Simulation

    def _try(self, entry: Prepared) -> None:
        """Try a configuration with the engine's own steps, and with smaller ones where these need more replicas."""
        if entry.prefill:
            self._try_prefill(entry)
            return
        limits_gaps = any(limit.metric in ("itl_ms", "e2e_ms") for limit in self._problem.limits)
        sizes = [size for size in _SMALLER_STEPS if size < entry.limits.batch_tokens] if limits_gaps else []
        for size in (None, *sizes):
            if size:
                configuration = replace(entry.configuration, batch_tokens=size)
                limits = entry.limits._replace(batch_tokens=size)
                entry = entry._replace(configuration=configuration, limits=limits)
            if self._find_replicas(entry) == entry.least_replicas:
                return

    def _try_prefill(self, entry: Prepared) -> None:
        """Try more prefill replicas, until prompts hardly wait for them."""
        for prefill in range(entry.prefill, 2 * entry.prefill + 2):
            entry = entry._replace(prefill=prefill)
            if entry.least_usd_h > self._get_ceiling(entry):
                self._reject_dearer(entry)
                return
            if self._meets(self._read_prompts(entry, REQUESTS, entry.interval.high)):
                self._find_replicas(entry)

    def _find_replicas(self, entry: Prepared) -> int | None:
        """Return the fewest replicas that meet the SLO at a price that can win; None where there are none."""
        if entry.configuration in self._measured:
            return None
        ceiling = self._get_ceiling(entry)
        low, replicas = entry.least_replicas - 1, entry.least_replicas
        last: Outcome | None = None
        while True:
            if entry.compute_usd_h(replicas) > ceiling:
                self._record_missed(entry, low, last)
                return None
            last = self._simulate(entry, replicas)
            if self._meets(last):
                break
            if replicas >= _MAX_REPLICAS:
                self._record_missed(entry, replicas, last)
                return None
            low, replicas = replicas, max(replicas + 1, math.ceil(replicas * 1.4))
        met = last
        while replicas - low > 1:
            middle = (replicas + low) // 2
            outcome = self._simulate(entry, middle)
            if self._meets(outcome):
                replicas, met = middle, outcome
            else:
                low = middle
        self._add(self._describe(entry, replicas, met))
        return replicas

    def _simulate(self, entry: Prepared, replicas: int) -> Outcome:
        """Return what becomes of the load at the pessimistic end; of a few requests, where these show a miss."""
        scout = self._play(entry, replicas, SCOUTS, entry.interval.high)
        if not scout.is_complete or self._compute_gap(scout) > _CLEARLY:
            return scout
        return self._play(entry, replicas, REQUESTS, entry.interval.high)

    def _play(self, entry: Prepared, replicas: int, count: int, share: float) -> Outcome:
        """Return what becomes of requests to one of the replicas whose steps take `share` of what is predicted."""
        requests = self._draw(replicas * entry.configuration.split.lanes, count)
        if entry.prefill:
            read = self._read_prompts(entry, count, share)
            if not read.is_complete:
                return read
            requests = list(disaggregation.hand_over(requests, read.ttft_s, share * entry.token_s))
        return self._run(entry, requests, share)

    def _read_prompts(self, entry: Prepared, count: int, share: float) -> Outcome:
        """Return what becomes of requests in one of the prefill replicas, which write one token each."""
        key = (entry.step, entry.prefill, count, share)
        if key not in self._read:
            requests = [request._replace(output_tokens=1) for request in self._draw(entry.prefill, count)]
            self._read[key] = self._run(entry, requests, share)
        return self._read[key]

    def _draw(self, replicas: int, count: int) -> list[Request]:
        return self._problem.workload.draw(count, replicas, self._problem.seed)

    def _run(self, entry: Prepared, requests: Sequence[Request], share: float) -> Outcome:
        self._result.simulations += 1
        limit_s = _CUT_OFF * (requests[-1].at_s + 1)
        return Simulation(entry.step.stretch(share), entry.limits).run(requests, limit_s=limit_s)

    def _meets(self, outcome: Outcome) -> bool:
        return outcome.is_complete and self._compute_gap(outcome) <= 1

    def _compute_gap(self, outcome: Outcome) -> float:
        """Return how near an outcome comes to a limit, as a multiple of it."""
        if not outcome.e2e_s:
            return math.inf
        nearest = self._find_nearest(outcome)
        return compute_statistic(outcome, nearest) / nearest.ms if nearest else 0.0

    def _find_nearest(self, outcome: Outcome) -> Limit | None:
        """Return the limit that an outcome comes nearest to, or misses by most."""
        limits = self._problem.limits
        return max(limits, key=lambda limit: compute_statistic(outcome, limit) / limit.ms, default=None)

    def _describe(self, entry: Prepared, replicas: int, pessimistic: Outcome) -> Candidate:
        """Return a configuration with what it is predicted to do in the middle and at both ends."""
        configuration = entry.configuration
        middle = self._play(entry, replicas, REQUESTS, 1.0)
        optimistic = self._play(entry, replicas, REQUESTS, entry.interval.low)
        ends = ((middle, "p50"), (middle, "p95"), (middle, "p99"), (optimistic, "p95"), (pessimistic, "p95"))
        predicted = {
            metric: Latency(*(1000 * _compute_latency(outcome, metric, statistic) for outcome, statistic in ends))
            for metric in METRICS
        }
        usd_h = entry.compute_usd_h(replicas)
        return Candidate(
            configuration,
            replicas,
            usd_h,
            self._compute_usd_per_million_output_tokens(usd_h),
            predicted,
            entry.step.basis,
            self._find_limit(pessimistic),
            self._compute_gap(pessimistic),
            entry.prefill,
        )

    def _find_limit(self, outcome: Outcome) -> str:
        """Return what keeps one replica from carrying more: the cache, or the metric that is nearest its limit."""
        if outcome.preemptions or outcome.busy_share > 0.95:
            return "memory"
        nearest = self._find_nearest(outcome)
        return nearest.metric.removesuffix("_ms") if nearest else "price"

    # Reasons

    def _record_missed(self, entry: Prepared, replicas: int, outcome: Outcome | None) -> None:
        if outcome is None:
            self._reject_dearer(entry)
            return
        count = _format_replicas(entry.prefill + replicas)
        missed = self._find_nearest(outcome) if outcome.e2e_s else None
        if not outcome.is_complete or not missed:
            reason, name = f"{count} cannot carry the load", "memory" if outcome.preemptions else "ttft"
        else:
            ms, name = compute_statistic(outcome, missed), missed.metric.removesuffix("_ms")
            reason = f"{count} may have {ms:,.3g} ms, more than {missed}"
            self._missed.append((self._compute_gap(outcome), entry, replicas, outcome))
        self._reject(entry.configuration.instance, reason, name, entry.least_usd_h)

    def _reject_dearer(self, entry: Prepared) -> None:
        price, best = entry.least_usd_h, min([*self._best_by_type.values(), self._problem.max_usd_h])
        count = _format_replicas(entry.prefill + entry.least_replicas)
        reason = f"at least {count} for {price:,.2f} USD/h, more than {best:,.2f}"
        self._reject(entry.configuration.instance, reason, "price", price)

    def _reject(self, instance: Instance, reason: str, limited_by: str, rank: float) -> None:
        self._reasons.setdefault(instance.name, []).append((rank, Rejection(instance.name, reason, limited_by)))

    def _conclude(self) -> None:
        cheapest: dict[str, Candidate] = {}
        for candidate in sorted(self._met, key=lambda entry: (entry.usd_h, entry.gap)):
            cheapest.setdefault(candidate.configuration.instance.name, candidate)
        self._result.candidates = list(cheapest.values())
        if not cheapest and self._missed:
            _, entry, replicas, outcome = min(self._missed, key=lambda row: row[0])
            self._result.closest = self._describe(entry, replicas, outcome)
        for name, reasons in self._reasons.items():
            if name not in cheapest:
                self._result.rejected.append(min(reasons, key=lambda entry: entry[0])[1])
        self._result.floor = self._describe_floor()

    def _describe_floor(self) -> str:
        """Return what no hardware lifts, or that none is left."""
        rows = [row for reasons in self._reasons.values() for row in reasons if math.isfinite(row[0])]
        if any(rejection.limited_by == "price" for _, rejection in rows):
            return "what may meet it costs more. Fix: raise --max-usd-per-hour."
        alone = [row for row in rows if row[1].reason.startswith(ALONE)]
        return f"on the fastest one {min(alone)[1].reason}" if alone else "none of them holds the model"


def _interpolate(below: MeasuredPoint, above: MeasuredPoint, metric: str, rate: float) -> Latency:
    """Return a metric at a rate between two measured ones, which bound it."""
    share = (rate - below.rate) / (above.rate - below.rate) if above.rate > below.rate else 1.0
    low, high = below.metrics[metric], above.metrics[metric]
    middle = {name: low[name] + share * (high[name] - low[name]) for name in ("p50", "p95", "p99")}
    return Latency(**middle, low=min(low["p95"], middle["p95"]), high=max(above.upper[metric]["p95"], middle["p95"]))


def _format_replicas(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas > 1 else ''}"


def _rank(entry: Prepared) -> tuple[float, int, bool, bool, bool, bool, int]:
    """Return the order in which configurations are tried: the cheapest first, then what changes least."""
    own = entry.configuration
    is_changed = (own.is_disaggregated, own.precision != "bf16", own.kv_type != "auto", own.batch_tokens is not None)
    return (entry.least_usd_h, own.split.data, *is_changed, own.split.ranks)


def compute_statistic(outcome: Outcome, limit: Limit) -> float:
    """Return a metric of an outcome as a limit counts it, in milliseconds."""
    return 1000 * _compute_latency(outcome, limit.metric, limit.statistic)


def _compute_latency(outcome: Outcome, metric: str, statistic: str) -> float:
    percent = 0.0 if statistic == "mean" else float(statistic.removeprefix("p"))
    if metric == "itl_ms":
        if percent:
            return compute_weighted_percentile(outcome.gaps, percent) if outcome.gaps else 0.0
        return sum(gap * count for gap, count in outcome.gaps) / max(1, sum(count for _, count in outcome.gaps))
    values = outcome.ttft_s if metric == "ttft_ms" else outcome.e2e_s
    return compute_percentile(values, percent) if percent else math.fsum(values) / len(values)
