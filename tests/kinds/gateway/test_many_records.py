"""A database with many records: what grows with them is how much is kept, and not how long a question takes."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.gateway import access, audit, commands, database, meter, usage
from llm_serving.kinds.gateway.blueprint import Budget, Team
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import Backend
from llm_serving.kinds.gateway.litellm_settings import build_team_sql, dump_teams
from llm_serving.kinds.gateway.usage import Period
from llm_serving.settings.errors import InputError, Unavailable
from tests.kinds.gateway.test_cloud_program import run_postgres

TABLES = """\
CREATE TABLE "LiteLLM_SpendLogs" (
  request_id text PRIMARY KEY, "startTime" timestamp, "endTime" timestamp, team_id text, "user" text, api_key text,
  model_group text, model_id text, prompt_tokens int, completion_tokens int, spend float8, status text, metadata jsonb,
  cache_hit text, litellm_call_id text);
CREATE TABLE "LiteLLM_VerificationToken" (token text);
CREATE TABLE "LiteLLM_TeamTable" (
  team_id text PRIMARY KEY, team_alias text, budget_reset_at timestamp, models text[], rpm_limit bigint, tpm_limit bigint,
  max_budget float8, budget_duration text, budget_limits jsonb, blocked bool);
CREATE TABLE "LiteLLM_EndUserTable" (user_id text);
CREATE TABLE "LiteLLM_SpendLogToolIndex" (start_time timestamp);
CREATE TABLE "LiteLLM_ToolTable" (last_used_at timestamp, created_at timestamp);
CREATE TABLE "LiteLLM_DeletedVerificationToken" (deleted_at timestamp);
"""
"""What the statements name of LiteLLM's."""

HOUR = 1_760_000_400
"""A full hour, in seconds since 1970."""


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    """Run a database with a request each second of an hour."""
    if missing := database.find_missing():
        pytest.skip(f"{missing}: there is none on this machine. To run this test: {database.INSTALL}")
    with run_postgres(tmp_path_factory.mktemp("postgres")) as owner:
        database.execute(owner, TABLES)
        audit.prepare(owner)
        audit.prepare(owner)  # as the next replica does
        meter.record(owner, [])
        times = f"to_timestamp({HOUR} + second) AT TIME ZONE 'UTC'"
        requests = f"""INSERT INTO "LiteLLM_SpendLogs" SELECT second, {times}, {times}, 'ads', '', 'k', 'chat', 'chat/a', 1, 1,
          0, 'success', '{{}}', '' FROM generate_series(0, 3599) AS second"""
        database.execute(owner, requests)
        yield owner


def explain(login: Login, statement: str) -> str:
    """Return Postgres' plan; it reads a whole table only where there is no other way."""
    return database.execute(login, f"SET enable_seqscan = off; EXPLAIN {statement}")


def build_statement(name: str) -> str:
    values = {**Period(HOUR, HOUR + 60).format_bounds(), "most": 9, "cache": "", "refused": "", "embedding": "()"}
    values["refusal"] = usage.REFUSAL
    return database.read_statement(name, **values)


def test_a_statement_may_be_longer_than_an_argument_of_a_program(login: Login) -> None:
    """As that of a meter with the pages of 3,000 engines."""
    assert database.query(login, f"SELECT length('{'x' * 200_000}') AS length") == [{"length": 200_000}]


def test_teams_become_rows(login: Login) -> None:
    teams = {
        "search": Team(models=("a", "b"), requests_per_minute=60, budget=Budget(day=5)),
        "ads": Team(models=("a",)),
    }
    limits = "rpm_limit AS rpm, max_budget AS month, budget_limits -> 0 -> 'max_budget' AS day, blocked"
    query = f'SELECT team_id AS name, models, {limits} FROM "LiteLLM_TeamTable" ORDER BY name'
    database.execute(login, build_team_sql(dump_teams(teams)))
    ads, search = database.query(login, query)
    assert search == {"name": "search", "models": ["a", "b"], "rpm": 60, "month": None, "day": 5, "blocked": False}
    assert ads == {"name": "ads", "models": ["a"], "rpm": None, "month": None, "day": None, "blocked": False}
    teams = {"search": Team(models=("b",), budget=Budget(month=50))}
    database.execute(login, build_team_sql(dump_teams(teams)))
    ads, search = database.query(login, query)
    assert search == {"name": "search", "models": ["b"], "rpm": None, "month": 50, "day": None, "blocked": False}
    assert ads["blocked"]


def test_the_meter_s_rows_are_found_without_a_look_at_all_of_them_for_each(login: Login) -> None:
    at = f"to_timestamp({HOUR} + 60 * minute)"
    rows = f"""INSERT INTO blueprint_meter SELECT name, {at}, 1, '{{}}' FROM generate_series(-5, 5) AS minute,
      unnest(ARRAY['a', 'b']) AS name WHERE name = 'a' OR minute > 1"""
    database.execute(login, rows)
    assert "SubPlan" not in explain(login, build_statement("usage_meter"))
    for_each = (
        "SELECT at FROM blueprint_meter AS a WHERE at > (SELECT min(at) FROM blueprint_meter WHERE usd_h = a.usd_h)"
    )
    assert "SubPlan" in explain(login, for_each)
    records = usage.read(login, Period(HOUR, HOUR + 180), "edge")
    assert [(row["deployment"], (row["at"] - HOUR) / 60) for row in records.meter] == [
        ("a", -1), ("a", 0), ("a", 1), ("a", 2), ("b", 2),
    ]  # fmt: skip


COUNTED: dict[str, list[dict[str, float]]] = {
    "c": [
        {"x": 1000, "y": 1000},
        {"x": 1100},
        {},
        {"x": 1200, "y": 30},
        {"x": 1200, "y": 40, "z": 5},
        {"z": 9},
        {"z": 9},
    ],
    "d": [{}, {"x": 7}, {"x": 9}, {"x": 2}, {"x": 2}, {"x": 2}, {"x": 4}],
}
"""Engines that start anew, come and go, in two deployments; the page of each has a row of the meter in a minute."""


def test_the_database_adds_up_what_engines_counted_in_rows_of_former_versions(login: Login) -> None:
    values = [
        f"('{name}', to_timestamp({HOUR + 60 * minute}), {60 * 2**minute}, '{json.dumps(tokens)}')"
        for name, every in COUNTED.items()
        for minute, tokens in enumerate(every)
    ]
    database.execute(login, f"INSERT INTO blueprint_meter VALUES {', '.join(values)}")
    measured = usage.measure(usage.read(login, Period(HOUR), "edge").meter)
    assert measured["c"] == (1 + 4 + 8 + 16, 2 + 32, 100 + 100 + 30 + 10 + 4)
    assert measured["d"] == (2 + 4 + 32, 1 + 8 + 16, 2 + 2 + 2), "a minute costs twice what the one before did"


def test_a_row_of_the_meter_has_the_sum_of_its_engines_however_many_they_are(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = [
        Backend(
            id="", route="", name=f"new {name}", usd_h=1.0, metrics_urls=("u",), prompt_tokens="p", output_tokens="o"
        )
        for name in COUNTED
    ]
    for minute in range(7):
        read = {
            f"new {name}": {page: meter.Tokens(count - 1, 1) for page, count in every[minute].items()}
            for name, every in COUNTED.items()
        }
        monkeypatch.setattr(meter, "read_counters", lambda backend, read=read: read[backend.name])
        meter.record(login, backends)
    rows = database.query(
        login, "SELECT deployment, tokens FROM blueprint_meter WHERE deployment LIKE 'new%' ORDER BY at"
    )
    sums = {name: [row["tokens"] for row in rows if row["deployment"] == f"new {name}"] for name in COUNTED}
    assert sums["c"] == [{"all": tokens} for tokens in (0, 100, 100, 230, 240, 244, 244)]
    assert sums["d"] == [{"all": tokens} for tokens in (0, 0, 2, 4, 4, 4, 6)]
    measured = usage.measure(usage.read(login, Period(HOUR), "edge").meter)
    assert [measured[f"new {name}"].tokens for name in COUNTED] == [244, 6]


def test_usage_that_is_shown_while_the_meter_writes_waits_for_it(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(
        id="",
        route="",
        name="both",
        usd_h=1.0,
        metrics_urls=("u",),
        prompt_tokens="p",
        output_tokens="o",
        usage_url="u",
    )
    monkeypatch.setattr(meter, "read_counters", lambda _: {"x": meter.Tokens(1, 1)})
    used = itertools.count()
    monkeypatch.setattr(meter, "read_use", lambda _: {meter.Used("r", "ads", "m"): [float(next(used))] * 3})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: meter.record(login, [backend]), range(40)))
    assert len(database.query(login, "SELECT FROM blueprint_meter WHERE deployment = 'both'")) == 40


@pytest.mark.parametrize("name", ["audit_requests", "usage_requests"])
def test_the_requests_of_a_time_are_found_by_when_they_ended(login: Login, name: str) -> None:
    assert "Index Cond" in explain(login, build_statement(name))
    whole = """SELECT 1 FROM "LiteLLM_SpendLogs" WHERE "endTime" AT TIME ZONE 'UTC' >= now()"""
    assert "Index Cond" not in explain(login, whole), "an index finds a column, and no expression of it"


def test_an_hour_is_exported_a_minute_at_a_time(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    read, bodies, sizes = audit.read, dict[str, bytes](), list[int]()

    def count(*arguments: Any) -> list[dict[str, Any]]:
        entries = read(*arguments)
        sizes.append(len(entries))
        return entries

    class S3:
        def put_object(self, Bucket: str, Key: str, Body: bytes) -> None:  # noqa: N803
            bodies[f"{Bucket}/{Key}"] = Body

    monkeypatch.setattr(audit, "read", count)
    table = "blueprint_export"
    database.execute(login, f"CREATE TABLE {table} (until float8); INSERT INTO {table} VALUES ({HOUR})")
    assert audit.export(login, S3(), "s3://b/p", HOUR + 3600 + 300) == ["p/2025/10/09/09.jsonl.gz"]
    [body] = bodies.values()
    lines = gzip.decompress(body).splitlines()
    assert max(sizes) == 60
    assert [json.loads(line) for line in lines] == read(login, Period(HOUR, HOUR + 3600))
    assert len(lines) == 3600


def test_more_entries_than_fit_beside_a_gateway_are_not_read(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(audit.read(login, Period(HOUR, HOUR + 3600), 3)) == 3
    monkeypatch.setattr(audit, "MAX_ENTRIES", 2)
    found = [{"at": str(number)} for number in range(3)]

    class Access:
        def read_audit(self, _: float) -> list[dict[str, Any]]:
            return found

    monkeypatch.setattr(access, "open_access", lambda *_: contextlib.nullcontext(Access()))
    with pytest.raises(InputError) as refused:
        commands.audit_(tmp_path, "1d", as_json=True)
    assert str(refused.value) == (
        '--since: "1d": there are more than 2 entries. Fix: choose a shorter time; '
        "with `audit: {export: s3://BUCKET/PREFIX}` S3 has all of them."
    )


def test_old_requests_are_deleted(login: Login) -> None:
    audit.delete_old(login, 86400)
    assert audit.read(login, Period(HOUR, HOUR + 3600)) == []


def test_a_database_that_is_slow_is_away(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_TIMEOUT_S", 0.5)
    with pytest.raises(Unavailable) as slow:
        database.execute(login, "SELECT pg_sleep(3)")
    assert str(slow.value) == (
        "the gateway's database: no answer within 0 s. Fix: see `blueprint logs`, process postgres."
    )


def test_the_reason_of_a_refusal_is_the_database_s_and_no_hint_of_it(login: Login) -> None:
    with pytest.raises(Unavailable) as refused:
        database.execute(login, "SELECT nothing")
    reason = 'psql:<stdin>:1: ERROR:  column "nothing" does not exist'
    fix = "see `blueprint logs`, process postgres"
    assert str(refused.value) == f"the gateway's database refuses: {reason}. Fix: {fix}."
    with pytest.raises(
        Unavailable, match=r"refuses: psql: error: connection to server .* failed: Connection refused\."
    ):
        database.execute(login._replace(port=1), "SELECT 1")
