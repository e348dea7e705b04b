"""Jobs of a batch deployment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.kinds.batch.estimate import MIN_MEASURED_S
from llm_serving.settings.units import format_bytes

_SHOWN_ERRORS = 5


def render_jobs(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """Render jobs, one row each, in 80 columns with teams of up to ten characters; a longer name is folded."""
    table = _create_table(["job", "team", "priority", "state"], ["rows", "done", "failed"], gap=1, folded="team")
    for job in jobs:
        counts = job["request_counts"]
        total = counts["total"]
        done = f"{100 * (counts['completed'] + counts['failed']) // total}%" if total else ""
        table.add_row(job["id"], job["team"], job["priority"], job["state"], _shorten(total), done,
                      _shorten(counts["failed"]))  # fmt: skip
    return table


def render_teams(teams: Iterable[Mapping[str, Any]]) -> Table:
    """Render what each team took, one row each."""
    numbers = ["jobs", "rows", "tokens in", "tokens out", "endpoint", "cost, USD", "today", "quota"]
    table = _create_table(["team"], numbers, gap=2, folded="team")
    for team in teams:
        cost = "" if team["cost_usd"] is None else f"{team['cost_usd']:,.2f}"
        quota = _shorten(team["tokens_per_day"]) if team["tokens_per_day"] else ""
        counts = (team["rows"], team["tokens"]["input"], team["tokens"]["output"])
        cells = (_format_seconds(team["endpoint_s"]), cost, _shorten(team["tokens_today"]), quota)
        table.add_row(team["team"], f"{team['jobs']:,}", *map(_shorten, counts), *cells)
    return table


def _create_table(texts: Sequence[str], numbers: Sequence[str], *, gap: int, folded: str) -> Table:
    """Create a table whose only column that narrows, where the terminal is too narrow, is `folded`."""
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for title in texts:
        is_folded = title == folded
        table.add_column(title, no_wrap=not is_folded, overflow="fold" if is_folded else "ignore")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _shorten(count: int) -> str:
    """Format a count in at most five characters; in full below 10,000."""
    if count < 10_000:
        return f"{count:,}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)):
        if count < 999.5 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.1e}"


def render_job(job: Mapping[str, Any], workers: Sequence[Mapping[str, Any]]) -> RenderableType:
    counts, tokens = job["request_counts"], job["tokens"]
    done = counts["completed"] + counts["failed"]
    share = f" ({100 * done // counts['total']}%)" if counts["total"] else ""
    lines = [
        Text(f"{job['id']}  {job['state']}  team {job['team']}, priority {job['priority']}"),
        Text(f"rows     {done:,} of {counts['total']:,}{share}{_describe_failed(job)}"),
        Text(f"tokens   {tokens['input']:,} in, {tokens['output']:,} out"),
    ]
    if rate := _describe_rate(job, done):
        lines.append(Text(rate))
    lines.append(Text(f"endpoint {_describe_cost(job)}"))
    lines += [Text(_describe_worker(worker)) for worker in workers if not job["ended_at"]]
    lines += [
        Text(f"error    {_format_line(error)}{error['code']}: {error['message']}")
        for error in job["errors"][:_SHOWN_ERRORS]
    ]
    if len(job["errors"]) > _SHOWN_ERRORS:
        lines.append(Text(f"         and {len(job['errors']) - _SHOWN_ERRORS} more: see errors.jsonl"))
    return Group(*lines)


def _describe_worker(worker: Mapping[str, Any]) -> str:
    burn = f"; people's SLO burns at {worker['burn']:g}" if worker.get("burn") else ""
    cache = f"; the cache takes no answers: {worker['cache']}" if worker.get("cache") else ""
    in_flight = f"{worker['in_flight']} in flight of at most {worker['concurrency']}"
    return f"worker   {worker['worker']}: {in_flight}{burn}{cache}"


def _describe_failed(job: Mapping[str, Any]) -> str:
    """Describe how many rows failed, by kind, the most frequent first."""
    kinds = sorted(job["failures"].items(), key=lambda kind: -kind[1])
    by_kind = ", ".join(f"{count:,} {code}" for code, count in kinds)
    return f", {job['request_counts']['failed']:,} failed{f': {by_kind}' if by_kind else ''}"


def _format_line(error: Mapping[str, Any]) -> str:
    return f"line {error['line']}: " if error["line"] else ""


def _describe_rate(job: Mapping[str, Any], done: int) -> str:
    """Describe rows and tokens per second since the job began to run, and the remaining time at that rate."""
    if not job["in_progress_at"]:
        return ""
    seconds = max(1.0, (job["ended_at"] or time.time()) - job["in_progress_at"])
    rate = done / seconds
    text = f"rate     {rate:.1f} rows/s, {job['tokens']['output'] / seconds:,.0f} output tokens/s"
    left = job["request_counts"]["total"] - done
    return f"{text}, about {left / rate:,.0f} s left" if rate and not job["ended_at"] else text


def _describe_cost(job: Mapping[str, Any]) -> str:
    """Describe the endpoint's time for the rows, and its cost if the price is known."""
    cost = f", {job['cost_usd']:,.2f} USD" if job["cost_usd"] is not None else ""
    return f"{_format_seconds(job['endpoint_s'])} of its time{cost}"


