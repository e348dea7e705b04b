"""The page of a sweep: what happens to latency, goodput and throughput as the load grows. No input or output."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from llm_serving.validation.pages import charts, html_report
from llm_serving.validation.search.knee import UNITS, Point, Sweep


def render(result: Sweep) -> str:
    return html_report.render_page(
        "sweep.html.j2", sweep=result, unit=UNITS[result.axis], pictures=render_pictures(result)
    )


def render_pictures(result: Sweep) -> dict[str, Markup]:
    """Render the curves over the load, by title."""
    slo, unit, points = result.settings["slo"], UNITS[result.axis], result.points
    marks = {f"kept up to {charts.format_number(result.kept.load)}": result.kept.load} if result.kept else {}

    def render_curves(title: str, unit_y: str, getters: Mapping[str, str], limits: dict[str, float]) -> Markup:
        curves = {name: collect_curve(points, operator.attrgetter(field)) for name, field in getters.items()}
        shown = {name: curve for name, curve in curves.items() if curve}
        return Markup(charts.render_curves(title, unit, unit_y, shown, limits, marks))

    def render_latency(title: str, metric: str) -> Markup:
        limits = {name: limit for name, limit in slo.get(f"{metric}_ms", {}).items() if limit is not None}
        return render_curves(title, "ms", {name: f"{metric}_{name}_ms" for name in ("p50", "p95")}, limits)

    has_tokens = any(point.ttft_p95_ms is not None for point in points)
    answered = {"all": "requests_per_s", "within every limit": "goodput_per_s"}
    tokens = render_curves("Output tokens/s", "tokens/s", {"": "output_tokens_per_s"}, {})
    latencies = (
        {
            "Time to first token": render_latency("Time to first token", "ttft"),
            "Inter-token latency": render_latency("Inter-token latency", "itl"),
        }
        if has_tokens
        else {"End-to-end latency": render_latency("End-to-end latency", "e2e")}
    )
    return {
        **latencies,
        "Answered requests/s, and goodput": render_curves("Answered requests/s", "requests/s", answered, {}),
        **({"Output tokens/s": tokens} if has_tokens else {}),
    }


def collect_curve(points: Sequence[Point], get: Callable[[Point], float | None]) -> list[tuple[float, float]]:
    """Return load and value of the points that have one; of a load that was sent twice the last."""
    values = {point.load: value for point in points if (value := get(point)) is not None}
    return sorted(values.items())
