"""report.html of a streaming deployment: one self-contained page. No input or output."""

from __future__ import annotations

import math
from pathlib import Path

from markupsafe import Markup

from llm_serving.kinds.streaming.validation import outcomes as stream_outcomes
from llm_serving.kinds.streaming.validation.outcomes import Outcomes
from llm_serving.kinds.streaming.validation.report import StreamReport
from llm_serving.validation.pages import charts, html_report


def render(report: StreamReport, measured: Outcomes) -> str:
    return html_report.render_page(
        "stream.html.j2", Path(__file__).parent, report=report, pictures=_render_pictures(report, measured)
    )


def _render_pictures(report: StreamReport, measured: Outcomes) -> dict[str, Markup]:
    times = stream_outcomes.measure_times(measured)
    limit = {"p99": 1000 * report.settings["slo"]["answer_p99"]}
    pictures = {
        "Event to answer in the cache": (times.answer, report.metrics.answer_ms, limit),
        "Pipeline alone": (times.pipeline, report.metrics.pipeline_ms, {}),
    }
    return {
        title: Markup(charts.render_distribution(title, list(filter(math.isfinite, values)), latency, limits))
        for title, (values, latency, limits) in pictures.items()
    }
