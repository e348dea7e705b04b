"""Tokens of teams by day, over all workers: each worker writes its own object."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType

from batch import layout
from batch.layout import Layout
from batch.settings import Settings
from batch.store import Store

Counts = Mapping[str, tuple[str, int]]
"""ETag and tokens of each worker's object, by its key."""


class Usage:
    """Tokens that teams used today (UTC). Every call except `add` and `is_spent` blocks: call it in a thread."""

    def __init__(self, store: Store, settings: Settings, now: Callable[[], float]) -> None:
        self._store, self._keys, self._worker, self._now = store, Layout(settings.prefix), settings.worker, now
        self._teams = tuple(settings.teams)
        self._quotas = {name: team.tokens_per_day for name, team in settings.teams.items() if team.tokens_per_day}
        self._date = ""
        self._own: dict[str, int] = defaultdict(int)
        self._saved: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._known: dict[str, Counts] = {}
        """What was read of each team."""

    def add(self, team: str, tokens: int) -> None:
        self._own[team] += tokens

    def is_spent(self, team: str) -> bool:
        """Return whether a team has used its tokens of today."""
        quota = self._quotas.get(team)
        return quota is not None and self._own[team] + self._others.get(team, 0) >= quota

    def exchange(self, *, is_needed: bool = True) -> None:
        """Write this worker's counts, and read those of the others.

        Args:
            is_needed: whether anybody asks what is spent: lists of S3 that nobody needs cost as much as others.
        """
        date = format_date(self._now())
        if date != self._date:
            self._start_day(date)
        for team, tokens in list(self._own.items()):
            if tokens != self._saved.get(team):
                self._store.write_json(self._get_own_key(team, date), {"tokens": tokens})
                self._saved[team] = tokens
        for team in self._quotas if is_needed else ():
            counts = read_day(self._store, self._keys, team, date, self._known.get(team, {}))
            self._known[team], own = counts, self._get_own_key(team, date)
            self._others[team] = sum(count for key, (_, count) in counts.items() if key != own)

    def _start_day(self, date: str) -> None:
        if self._date:
            self._own.clear()
        else:  # a restarted worker continues its earlier counts, of all teams or, after an error, of none yet
            earlier = {team: self._store.read_json(self._get_own_key(team, date)) for team in self._teams}
            for team, stored in earlier.items():
                if stored:
                    self._own[team] += stored.value["tokens"]
        self._date, self._saved, self._others, self._known = date, {}, {}, {}

    def _get_own_key(self, team: str, date: str) -> str:
        return f"{self._keys.build(layout.USAGE, team, date)}{self._worker}.json"


def format_date(now: float) -> str:
    """Format the day (UTC) of a time, as in keys."""
    return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d")


def read_day(store: Store, keys: Layout, team: str, date: str, last_counts: Counts = MappingProxyType({})) -> Counts:
    """Read the tokens of a team on a day; of what an earlier call returned, only objects that changed since."""
    etags = {entry["key"]: entry["etag"] for entry in store.list_objects(keys.build(layout.USAGE, team, date))}
    return store.read_changed(etags, last_counts, lambda count: int(count["tokens"]))
