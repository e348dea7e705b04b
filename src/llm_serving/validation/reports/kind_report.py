"""What each kind's own report has: report.json of a validation that sends no load of the common kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from llm_serving import console
from llm_serving.settings.plain import PublishedData
from llm_serving.validation.reports import run_folder
from llm_serving.validation.reports.report import Report
from llm_serving.validation.statistics.gate import MissedObjective


class KindReport(PublishedData):
    """One validation."""

    kind: str
    name: str
    verdict: Literal["pass", "fail", "not shown"]
    missed: tuple[MissedObjective, ...]
    not_shown: tuple[str, ...] = ()
    """What the load does not show, a sentence each."""

    started_at: str
    """UTC, ISO 8601."""

    settings: dict[str, Any]
    versions: dict[str, str]
    emulated: tuple[str, ...]


def render_end(report: KindReport | Report, folder: Path, remarks: Iterable[str] = ()) -> Iterator[Text]:
    """Render remarks, what was emulated and not shown, and the verdict with the page that was saved in `folder`."""
    yield from (Text.assemble(("• ", "yellow"), sentence) for sentence in (*remarks, *report.emulated))
    yield from (Text.assemble(("? ", "bold yellow"), reason) for reason in report.not_shown)
    style = {"pass": "bold green", "fail": "bold red", "not shown": "bold yellow"}[report.verdict]
    yield Text.assemble((report.verdict.upper(), style), f" {console.shorten_path(folder / run_folder.PAGE_FILE)}")
