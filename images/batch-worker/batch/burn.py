"""Burn rate of a deployment's SLO, from its engines' histograms. Pure functions.

Burn is the share of samples above a limit, divided by the share that the limit's percentile allows: at 1 the SLO is
just met. There are two windows, as in "Alerting on SLOs" of Google's SRE workbook: the short one shows that answers are
late now, the long one how many were.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batch.metrics import Histogram
from batch.settings import Objective

RECENT_S, BUDGET_S = 5.0, 60.0
"""Lengths of the two windows, in seconds."""

Scrape = Mapping[str, Mapping[str, Histogram]]
"""Histograms at one time: by metrics page, then by name."""


@dataclass(frozen=True)
class Burn:
    """The largest burn of all objectives in each window; 0 where nothing was answered."""

    recent: float = 0.0
    budget: float = 0.0


class BurnMeter:
    """Measures burn from scrapes, one after the other."""

    def __init__(self, objectives: Iterable[Objective]) -> None:
        self._objectives = tuple(objectives)
        self._scrapes: deque[tuple[float, Scrape]] = deque()
        self._recent_from = -math.inf

    @property
    def metrics(self) -> frozenset[str]:
        """Names of the histograms that a scrape must have."""
        return frozenset(objective.metric for objective in self._objectives)

    def observe(self, scrape: Scrape, now: float) -> Burn:
        """Add a scrape and return the burn. A recent burn above 1 is reported once: it causes one step back."""
        self._scrapes.append((now, scrape))
        while now - self._scrapes[0][0] > BUDGET_S:
            self._scrapes.popleft()
        start = max(now - RECENT_S, self._recent_from)
        recent = next(earlier for at, earlier in self._scrapes if at >= start)
        burn = Burn(
            recent=compute_burn(self._objectives, recent, scrape),
            budget=compute_burn(self._objectives, self._scrapes[0][1], scrape),
        )
        if burn.recent > 1:
            self._recent_from = now
        return burn


def compute_burn(objectives: Iterable[Objective], before: Scrape, after: Scrape) -> float:
    """Return the largest burn of all objectives between two scrapes; 0 without answers."""
    burns = (compute_late_share(objective, before, after) / objective.allowed for objective in objectives)
    return max(burns, default=0.0)


def compute_late_share(objective: Objective, before: Scrape, after: Scrape) -> float:
    """Return the share of samples between two scrapes that are above an objective's limit.

    Pages that are missing from either scrape, and engines that restarted in between, are ignored.
    """
    count = late = 0.0
    for page, histograms in after.items():
        now, then = histograms.get(objective.metric), before.get(page, {}).get(objective.metric)
        if not now or not then:
            continue
        added = {bound: samples - then.get(bound, 0.0) for bound, samples in now.items()}
        if min(added.values()) >= 0:
            count += added[math.inf]
            late += added[math.inf] - estimate_in_time(added, objective.limit_s)
    return late / count if count else 0.0


def estimate_in_time(histogram: Histogram, limit_s: float) -> float:
    """Estimate the samples at or below a limit, linearly between two bounds, like Prometheus' histogram_quantile."""
    low = below = 0.0
    for bound in sorted(histogram):
        if bound > limit_s:
            return below + (histogram[bound] - below) * (limit_s - low) / (bound - low)
        low, below = bound, histogram[bound]
    return below
