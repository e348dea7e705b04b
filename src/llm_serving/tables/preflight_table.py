"""A preflight in the terminal: what is good in one glance, what is not with its remedy, ready to paste."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.aws.preflight.check import Group, Line
from llm_serving.aws.preflight.report import Report

_MARKS = {"pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
_MARGIN = 2
_GAUGE = 6


def draw(report: Report, width: int) -> RenderableType:
    """The report for a terminal `width` columns wide; 80 are enough."""
    parts: list[RenderableType] = [_title(report)]
    for group in report.groups:
        parts += [Text(f"\n{group.title}", "bold"), *_group(group, width)]
    return Stack(*parts, _sum(report))


def _title(report: Report) -> Text:
    title = Text.assemble((report.fleet.name, "bold"), f"  {report.fleet.region}, account {report.who.account}")
    if report.at != "AWS":
        title.append(f"\nanswered by {report.at}, not by AWS", "yellow")
    return title


def _group(group: Group, width: int) -> Iterator[RenderableType]:
    """Its lines; those that need no command share a table, so that their columns stand in line."""
    names = min(max(len(line.about) for line in group.lines), int(width * 0.38))
    gauge = _GAUGE if any(line.share is not None for line in group.lines) else 0
    for line in group.lines:
        yield _line(line, names, gauge)
        if line.command:
            indent = _MARGIN + 3  # under the name
            yield Text("\n".join(_pasted(line.command, width, indent)), "cyan", no_wrap=True, overflow="ignore")
    # One cause often stands behind several lines.
    for cause in dict.fromkeys(line.unanswered for line in group.lines if line.unanswered):
        yield Padding(Text(f"not known: {cause}", "dim italic"), (0, 0, 0, _MARGIN + 3))


def _line(line: Line, names: int, gauge: int) -> RenderableType:
    mark, colour = _MARKS[line.status]
    quiet = line.status == "pass"
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(width=1)
    grid.add_column(width=names, overflow="fold")
    if gauge:
        grid.add_column(width=gauge)
    grid.add_column(ratio=1, overflow="fold")
    said = Text(line.said, "dim" if quiet else "")
    if line.remedy:
        said.append(f"\n→ {line.remedy}{':' if line.command else ''}", colour)
    bar = [_gauge(line, gauge)] if gauge else []
    grid.add_row(Text(mark, colour), Text(line.about, "" if quiet else "bold"), *bar, said)
    return Padding(grid, (0, 0, 0, _MARGIN))


def _gauge(line: Line, width: int) -> Text:
    """How much of what there is the fleet takes."""
    if line.share is None:
        return Text("?" if not line.known else "", "yellow")
    filled = min(width, math.ceil(min(line.share, 1.0) * width))
    return Text.assemble(("█" * filled, _MARKS[line.status][1]), ("░" * (width - filled), "dim"))


def _pasted(command: Sequence[str], width: int, indent: int) -> Iterator[str]:
    """A command over as many lines as it takes; a shell reads them as one, so nothing breaks where it is pasted."""
    words = _options([shlex.quote(word) for word in command])
    line = next(words)
    for word in words:
        if indent + len(line) + 1 + len(word) + 2 > width:
            yield f"{' ' * indent}{line} \\"
            line = f"  {word}"
        else:
            line = f"{line} {word}"
    yield f"{' ' * indent}{line}"


def _options(words: Sequence[str]) -> Iterator[str]:
    """Words, each option together with its value."""
    held = ""
    for word in words:
        if held and not word.startswith("--"):
            yield f"{held} {word}"
            held = ""
        elif word.startswith("--"):
            if held:
                yield held
            held = word
        else:
            yield word
    if held:
        yield held


def _sum(report: Report) -> Text:
    counts = report.counts
    unknown = sum(not line.known for line in report.lines)
    text = Text("\n")
    for status, count in counts.items():
        mark, colour = _MARKS[status]
        text.append(f"{mark} {count} {status}   ", colour if count else "dim")
    if unknown:
        text.append(f"({unknown} not known)", "dim")
    return text


def show(report: Report) -> None:
    """Prints the report to standard output."""
    console.out.print(draw(report, console.out.width), soft_wrap=False)
