"""report.html of a batch deployment: one self-contained page. No input or output."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from llm_serving.validation import html_report

if TYPE_CHECKING:
    from llm_serving.validation.batch import BatchReport, Moment

WIDTH, HEIGHT = 640, 160


class Curve(NamedTuple):
    """A picture of one value over time."""

    title: str
    points: str
    """Of an SVG polyline."""

    top: str
    """The largest value."""

    seconds: str


def render(report: BatchReport) -> str:
    """Return the page as HTML."""
    started = datetime.datetime.fromisoformat(report.started_at).strftime("%d %B %Y, %H:%M:%S UTC")
    template = html_report.create_environment().get_template("batch.html.j2")
    curves = list(_draw(report.moments))
    return template.render(report=report, started=started, curves=curves, width=WIDTH, height=HEIGHT)


def _draw(moments: Sequence[Moment]) -> Iterator[Curve]:
    values: tuple[tuple[str, Callable[[Moment], int]], ...] = (
        ("Rows with a result", lambda moment: moment.completed + moment.failed),
        ("Requests in flight, as the workers said", lambda moment: moment.in_flight),
    )
    for title, get_value in values:
        end = max((moment.seconds for moment in moments), default=0.0) or 1.0
        top = max((get_value(moment) for moment in moments), default=0) or 1
        points = " ".join(
            f"{WIDTH * moment.seconds / end:.1f},{HEIGHT - HEIGHT * get_value(moment) / top:.1f}" for moment in moments
        )
        yield Curve(title, points, f"{top:,}", f"{end:.0f} s")
