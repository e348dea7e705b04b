"""report.html of a batch deployment: one self-contained page. No input or output."""

from __future__ import annotations

import itertools
from pathlib import Path

from markupsafe import Markup

from llm_serving.kinds.batch.validation import shares as batch_shares
from llm_serving.kinds.batch.validation.report import BatchReport
from llm_serving.validation.pages import charts, html_report

_POINTS = 40
"""Most points of a curve."""


def render(report: BatchReport) -> str:
    return html_report.render_page(
        "batch.html.j2",
        Path(__file__).parent,
        report=report,
        pictures=_render_pictures(report),
        shares=_render_shares(report),
    )


def _render_pictures(report: BatchReport) -> dict[str, Markup]:
    moments = report.moments[:: len(report.moments) // _POINTS + 1]
    values = {
        "Rows with a result": ("rows", [(moment.seconds, moment.completed + moment.failed) for moment in moments]),
        "Requests in flight, reported by the workers": (
            "requests",
            [(moment.seconds, moment.in_flight) for moment in moments],
        ),
    }
    return {
        title: Markup(charts.render_curves(title, "s", unit, {"": points}, {}, {}))
        for title, (unit, points) in values.items()
    }


def _render_shares(report: BatchReport) -> Markup:
    """Render each team's share of the output tokens over time; empty if it was not measured."""
    if report.fair_share is None:
        return Markup()
    width_s, bands = batch_shares.compute_bands(report.fair_share)
    picture = charts.render_bands(
        "Share of the output tokens",
        bands,
        width_s,
        levels=[100 * level for level in itertools.accumulate(share.expected for share in report.fair_share.teams)][
            :-1
        ],
        marks={"urgent job submitted": report.fair_share.urgent.submitted_s},
        highlight=batch_shares.URGENT,
        caption=f"In each {width_s:g} s, by team.",
    )
    return Markup(picture)
