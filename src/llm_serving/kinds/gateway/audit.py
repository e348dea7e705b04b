"""The audit of a gateway: requests with their verdict, changes of keys and teams, budgets that are nearly spent.

LiteLLM writes a row for each request, without prompts and answers. Changes of keys and teams are what triggers of the
database write, whoever makes the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_serving.kinds.gateway import database
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.litellm_settings import parse_name
from llm_serving.kinds.gateway.usage import CACHE, REFUSAL, Period

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


def prepare(login: Login) -> None:
    """Create the audit's table, triggers and index; again where they exist."""
    limits = {"new_limits": _LIMITS.format(row="NEW"), "old_limits": _LIMITS.format(row="OLD")}
    schema = database.read_statement("audit_schema", refusal=REFUSAL, **limits)
    database.execute(login, ["--single-transaction", "--command", schema])
    database.execute(login, ["--command", _INDEX])


def read(login: Login, period: Period, most: int | None = None) -> list[dict[str, Any]]:
    """Read the entries of a time, the oldest first.

    Args:
        most: requests among them, the first ones; all where left out.
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
        failed = "broken" if row["output_tokens"] else "refused"  # a stream can die half-way
        is_cached = row["cache_hit"] == "True"
        answered = "cached" if is_cached else "answered"
        verdict = answered if row["status"] == "success" else f"{failed} {row['code']}".rstrip()
        deployment = CACHE if is_cached else parse_name(row["backend"])
        similarity = {"similarity": row["similarity"]} if is_cached and row["similarity"] is not None else {}
        yield {**entry, "event": "request", "deployment": deployment, "verdict": verdict, **similarity}


def warn(login: Login) -> list[str]:
    """Write an entry for each budget that is nearly spent and has none yet; return a sentence for each."""
    statement = database.read_statement("audit_warnings", share=WARNED_SHARE)
    rows = database.execute(login, ["--command", statement]).splitlines()
    return [f"{row}: {WARNED_SHARE:.0%} of the budget or more is spent" for row in rows]


def delete_old(login: Login, keep_s: float) -> None:
    """Delete what is older, of the audit and of the usage."""
    statements = database.read_statement("delete_old", age=f"interval '{round(keep_s)} s'")
    database.execute(login, ["--single-transaction", "--command", statements])
