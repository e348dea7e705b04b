"""What teams used and what it cost: the fleet's price, shared by the engines' own counters. No output.

While a deployment's counters move, its price an hour is shared by tokens: each team pays for the tokens of its
requests, as LiteLLM recorded them, or the deployment's own routers where these ask for keys. The rest of the engines'
tokens is `(direct)`: requests that nobody recorded, and records lost with a killed gateway. While the counters stand
still, its price is `(idle)`. So the rows add up to what the deployment costs. What has no price an hour (a URL, a mock)
costs the list price of its route.
"""

from __future__ import annotations

import calendar
import datetime
import itertools
import math
import operator
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from llm_serving.kinds.gateway import database
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.litellm_settings import EMBEDDING, MILLION, parse_name

DIRECT, IDLE = "(direct)", "(idle)"
"""In place of a team's name: tokens that no team's request explains, and time without tokens."""

COLUMNS = ("team", "user", "model", "deployment")
"""What rows can be grouped by."""

CACHE, REFUSED = "(cache)", "(refused)"
"""In place of a deployment's name, and the second of a model's too: requests that the gateway answered itself."""

REFUSAL = "''type'': ''(?:personal_data|prompt_too_long)''|Violated guardrail policy"
"""What the messages of such refusals have, a regular expression as SQL writes it between quotes."""

_COUNTS = ("requests", "input_tokens", "output_tokens")
NUMBERS = (*_COUNTS, "usd", "usd_per_million_tokens")
POLICY_NUMBERS = ("cached_requests", "similar_requests", "saved_tokens", "masked", "blocked")
"""What each row has of the gateway's own answers: from its cache, those to questions of other words among them, with
the tokens of these, and guardrails."""

HIT_RATE = "hit_rate"
"""Share of a row's requests that the cache answered."""


def _format_growth(name: str) -> str:
    """Format by how much a counter grew since the row before; it begins at 0 again where its router started anew."""
    before = f"coalesce(lag({name}) OVER earlier, 0)"
    return f"CASE WHEN {name} >= {before} THEN {name} - {before} ELSE {name} END AS {name}"


class Period(NamedTuple):
    """A time, in seconds since 1970."""

    start: float
    end: float = math.inf

    def format_bounds(self) -> dict[str, str]:
        return {name: f"to_timestamp('{second}'::float8)" for name, second in self._asdict().items()}


def build_last(seconds: float) -> Period:
    """Build the time of the last seconds."""
    return Period(time.time() - seconds)


def build_month(month: datetime.date) -> Period:
    """Build the calendar month, UTC, of a day."""
    first = month.replace(day=1)
    following = first + datetime.timedelta(days=calendar.monthrange(first.year, first.month)[1])
    return Period(*(float(calendar.timegm(day.timetuple())) for day in (first, following)))


class Records(NamedTuple):
    """What the database has of a time."""

    requests: Sequence[Mapping[str, Any]]
    """Of LiteLLM: a row by team, model and backend."""

    meter: Sequence[Mapping[str, Any]]
    """Of the meter: a row by deployment and time, with all tokens that its engines made since the first."""

    door: Sequence[Mapping[str, Any]] = ()
    """Of deployments that ask for keys themselves: a row by deployment, team and model."""


class Metered(NamedTuple):
    """A deployment over a time."""

    busy_usd: float
    idle_usd: float
    tokens: float
    """Input and output together, of the engines' own counters."""


class Bill(NamedTuple):
    """What the rows of a time add up to."""

    fleet_usd: float
    """The fleet's price of the deployments whose price an hour is known."""

    list_usd: float
    """List price of requests to all others."""


