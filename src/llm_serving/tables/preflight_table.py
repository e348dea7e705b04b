"""A preflight as a table: each check with its status, and each failure with the command that fixes it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group as RenderableGroup
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.aws.preflight.check import CheckGroup, CheckResult, count_by_status
from llm_serving.aws.preflight.report import PreflightReport

_MARKS = {"pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
_MARGIN = 2
_GAUGE_WIDTH = 6


def render_preflight(report: PreflightReport, width: int) -> RenderableType:
    """Render the report for a terminal of `width` columns; 80 are enough."""
    return render_groups(_render_title(report), report.groups, width)


def render_groups(title: Text, groups: Sequence[CheckGroup], width: int) -> RenderableType:
    """Render results by group, and how many there are of each status."""
    parts: list[RenderableType] = [title]
    for group in groups:
        parts += [Text(f"\n{group.title}", "bold"), *_render_group(group, width)]
    return RenderableGroup(*parts, _render_totals(groups))


def _render_title(report: PreflightReport) -> Text:
    title = Text.assemble((report.fleet.name, "bold"), f"  {report.fleet.region}, account {report.caller.account}")
    if report.endpoint != "AWS":
        title.append(f"\nendpoint: {report.endpoint}, not AWS", "yellow")
    return title


def _render_group(group: CheckGroup, width: int) -> Iterator[RenderableType]:
    """Render the checks of a group, each with its fix, and the reasons of unknown ones once."""
    name_width = min(max(len(result.name) for result in group.results), int(width * 0.38))
    gauge_width = _GAUGE_WIDTH if any(result.usage_ratio is not None for result in group.results) else 0
    for result in group.results:
        yield _render_result(result, name_width, gauge_width)
        if result.command:
            indent = _MARGIN + 3  # under the name
            yield Text(
                "\n".join(_format_command(result.command, width, indent)), "cyan", no_wrap=True, overflow="ignore"
            )
    # Several checks often have the same cause.
    for cause in dict.fromkeys(result.unknown_reason for result in group.results if result.unknown_reason):
        yield Padding(Text(f"unknown: {cause}", "dim italic"), (0, 0, 0, _MARGIN + 3))


def _render_result(result: CheckResult, name_width: int, gauge_width: int) -> RenderableType:
    mark, colour = _MARKS[result.status]
    passed = result.status == "pass"
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(width=1)
    grid.add_column(width=name_width, overflow="fold")
    if gauge_width:
        grid.add_column(width=gauge_width)
    grid.add_column(ratio=1, overflow="fold")
    message = Text(result.message, "dim" if passed else "")
    if result.fix:
        message.append(f"\n→ {result.fix}{':' if result.command else ''}", colour)
    bar = [_render_gauge(result, gauge_width)] if gauge_width else []
    grid.add_row(Text(mark, colour), Text(result.name, "" if passed else "bold"), *bar, message)
    return Padding(grid, (0, 0, 0, _MARGIN))


def _render_gauge(result: CheckResult, width: int) -> Text:
    """Render the share of a quota or capacity that the fleet uses."""
    if result.usage_ratio is None:
        return Text("?" if not result.is_known else "", "yellow")
    filled = min(width, math.ceil(min(result.usage_ratio, 1.0) * width))
    return Text.assemble(("█" * filled, _MARKS[result.status][1]), ("░" * (width - filled), "dim"))


def _format_command(command: Sequence[str], width: int, indent: int) -> Iterator[str]:
    """Wrap a command with backslashes, so that it can be pasted into a shell."""
    words = _group_options([shlex.quote(word) for word in command])
    line = next(words)
    for word in words:
        if indent + len(line) + 1 + len(word) + 2 > width:
            yield f"{' ' * indent}{line} \\"
            line = f"  {word}"
        else:
            line = f"{line} {word}"
    yield f"{' ' * indent}{line}"


def _group_options(words: Sequence[str]) -> Iterator[str]:
    """Yield options with their values, and other words."""
    groups: list[list[str]] = []
    for word in words:
        is_value = groups and len(groups[-1]) == 1 and groups[-1][0].startswith("--") and not word.startswith("--")
        if is_value:
            groups[-1].append(word)
        else:
            groups.append([word])
    return map(" ".join, groups)


def _render_totals(groups: Sequence[CheckGroup]) -> Text:
    unknown_count = sum(not result.is_known for group in groups for result in group.results)
    text = Text("\n")
    for status, count in count_by_status(groups).items():
        mark, colour = _MARKS[status]
        text.append(f"{mark} {count} {status}   ", colour if count else "dim")
    if unknown_count:
        text.append(f"({unknown_count} unknown)", "dim")
    return text


def print_report(report: PreflightReport) -> None:
    console.out.print(render_preflight(report, console.out.width), soft_wrap=False)
