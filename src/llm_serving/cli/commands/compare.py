"""`blueprint compare`: validations beside the first of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console, paths
from llm_serving.options.arguments import AsJson
from llm_serving.services import inputs
from llm_serving.services.blueprint import FILE_NAME, resolve_name
from llm_serving.services.runs import SWEEP_FILE
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import CheckFailed, InputError
from llm_serving.settings.untrusted_file import open_regular
from llm_serving.validation.load import driver_result
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.pages import comparison_page
from llm_serving.validation.pages.comparison_page import format_percent, format_value
from llm_serving.validation.reports import comparison, run_folder
from llm_serving.validation.reports.comparison import Change, Comparison
from llm_serving.validation.reports.validation_run import ValidationRun
from llm_serving.validation.search import sweep

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Folders of validations, or of blueprints for their newest; the first is the baseline. With one "
        "blueprint, its two newest.",
    ),
]
Margin = Annotated[float, typer.Option(min=0, max=100, metavar="PERCENT", help="Smallest change to report.")]
Repeats = Annotated[
    int,
    typer.Option(
        "--runs",
        min=1,
        metavar="NUMBER",
        help="Newest validations of each blueprint that count together, so that what the machine does differently from "
        "run to run is in the intervals; 5, for example.",
    ),
]
Page = Annotated[Path | None, typer.Option("--page", metavar="FILE.html", help="Also write an HTML page.")]
Gate = Annotated[
    bool,
    typer.Option(
        "--gate",
        help="Exit 1 if a run is worse than the baseline, had other traffic, or too little is measured to tell.",
    ),
]


def compare(
    runs: Runs,
    repeats: Repeats = 1,
    margin: Margin = 100 * comparison.MARGIN,
    page: Page = None,
    gate: Gate = False,
    as_json: AsJson = False,
) -> None:
    """Compare validations with a baseline.

    Better, worse, or no difference shown: each change comes with its interval.
    """
    baseline, *others = map(_read_group, _find_runs(runs, repeats))
    comparisons = [comparison.compare(baseline, run, margin / 100) for run in others]
    if page:
        page.write_text(comparison_page.render(baseline.title, comparisons, margin / 100), encoding="utf-8")
    payload, table = _build_payload(baseline, comparisons), render(comparisons)
    console.print_rows(payload, table, as_json=as_json, soft_wrap=not console.out.is_terminal)
    worse = [entry.title for entry in comparisons if entry.verdict == "worse"]
    if gate and worse:
        raise CheckFailed(f"worse than {baseline.title}: {', '.join(worse)}")
    incomparable = [entry.title for entry in comparisons if entry.other_load]
    if gate and incomparable:
        titles = ", ".join(incomparable)
        raise CheckFailed(f"other traffic than {baseline.title}: {titles}; only the same shows a change")
    doubts = list(dict.fromkeys(doubt for entry in comparisons for doubt in entry.doubts))
    if gate and doubts:
        raise CheckFailed("\n".join(["only failures could be compared:", *doubts]))


def _find_runs(folders: list[Path], repeats: int) -> list[list[Path]]:
    """Return the folders of the validations that count together, the baseline's first."""
    groups = 2 if len(folders) == 1 else 1
    runs = [group for folder in folders for group in _find_newest(folder, groups, repeats)]
    if len(runs) < 2:
        raise InputError("RUN: a comparison takes two or more. Fix: run blueprint compare RUN RUN.")
    paths = [path.resolve() for group in runs for path in group]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        reason = "it is named twice, and has no difference from itself"
        raise InputError(f"RUN: {console.shorten_path(twice)}: {reason}. Fix: name another validation.")
    return runs


def _find_newest(folder: Path, groups: int, repeats: int) -> list[list[Path]]:
    """Return a validation itself, or groups of the newest ones of a blueprint, the oldest group first."""
    if not (folder / FILE_NAME).is_file():
        if repeats > 1:
            reason = f"{console.shorten_path(folder)} is not a blueprint, and only those of a blueprint count together"
            raise InputError(f"--runs: {repeats}: {reason}. Fix: use the folder of a blueprint.")
        return [[folder]]
    document = inputs.read_blueprint(folder)
    name = resolve_name(document)
    runs, count = Path(paths.RUNS) / name, groups * repeats
    newest = sorted(report.parent for report in runs.glob(f"[0-9]*/{run_folder.REPORT_FILE}"))[-count:]
    if len(newest) < count:
        have = {0: "no validation", 1: "one validation"}.get(len(newest), f"{len(newest)} validations")
        requirement = f", and {'two' if count == 2 else count} are compared" if newest else ""
        fix = f"run blueprint validate {console.shorten_path(folder)}"
        raise InputError(f"RUN: {console.shorten_path(folder)}: {runs} has {have}{requirement}. Fix: {fix}.")
    return [newest[start : start + repeats] for start in range(0, count, repeats)]


