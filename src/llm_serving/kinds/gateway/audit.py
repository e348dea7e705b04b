"""The audit of a gateway: requests with their verdict, changes of keys and teams, budgets that are nearly spent.

LiteLLM writes a row for each request, without prompts and answers. Changes of keys and teams are what triggers of the
database write, whoever makes the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_serving.kinds.gateway import database, meter
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.litellm_settings import parse_name
from llm_serving.kinds.gateway.usage import CACHE, Period

TABLE = "blueprint_audit"
WARNED_SHARE = 0.8
"""Share of a budget from which on the audit and the meter's log say so, once a day or month."""

_LIMITS = """\
jsonb_strip_nulls(jsonb_build_object('models', to_jsonb({row}.models), 'requests_per_minute', {row}.rpm_limit,
    'tokens_per_minute', {row}.tpm_limit, 'month_usd', {row}.max_budget,
    'day_usd', jsonb_path_query_first({row}.budget_limits, '$[*].max_budget'), 'blocked', {row}.blocked))"""
"""What an administrator decides of a team: LiteLLM updates its row at each request."""

SCHEMA = f"""\
CREATE TABLE IF NOT EXISTS {TABLE} (
  at timestamptz DEFAULT now(), event text, team text, key text, detail text);
CREATE INDEX IF NOT EXISTS {TABLE}_at ON {TABLE} (at);
CREATE OR REPLACE FUNCTION {TABLE}_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO {TABLE} (event, team, key, detail) VALUES ('key created', NEW.team_id, NEW.token, NEW.key_alias);
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO {TABLE} (event, team, key, detail) VALUES ('key revoked', OLD.team_id, OLD.token, OLD.key_alias);
  ELSIF (NEW.blocked, NEW.models, NEW.team_id, NEW.max_budget, NEW.expires, NEW.key_alias) IS DISTINCT FROM
      (OLD.blocked, OLD.models, OLD.team_id, OLD.max_budget, OLD.expires, OLD.key_alias) THEN
    INSERT INTO {TABLE} (event, team, key, detail) VALUES ('key changed', NEW.team_id, NEW.token, NEW.key_alias);
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION {TABLE}_team() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  now_limits jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE {_LIMITS.format(row="NEW")} END;
  old_limits jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE {_LIMITS.format(row="OLD")} END;
BEGIN
  IF now_limits IS DISTINCT FROM old_limits THEN
    INSERT INTO {TABLE} (event, team, detail)
    VALUES ('team ' || CASE TG_OP WHEN 'INSERT' THEN 'created' WHEN 'DELETE' THEN 'deleted' ELSE 'changed' END,
      CASE WHEN TG_OP = 'DELETE' THEN OLD.team_id ELSE NEW.team_id END, now_limits::text);
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER {TABLE} AFTER INSERT OR UPDATE OR DELETE ON "LiteLLM_VerificationToken"
FOR EACH ROW EXECUTE FUNCTION {TABLE}_key();
CREATE OR REPLACE TRIGGER {TABLE} AFTER INSERT OR UPDATE OR DELETE ON "LiteLLM_TeamTable"
FOR EACH ROW EXECUTE FUNCTION {TABLE}_team();"""
"""For LiteLLM's tables; it can be applied again."""

_REQUESTS = """\
SELECT to_char("endTime", 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at, coalesce(team_id, '') AS team, "user", api_key AS key,
  coalesce(model_group, '') AS model, coalesce(model_id, '') AS backend, prompt_tokens AS input_tokens,
  completion_tokens AS output_tokens, spend AS list_usd, status,
  coalesce(metadata::jsonb -> 'error_information' ->> 'error_code', '') AS code, cache_hit,
  metadata::jsonb -> 'spend_logs_metadata' -> 'similarity' AS similarity
FROM "LiteLLM_SpendLogs"
WHERE "endTime" AT TIME ZONE 'UTC' >= {start} AND "endTime" AT TIME ZONE 'UTC' < {end}"""

_CHANGES = f"""\
SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at, event, coalesce(team, '') AS team,
  coalesce(key, '') AS key, coalesce(detail, '') AS detail
FROM {TABLE} WHERE at >= {{start}} AND at < {{end}}"""

_WARN = f"""\
INSERT INTO {TABLE} (event, team, detail)
SELECT 'budget', team, format('%s: %s of %s USD', period, round(spent::numeric, 4)::float8, budget)
FROM (
  SELECT team_id AS team, 'day' AS period, date_trunc('day', now() AT TIME ZONE 'UTC') AS start,
    (jsonb_path_query_first(budget_limits, '$[*].max_budget'))::float8 AS budget
  FROM "LiteLLM_TeamTable"
  UNION ALL
  SELECT team_id, 'month', date_trunc('month', now() AT TIME ZONE 'UTC'), max_budget FROM "LiteLLM_TeamTable"
) AS budgets
CROSS JOIN LATERAL (
  SELECT coalesce(sum(spend), 0) AS spent FROM "LiteLLM_DailyTeamSpend"
  WHERE team_id = team AND date >= to_char(start, 'YYYY-MM-DD')
) AS spends
WHERE budget > 0 AND spent >= {WARNED_SHARE} * budget AND NOT EXISTS (
  SELECT FROM {TABLE} AS earlier
  WHERE event = 'budget' AND earlier.team = budgets.team AND starts_with(detail, period)
    AND at >= start AT TIME ZONE 'UTC'
)
RETURNING team || ': ' || detail;"""


def read(login: Login, period: Period) -> list[dict[str, Any]]:
    """Read the entries of a time, the oldest first.

    Raises:
        Unavailable: the database does not answer.
    """
    values = period.format_bounds()
    entries = [*database.query(login, _CHANGES.format(**values))]
    entries += _list_requests(database.query(login, _REQUESTS.format(**values)))
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
    """Write an entry for each budget that is nearly spent and has none yet; return a sentence for each.

    Raises:
        Unavailable: the database does not answer.
    """
    rows = database.execute(login, ["--command", _WARN]).splitlines()
    return [f"{row}: {WARNED_SHARE:.0%} of the budget or more is spent" for row in rows]


def delete_old(login: Login, keep_s: float) -> None:
    """Delete what is older, of the audit and of the usage.

    Raises:
        Unavailable: the database does not answer.
    """
    age = f"interval '{round(keep_s)} s'"
    statements = [f"DELETE FROM {table} WHERE at < now() - {age}" for table in (TABLE, meter.TABLE)]
    # The last row of before stays: later counts are those since.
    statements.append(f"""\
DELETE FROM {meter.DOOR_TABLE} AS old WHERE at < now() - {age} AND EXISTS (
  SELECT FROM {meter.DOOR_TABLE} AS newer WHERE newer.at > old.at AND newer.at < now() - {age}
    AND (newer.deployment, newer.router, newer.team, newer.model) = (old.deployment, old.router, old.team, old.model)
)""")
    statements.append(f"""DELETE FROM "LiteLLM_SpendLogs" WHERE "startTime" < now() AT TIME ZONE 'UTC' - {age}""")
    database.execute(login, ["--single-transaction", "--command", ";\n".join(statements)])