class _Line(NamedTuple):
    """What one group used."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    cached_requests: int = 0
    similar_requests: int = 0
    saved_tokens: int = 0
    masked: int = 0
    blocked: int = 0

    def add(self, other: _Line) -> _Line:
        return _Line(*map(operator.add, self, other))


def read(login: Login, period: Period, gateway: str) -> Records:
    """Read the records of a time.

    Args:
        gateway: its name, which is the team of its own key for deployments that ask for keys: what it sent there is in
            its own records.

    Raises:
        Unavailable: the database does not answer.
    """
    values = {"gateway": gateway, "cache": CACHE, "refused": REFUSED, "embedding": EMBEDDING, "refusal": REFUSAL}
    values |= {**period.format_bounds(), **{name: _format_growth(name) for name in _COUNTS}}
    names = ("usage_requests", "usage_meter", "usage_door")
    return Records(*(database.query(login, database.read_statement(name, **values)) for name in names))


def build_rows(records: Records, by: Sequence[str]) -> list[dict[str, Any]]:
    """Build the rows of the usage: teams in order, then what no team's requests explain, then idle time.

    Args:
        by: columns of COLUMNS.
    """
    lines: defaultdict[tuple[str, ...], _Line] = defaultdict(_Line)
    for group, line in _list_lines(records):
        key = tuple(group[column] for column in by)
        lines[key] = lines[key].add(line)
    ordered = sorted(lines.items(), key=lambda item: [(name == IDLE, name == DIRECT, name) for name in item[0]])
    return [_build_row(dict(zip(by, key, strict=True)), line) for key, line in ordered]


def compute_bill(records: Records) -> Bill:
    """Compute what was paid, whoever used it."""
    metered = measure(records.meter)
    fleet_usd = sum(times.busy_usd + times.idle_usd for times in metered.values())
    others = (row["list_usd"] for row in records.requests if parse_name(row["backend"]) not in metered)
    return Bill(fleet_usd, sum(others))


def _build_row(group: dict[str, str], line: _Line) -> dict[str, Any]:
    tokens = line.input_tokens + line.output_tokens
    return {
        **group,
        "requests": line.requests,
        "input_tokens": line.input_tokens,
        "output_tokens": line.output_tokens,
        "usd": round(line.usd, 9),
        "usd_per_million_tokens": round(MILLION * line.usd / tokens, 6) if tokens else None,
        **{name: getattr(line, name) for name in POLICY_NUMBERS},
        HIT_RATE: round(line.cached_requests / line.requests, 4) if line.requests else None,
    }


def _list_lines(records: Records) -> Iterator[tuple[dict[str, str], _Line]]:
    """List what each team used of each backend, and of each metered deployment what is left."""
    metered, recorded_tokens = measure(records.meter), defaultdict[str, float](float)
    for name, row, _ in _list_recorded(records):
        recorded_tokens[name] += row["input_tokens"] + row["output_tokens"]
    totals = {name: max(times.tokens, recorded_tokens[name], 1.0) for name, times in metered.items()}
    for name, row, list_usd in _list_recorded(records):
        tokens = row["input_tokens"] + row["output_tokens"]
        usd = metered[name].busy_usd * tokens / totals[name] if name in metered else list_usd
        group = {"team": row["team"], "user": row.get("user", ""), "model": row["model"], "deployment": name}
        policies = [row.get(number, 0) for number in POLICY_NUMBERS]  # routers have none, nor an image of before
        requests, input_tokens, output_tokens = (round(row[count]) for count in _COUNTS)
        yield group, _Line(requests, input_tokens, output_tokens, usd, *policies)
    for name, times in metered.items():
        unrecorded = max(0.0, times.tokens - recorded_tokens[name])
        for nobody, usd in ((DIRECT, times.busy_usd * unrecorded / totals[name]), (IDLE, times.idle_usd)):
            yield {"team": nobody, "user": nobody, "model": nobody, "deployment": name}, _Line(usd=usd)


def _list_recorded(records: Records) -> Iterator[tuple[str, Mapping[str, Any], float]]:
    """List each record with its deployment, and what it costs where no price an hour is known."""
    yield from ((parse_name(row["backend"]), row, row["list_usd"]) for row in records.requests)
    yield from ((row["deployment"], row, 0.0) for row in records.door)


def measure(rows: Iterable[Mapping[str, Any]]) -> dict[str, Metered]:
    """Measure each deployment between its first row and its last."""
    by_deployment: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_deployment[row["deployment"]].append(row)
    return {name: _measure(own) for name, own in by_deployment.items() if len(own) > 1}


def _measure(rows: Sequence[Mapping[str, Any]]) -> Metered:
    busy_usd, idle_usd = 0.0, 0.0
    for before, after in itertools.pairwise(rows):
        usd = before["usd_h"] * (after["at"] - before["at"]) / 3600
        if after["tokens"] == before["tokens"]:
            idle_usd += usd
        else:
            busy_usd += usd
    return Metered(busy_usd, idle_usd, rows[-1]["tokens"]["all"] - rows[0]["tokens"]["all"])
