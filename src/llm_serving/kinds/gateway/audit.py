"""The audit of a gateway: requests with their verdict, changes of keys and teams, budgets that are nearly spent.

LiteLLM writes a row for each request, without prompts and answers. Changes of keys and teams are what triggers of the
database write, whoever makes the change.
"""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_serving.kinds.gateway import database
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.litellm_settings import parse_name
from llm_serving.kinds.gateway.usage import CACHE, REFUSAL, Period
from llm_serving.services.rendered import split_location

WARNED_SHARE = 0.8
"""Share of a budget from which on the audit and the meter's log say so, once a day or month."""

MAX_ENTRIES = 20_000
"""Most entries that are shown: they are in the memory of a program beside LiteLLM, 4 KB each, and pass a tunnel."""

_INDEX = 'CREATE INDEX CONCURRENTLY IF NOT EXISTS blueprint_requests_end ON "LiteLLM_SpendLogs" ("endTime")'
"""LiteLLM has none by the end of requests: every hour's export would read all of them. It writes meanwhile."""

_LIMITS = """\
jsonb_strip_nulls(jsonb_build_object('models', to_jsonb({row}.models), 'requests_per_minute', {row}.rpm_limit,
    'tokens_per_minute', {row}.tpm_limit, 'month_usd', {row}.max_budget,
    'day_usd', jsonb_path_query_first({row}.budget_limits, '$[*].max_budget'), 'blocked', {row}.blocked))"""
"""What an administrator decides of a team: LiteLLM updates its row at each request."""

EXPORT_TABLE = "blueprint_export"

_CREATE_EXPORT = f"CREATE TABLE IF NOT EXISTS {EXPORT_TABLE} (until float8)"

_HOUR_S, _MINUTE_S = 3600, 60
_SETTLED_S = 300
"""How long after its end an hour is exported: LiteLLM writes its last records by then."""


def prepare(login: Login) -> None:
    """Create the audit's table, triggers and index; again where they exist.

    Raises:
        Unavailable: the database does not answer, or refuses.
    """
    limits = {"new_limits": _LIMITS.format(row="NEW"), "old_limits": _LIMITS.format(row="OLD")}
    schema = database.read_statement("audit_schema", refusal=REFUSAL, **limits)
    database.execute(login, schema)
    database.execute(login, _INDEX, as_one=False)


def read(login: Login, period: Period, most: int | None = None) -> list[dict[str, Any]]:
    """Read the entries of a time, the oldest first.

    Args:
        most: requests among them, the first ones; all where left out.

    Raises:
        Unavailable: the database does not answer.
    """
    values = {**period.format_bounds(), "most": "ALL" if most is None else most}
    changes, requests = (
        database.query(login, database.read_statement(name, **values)) for name in ("audit_changes", "audit_requests")
    )
    entries = [*changes, *_list_requests(requests)]
    return sorted(entries, key=lambda entry: str(entry["at"]))


def _list_requests(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        entry = {
            name: row[name]
            for name in ("at", "team", "user", "key", "model", "input_tokens", "output_tokens", "list_usd")
        }
        failure = "broken" if row["output_tokens"] else "refused"  # a stream can die half-way
        is_cached = row["cache_hit"] == "True"
        answered = "cached" if is_cached else "answered"
        verdict = answered if row["status"] == "success" else f"{failure} {row['code']}".rstrip()
        deployment = CACHE if is_cached else parse_name(row["backend"])
        similarity = {"similarity": row["similarity"]} if is_cached and row["similarity"] is not None else {}
        yield {**entry, "event": "request", "deployment": deployment, "verdict": verdict, **similarity}


def warn(login: Login) -> list[str]:
    """Write an entry for each budget that is nearly spent and has none yet; return a sentence for each.

    Raises:
        Unavailable: the database does not answer.
    """
    statement = database.read_statement("audit_warnings", share=WARNED_SHARE)
    rows = database.execute(login, statement).splitlines()
    return [f"{row}: {WARNED_SHARE:.0%} of the budget or more is spent" for row in rows]


def delete_old(login: Login, keep_s: float) -> None:
    """Delete what is older, of the audit and of the usage.

    Raises:
        Unavailable: the database does not answer.
    """
    database.execute(login, database.read_statement("delete_old", age=f"interval '{round(keep_s)} s'"))


def export(login: Login, s3: Any, location: str, now: float | None = None) -> list[str]:
    """Write the hours, UTC, that ended since the last export as objects of JSON lines; return their keys.

    An object is written again, the same, where what has been exported could not be noted.
    """
    bucket, prefix = split_location(location)
    database.execute(login, _CREATE_EXPORT)
    [row] = database.query(login, database.read_statement("export_next"))
    end = (time.time() if now is None else now) - _SETTLED_S
    keys = []
    for start in range(round(row["start"] or end), round(end) - _HOUR_S + 1, _HOUR_S):
        if body := _pack_hour(login, start):
            key = f"{prefix}/{time.strftime('%Y/%m/%d/%H', time.gmtime(start))}.jsonl.gz"
            s3.put_object(Bucket=bucket, Key=key, Body=body)
            keys.append(key)
        database.execute(login, f"DELETE FROM {EXPORT_TABLE}; INSERT INTO {EXPORT_TABLE} VALUES ({start + _HOUR_S})")
    return keys


def _pack_hour(login: Login, start: int) -> bytes:
    """Pack the entries of an hour, of which a minute's are in memory at a time; empty where there are none."""
    packed, count = io.BytesIO(), 0
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        for minute in range(start, start + _HOUR_S, _MINUTE_S):
            for entry in read(login, Period(minute, minute + _MINUTE_S)):
                file.write(f"{json.dumps(entry)}\n".encode())
                count += 1
    return packed.getvalue() if count else b""