def _read_group(folders: list[Path]) -> ValidationRun:
    """Read validations that count together, under the name of the newest."""
    *earlier, newest = map(read_run, folders)
    title = f"{newest.title} with {len(earlier)} before" if earlier else newest.title
    return dataclasses.replace(newest, title=title, repeats=tuple(earlier))


def read_run(folder: Path) -> ValidationRun:
    """Read a validation's folder.

    Raises:
        InputError: it is not one, a file in it is broken, or another version of this program wrote it.
    """
    if not folder.is_dir():
        reason = "it is a file" if folder.exists() else "there is no such folder"
        raise InputError(f"RUN: {folder}: {reason}. Fix: use a folder below runs/.")
    if (folder / SWEEP_FILE).is_file():
        point = next(iter(sorted((folder / sweep.POINTS).glob("*"))), folder / sweep.POINTS)
        raise InputError(f"RUN: {folder}: it is a sweep. Fix: use one of its loads, such as {point}.")
    try:
        report = untrusted_json.read(folder / run_folder.REPORT_FILE, infinite=True)
        samples = _read_samples(folder / driver_result.SAMPLES_FILE)
    except OSError as error:
        reason = f"{Path(error.filename or folder).name} cannot be read: {error.strerror}"
        raise InputError(f"RUN: {folder}: {reason}. Fix: use a folder below runs/.") from None
    except ValueError as error:
        raise InputError(f"RUN: {folder}: it is not a validation's folder: {error}. Fix: validate again.") from None
    try:
        title = f"{report['name']} {folder.resolve().name}"
        run = ValidationRun(title, report, samples)
        run.require_fields()
        total = int(report.get("requests", {}).get("total", len(samples)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        field = f"it has no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        reason = f"another version of this program wrote it{_find_version(report)}: {field}"
        raise InputError(f"RUN: {folder}: {reason}. Fix: validate again.") from None
    if len(samples) != total:
        reason = f"{driver_result.SAMPLES_FILE} has {len(samples)} of its {total} requests"
        raise InputError(f"RUN: {folder}: {reason}. Fix: validate again.")
    return run


def _read_samples(file: Path) -> list[Sample]:
    """Read the requests of a validation."""
    samples = []
    with open(file, encoding="utf-8", opener=open_regular) as lines:
        for number, line in enumerate(lines, 1):
            try:
                samples.append(Sample.from_json(line))
            except ValueError:
                raise ValueError(f"line {number} of {file.name} is not a request") from None
    return samples


def _find_version(report: Any) -> str:
    versions = report.get("versions", {}) if isinstance(report, dict) else {}
    return f" ({versions['blueprint']})" if isinstance(versions, dict) and "blueprint" in versions else ""


def _build_payload(baseline: ValidationRun, comparisons: list[Comparison]) -> dict[str, Any]:
    return {
        "baseline": baseline.title,
        "runs": [
            {
                "name": entry.title,
                "verdict": entry.verdict,
                "changes": [_build_change(change) for change in entry.changes],
                "notes": entry.notes,
                "differences": entry.differences,
            }
            for entry in comparisons
        ],
    }


def _build_change(change: Change) -> dict[str, Any]:
    """Build the change as JSON, which has no infinity: null in its place."""
    return {
        name: value if isinstance(value, str) or math.isfinite(value) else None
        for name, value in change._asdict().items()
    }


_STYLES = {"better": "green", "worse": "red", "no difference shown": "dim"}
_WORDS = {"no difference shown": "not shown"}
"""Verdicts in a column that is headed `difference`, for terminals of 80 columns."""


def render(comparisons: Sequence[Comparison]) -> RenderableType:
    """Render each run's changes, its notes and its verdict."""
    return Group(*(part for comparison in comparisons for part in _render_parts(comparison)))


def _render_parts(comparison: Comparison) -> Iterator[RenderableType]:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("baseline", "run", "change", "interval"):
        table.add_column(heading, justify="right")
    table.add_column("difference")
    for change in comparison.changes:
        table.add_row(
            change.metric,
            format_value(change.baseline),
            format_value(change.value),
            format_percent(change.change),
            f"{format_percent(change.low)} to {format_percent(change.high)}",
            Text(_WORDS.get(change.verdict, change.verdict), _STYLES[change.verdict]),
        )
    yield table
    yield from comparison.differences
    yield from (Text.assemble(("• ", "yellow"), note) for note in comparison.notes)
    yield Text.assemble((comparison.verdict.upper(), f"bold {_STYLES[comparison.verdict]}"), f" {comparison.title}")
