"""Chooses the team whose row is next: by priority, then by the teams' weights, then by deadline. Pure functions.

Start-time fair queueing over tokens: a team's clock runs by its tokens divided by its weight, and the team whose clock
is behind is next. A team that comes back after a pause starts at the others' time: it gets its share, no arrears.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A chunk with rows to run."""

    key: int
    """Position in the list of chunks."""

    team: str
    rank: int
    """Of its priority, 0 for the highest."""

    deadline_at: float


class FairShare:
    """The clocks of all teams."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._clocks = dict.fromkeys(weights, 0.0)
        self._active: frozenset[str] = frozenset()

    def choose(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Choose the candidate whose row is next; None if there is none."""
        if not candidates:
            return None
        self._admit(frozenset(candidate.team for candidate in candidates))
        return min(candidates, key=lambda each: (each.rank, self._clocks[each.team], each.deadline_at))

    def charge(self, team: str, tokens: float) -> None:
        """Advance a team's clock; negative if it used less than it was charged."""
        self._clocks[team] += tokens / self._weights[team]

    def _admit(self, teams: frozenset[str]) -> None:
        """Advance the clocks of teams that had no rows to the slowest clock of the others."""
        stayed = teams & self._active
        now = min((self._clocks[team] for team in stayed), default=0.0)
        for team in teams - self._active:
            self._clocks[team] = max(self._clocks[team], now)
        self._active = teams
