"""The page of a sweep: what happens to latency, goodput and throughput as the load grows. No input or output."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from llm_serving.validation.pages import charts, html_report
from llm_serving.validation.search.knee import UNITS, Sweep


def render(result: Sweep) -> str:
    return html_report.render_page(
        "sweep.html.j2", sweep=result, unit=UNITS[result.axis], pictures=render_pictures(result)
    )


def render_pictures(result: Sweep) -> dict[str, Markup]:
    """Render the curves over the load, by title."""
    slo, unit, points = result.settings["slo"], UNITS[result.axis], result.points
    marks = {f"kept up to {charts.format_number(result.kept.load)}": result.kept.load} if result.kept else {}

    def render_curves(title: str, unit_y: str, fields: Mapping[str, str], limits: dict[str, float]) -> Markup:
        curves: dict[str, list[tuple[float, float]]] = {}
        for name, field in fields.items():
            if curve := [(point.load, value) for point in points if (value := getattr(point, field)) is not None]:
                curves[name] = curve
        return Markup(charts.render_curves(title, unit, unit_y, curves, limits, marks))

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
