"""The page of a tuning: the load that each configuration keeps, what it costs, and why others were dropped. Pure."""

from __future__ import annotations

from markupsafe import Markup, escape

from llm_serving.validation.pages import charts, html_report
from llm_serving.validation.search.knee import UNITS
from llm_serving.validation.search.racing import Trial, Tuning

WIDTH, HEIGHT = 360, 22


def render(state: Tuning, best: Trial | None) -> str:
    trials = state.trials
    highest = max((point.load for trial in trials for point in trial.points), default=1.0)
    return html_report.render_page(
        "tune.html.j2",
        filters={"breakable": _break_key},
        state=state,
        trials=trials,
        best=best,
        keys=list(trials[0].settings),
        unit=UNITS[state.axis],
        priced=any(trial.usd_h is not None for trial in trials),
        pictures={trial.number: _render_loads(trial, highest) for trial in trials},
    )


def _break_key(key: str) -> Markup:
    return escape(key).replace(".", Markup(".<wbr>")).replace("_", Markup("_<wbr>"))


def _render_loads(trial: Trial, highest: float) -> Markup:
    """Render a bar up to the load that is kept, and a mark at each load tried: filled where kept."""
    x = charts.Scale(0, highest * 1.05, 2, WIDTH - 2)
    parts = []
    if trial.kept:
        parts.append(f'<rect class="bar" x="2" y="7" width="{max(0.0, x(trial.kept.load) - 2)}" height="8"/>')
    for point in trial.points:
        kind = "dot" if point.kept else "missed"
        parts.append(f'<circle class="{kind}" cx="{x(point.load)}" cy="11" r="4"/>')
    label = f"kept {trial.kept.load:g}" if trial.kept else trial.state
    return Markup(
        f'<svg class="loads" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )
