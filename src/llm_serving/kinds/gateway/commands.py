"""`blueprint gateway`: the keys of teams, and what each team used and cost."""

from __future__ import annotations

import csv
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table

from llm_serving import console
from llm_serving.kinds.gateway import access, audit, usage
from llm_serving.options import quantities
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Target
from llm_serving.settings.errors import InputError, quote_value, require_choice
from llm_serving.settings.units import Duration
from llm_serving.validation.pages import html_report

app = typer.Typer(help="Manage keys of a gateway, and see what teams cost.", no_args_is_help=True)
key_app = typer.Typer(help="Create, list, revoke and export keys of teams.", no_args_is_help=True)
app.add_typer(key_app, name="key")

DEFAULT_SINCE = "7d"
"""How far back usage is shown."""

_SHOWN_ID, _SHOWN_TIME = 12, len("2026-11-26T04:00")
"""Characters of an id and of a time in tables."""

TeamOption = Annotated[str | None, typer.Option("--team", metavar="TEAM", help="Only the keys of a team.")]


@key_app.command()
def create(
    folder: Folder,
    team: Annotated[str, typer.Option("--team", metavar="TEAM", help="Team whose limits the key has.")],
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="What it is for; unique.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Person or program that has it.")] = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    as_json: AsJson = False,
) -> None:
    """Create a key of a team. It is shown once."""
    with access.open_access(folder, fleet, target) as gateway:
        require_choice("--team", team, "team", gateway.deployment.teams, "choose")
        with gateway.connect() as admin:
            text, key = admin.create_key(team, name, user)
        if as_json:
            print(json.dumps({"key": text, **key._asdict()}))
            return
        console.err.print(f"Key of {team}, id {key.id}, for {gateway.deployment.url}/v1:", markup=False)
        print(text)


@key_app.command(name="list")
def list_(
    folder: Folder, team: TeamOption = None, fleet: Fleet = FLEET, target: Target = TARGET, as_json: AsJson = False
) -> None:
    """List the keys, the oldest first, without their texts."""
    with access.open_access(folder, fleet, target) as gateway:
        if team is not None:
            require_choice("--team", team, "team", gateway.deployment.teams, "choose")
        with gateway.connect() as admin:
            keys = admin.list_keys(team)
    table = _create_table(["id", "team", "user", "name", "created"], [])
    for key in keys:
        table.add_row(key.id[:_SHOWN_ID], key.team, key.user, key.name, key.created_at[:_SHOWN_TIME].replace("T", " "))
    console.print_rows([key._asdict() for key in keys], _keep_whole(table), as_json=as_json)


@key_app.command()
def revoke(
    folder: Folder,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its text, its id, or how its id begins.")],
    fleet: Fleet = FLEET,
    target: Target = TARGET,
) -> None:
    """Revoke a key: calls with it get 401."""
    with access.open_access(folder, fleet, target) as gateway, gateway.connect() as admin:
        revoked = admin.revoke_key(key)
    console.out.print(f"{revoked.id[:_SHOWN_ID]}: revoked, a key of {revoked.team}", markup=False)


@key_app.command()
def export(folder: Folder, fleet: Fleet = FLEET, target: Target = TARGET) -> None:
    """Print the hashes of all keys by team, for deployments that ask for keys themselves: `auth.keys`."""
    document: dict[str, list[str]] = {}
    with access.open_access(folder, fleet, target) as gateway, gateway.connect() as admin:
        for key in admin.list_keys():
            document.setdefault(key.team, []).append(f"sha256:{key.id}")
    console.print_json(document)


@app.command(name="audit")
def audit_(
    folder: Folder,
    since: Annotated[str, typer.Option(metavar="DURATION", help="How far back, such as 24h.")] = "1d",
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    as_json: AsJson = False,
) -> None:
    """Show requests, changes of keys and teams, and budgets that are nearly spent, the oldest first."""
    since_s = quantities.parse("--since", since, Duration)
    with access.open_access(folder, fleet, target) as gateway:
        entries = gateway.read_audit(since_s)
    if len(entries) > audit.MAX_ENTRIES:
        reason = f"there are more than {audit.MAX_ENTRIES:,} entries"
        fix = "choose a shorter time; with `audit: {export: s3://BUCKET/PREFIX}` S3 has all of them"
        raise InputError(f"--since: {quote_value(since)}: {reason}. Fix: {fix}.")
    console.print_rows(entries, _keep_whole(_render_audit(entries)), as_json=as_json)


@app.command(name="usage")
def usage_(
    folder: Folder,
    by: Annotated[str, typer.Option(metavar="COLUMNS", help="Of team, user, model and deployment.")] = "team,model",
    since: Annotated[str | None, typer.Option(metavar="DURATION", help="How far back; 7d if left out.")] = None,
    month: Annotated[str | None, typer.Option(metavar="YYYY-MM", help="A calendar month, UTC.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for the books.")] = False,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="HTML page with charts to write.")] = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    as_json: AsJson = False,
) -> None:
    """Show what teams used, and what it cost the fleet."""
    columns, period = _parse_columns(by), _parse_period(since, month)
    with access.open_access(folder, fleet, target) as gateway:
        records = gateway.read_records(period)
    rows = usage.build_rows(records, columns)
    if page:
        time = f"month {month}" if month else f"last {since or DEFAULT_SINCE}"
        page.write_text(render_page(gateway.deployment.name, time, records), encoding="utf-8")
    if as_json:
        console.print_json(rows)
    elif as_csv:
        names = [*columns, *usage.NUMBERS]
        writer = csv.DictWriter(sys.stdout, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        console.out.print(_keep_whole(_render_usage(rows, columns)))


def _parse_columns(text: str) -> list[str]:
    columns = list(dict.fromkeys(text.split(",")))
    for column in columns:
        if column not in usage.COLUMNS:
            fix = f"use {' or '.join(usage.COLUMNS)}, with commas between"
            raise InputError(f"--by: {quote_value(column)}: there is no such column. Fix: {fix}.")
    return columns


def _parse_period(since: str | None, month: str | None) -> usage.Period:
    if month is None:
        return usage.build_last(quantities.parse("--since", since or DEFAULT_SINCE, Duration))
    if since is not None:
        raise InputError("--month: a month has a beginning of its own. Fix: remove --since or --month.")
    try:
        return usage.build_month(datetime.datetime.strptime(month, "%Y-%m").date())
    except (ValueError, OverflowError):
        raise InputError(f"--month: {quote_value(month)}: it is not a month. Fix: write it as 2026-11.") from None


def _create_table(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in texts:
        table.add_column(title)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def _keep_whole(table: Table) -> Table:
    """Keep each name and number whole, however narrow the terminal; no line is wrapped elsewhere."""
    for column in table.columns:
        cells = [str(cell) for cell in (column.header, *column.cells)]
        parts = [word for cell in cells for word in cell.split()] if console.out.is_terminal else cells
        column.min_width = max(map(cell_len, parts))
    return table


def _render_audit(entries: Sequence[dict[str, Any]]) -> Table:
    table = _create_table(["at", "event", "team", "key", "detail"], [])
    for entry in entries:
        tokens = f"{entry['input_tokens']:,} + {entry['output_tokens']:,} tokens" if "verdict" in entry else ""
        near = f"similarity {entry['similarity']:g}" if "similarity" in entry else ""
        parts = (entry["model"], entry["verdict"], near, tokens, entry.get("user")) if tokens else (entry["detail"],)
        place = (entry["at"][:_SHOWN_TIME].replace("T", " "), entry["event"], entry["team"], entry["key"][:_SHOWN_ID])
        table.add_row(*place, ", ".join(filter(None, parts)))
    return table


def _render_usage(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Table:
    policies = [name for name in (*usage.POLICY_NUMBERS, usage.HIT_RATE) if any(row[name] for row in rows)]
    titles = [name.replace("_", " ") for name in policies]
    table = _create_table(columns, ["requests", "tokens in", "tokens out", "USD", "USD/M tokens", *titles])
    formats = {usage.HIT_RATE: "{:.0%}"}
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("requests", "input_tokens", "output_tokens"))
        rate = row["usd_per_million_tokens"]
        costs = (f"{row['usd']:,.4f}", "" if rate is None else f"{rate:,.3f}")
        policy = (formats.get(name, "{:,}").format(row[name] or 0) for name in policies)
        table.add_row(*(row[column] for column in columns), *counts, *costs, *policy)
    return table


def render_page(name: str, time: str, records: usage.Records) -> str:
    """Render the page: USD per million tokens by team and model, and what the fleet's price went to."""
    rows, teams = (usage.build_rows(records, columns) for columns in (("team", "model"), ("team",)))
    bill = usage.compute_bill(records)
    return html_report.render_page(
        "usage.html.j2",
        Path(__file__).parent,
        gateway=name,
        time=time,
        rates=_find_largest_share(rows, "usd_per_million_tokens"),
        teams=_find_largest_share(teams, "usd"),
        cached=[row for row in teams if row["cached_requests"]],
        rows=rows,
        bill=bill,
        total=sum(row["usd"] for row in rows),
        nobodies=(usage.DIRECT, usage.IDLE),
    )


def _find_largest_share(rows: list[dict[str, Any]], column: str) -> list[tuple[dict[str, Any], float]]:
    with_value = [row for row in rows if row[column] is not None]
    largest = max((row[column] for row in with_value), default=0.0) or 1.0
    return [(row, row[column] / largest) for row in with_value]
