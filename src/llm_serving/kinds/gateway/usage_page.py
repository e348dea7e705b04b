"""The page of what teams cost: USD per million tokens by team and model, and what the fleet's price went to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_serving.kinds.gateway import usage
from llm_serving.kinds.gateway.usage import DIRECT, IDLE, Records
from llm_serving.validation.pages import html_report


def render(name: str, time: str, records: Records) -> str:
    """Return the page as HTML."""
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
        nobodies=(DIRECT, IDLE),
    )


def _find_largest_share(rows: list[dict[str, Any]], column: str) -> list[tuple[dict[str, Any], float]]:
    known = [row for row in rows if row[column] is not None]
    largest = max((row[column] for row in known), default=0.0) or 1.0
    return [(row, row[column] / largest) for row in known]