def render_estimate(estimate: Mapping[str, Any]) -> RenderableType:
    """Render what a job would take and cost."""
    scope = "all of it" if estimate["is_whole"] else f"a sample of {format_bytes(estimate['bytes_read'])}"
    bad = estimate["bad_rows"]["value"]
    lines = [
        f"rows     {_format_number(estimate['rows'])}, {bad:,} of them cannot run; from {scope}",
        f"input    {_format_tokens(estimate['input_tokens'], 'the endpoint counts none')}",
        f"output   {_format_tokens(estimate['output_tokens'], 'no row has max_tokens, and no job ended yet')}",
    ]
    rate = estimate["rate"]
    if estimate["input_tokens"] is None:
        lines.append("time     unknown: it follows from the tokens")
    elif rate is None:
        seconds = f"{MIN_MEASURED_S:g} s of the endpoint's time"
        lines.append(f"time     unknown: no job took {seconds} yet. Fix: submit some rows first, or blueprint validate")
    else:
        lines.append(f"time     {_format_range(estimate['seconds'], _format_seconds)}")
        lines.append(f"         {rate['source']}: {rate['basis']}")
        if estimate["waiting_s"]:
            lines.append(f"waiting  {_format_seconds(estimate['waiting_s'])} of rows of other jobs before it")
        unpriced = "unknown: endpoint.usd_per_hour is not set"
        usd = estimate["usd"]
        lines.append(f"cost     {_format_range(usd, '{:,.2f} USD'.format) if usd else unpriced}")
        words = {True: "holds", False: "does not hold", None: "may or may not hold"}[estimate["deadline_holds"]]
        lines.append(f"deadline {_format_seconds(estimate['deadline_s'])}: {words}")
    return Group(*(Text(line) for line in lines))


def _format_number(number: Mapping[str, Any]) -> str:
    return f"{number['value']:,}" + (f" ± {number['error']:,}" if number["error"] else "")


def _format_tokens(number: Mapping[str, Any] | None, unknown: str) -> str:
    if number is None:
        return f"unknown: {unknown}"
    return f"{_format_number(number)} tokens" + (f" at most, by {number['by']}" if "by" in number else "")


def _format_range(bounds: Mapping[str, float | None], form: Callable[[float], str]) -> str:
    least, most = bounds["least"] or 0.0, bounds["most"]
    if most is None:
        return f"{form(least)} at least"
    return form(least) if form(least) == form(most) else f"{form(least)} to {form(most)}"


def _format_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
