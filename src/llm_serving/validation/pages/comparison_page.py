"""The page of a comparison: each change with its interval, in light and dark and for print. No input or output."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from llm_serving.validation.pages import charts, html_report
from llm_serving.validation.reports.comparison import ERRORS_MARGIN, Change, Comparison
from llm_serving.validation.reports.validation_run import ERRORS

WIDTH, HEIGHT = 260, 26
_LEAST_SPAN, _MOST_SPAN = 0.1, 1.0
"""Half of the pictures' range, as a share of the baseline; intervals beyond the most are cut."""


def render(baseline: str, comparisons: Sequence[Comparison], margin: float) -> str:
    return html_report.render_page(
        "comparison.html.j2",
        filters={"value": format_value, "percent": format_percent, "picture": _render_interval, "span": _find_span},
        baseline=baseline,
        comparisons=comparisons,
        margin=margin,
        errors_margin=ERRORS_MARGIN,
    )


def format_value(value: float) -> str:
    """Format a measured number; infinite where failed requests make it so."""
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else charts.format_number(value)


def format_percent(share: float) -> str:
    if math.isnan(share):
        return "–"
    return f"{'+' if share > 0 else '−'}∞" if math.isinf(share) else f"{share:+.1%}".replace("-", "−")


def _find_span(changes: Sequence[Change]) -> float:
    """Half of the range of all pictures of a comparison, so that their intervals compare with each other."""
    bounds = [abs(value) for change in changes for value in (change.low, change.high) if math.isfinite(value)]
    return 1.1 * min(max([_LEAST_SPAN, *bounds]), _MOST_SPAN)


def _render_interval(change: Change, span: float, margin: float) -> Markup:
    """Render a line from bound to bound, a dot at the estimate, a rule at no change, and the margin around it."""
    if math.isnan(change.change):
        return Markup("")
    scale = charts.Scale(-span, span, 4, WIDTH - 4)
    margin *= ERRORS_MARGIN if change.metric == ERRORS else 1
    least, low, estimate, high, most = (
        scale(min(max(value, -span), span)) for value in (-margin, change.low, change.change, change.high, margin)
    )
    kind = change.verdict if change.verdict in ("better", "worse") else ""
    middle = HEIGHT / 2
    return Markup(
        f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{change.verdict}">'
        f'<rect class="margin" x="{least}" width="{most - least:.1f}" y="2" height="{HEIGHT - 4}"/>'
        f'<line class="zero" x1="{scale(0)}" x2="{scale(0)}" y1="2" y2="{HEIGHT - 2}"/>'
        f'<line class="{kind}" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>'
        f'<circle class="{kind}" cx="{estimate}" cy="{middle}" r="4"/></svg>'
    )
