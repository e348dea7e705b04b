"""Results of validations, comparisons, sweeps and tunings in a terminal of 80 columns."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from llm_serving.cli.commands import compare, sweep, tune
from llm_serving.validation.reports import comparison, terminal_summary
from llm_serving.validation.search.knee import Sweep
from llm_serving.validation.search.racing import Trial, Tuning
from tests.validation.reports import test_report
from tests.validation.reports.test_comparison import _simulate
from tests.validation.search.test_knee import build_point

LOADS = [
    build_point(load, verdict, requests_per_s=load, output_tokens_per_s=123_456.0, ttft_p95_ms=12_345.6, itl_p95_ms=1_234.5)
    for load, verdict in ((1_230.0, "pass"), (1_350.0, "fail"))
]  # fmt: skip


def render(renderable: RenderableType, width: int) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(renderable)
    return output.getvalue()


def list_numbers(text: str) -> list[str]:
    """The numbers of a text, in order of their characters: a narrow terminal may put them on other lines."""
    return sorted(re.findall(r"[\d,.]*\d", text))


def build_summary() -> RenderableType:
    samples = [
        test_report._build_sample(number, ttft_ms=1_000.5 + 10 * number, e2e_ms=20_000.5 + 10 * number)
        for number in range(400)
    ]
    slo = {
        "ttft_ms": {"p95": 10_000, "p99": 20_000}, "itl_ms": {"p95": 1_000, "p99": 2_000},
        "e2e_ms": {"p95": 60_000, "p99": 120_000}, "goodput": "95%", "stall": "60s",
    }  # fmt: skip
    report = test_report.make_report(samples, slo, duration_s=60.0)
    return terminal_summary.render(report, Path("runs/mine/2026-11-24T10-00-00Z"))


def build_comparison() -> RenderableType:
    runs = [_simulate(seed, factor=factor) for seed, factor in ((1, 10.0), (2, 100.0))]
    for run in runs:
        run.report["cost"] = {"usd_h": 1_234.5}  # type: ignore[index]
    return compare.render([comparison.compare(*runs)])


def build_sweep() -> RenderableType:
    kept, missed = LOADS
    result = Sweep(
        name="mine", target="local", axis="rate", precision=0.1, started_at="2026-11-24T10:00:00+00:00", seconds=60.0,
        kept=kept, missed=missed, capacity=None, per_replica={}, points=LOADS, settings={}, notes=[],
    )  # fmt: skip
    return sweep.render(result, Path("runs/mine/sweep-2026-11-24T10-00-00Z"))


def build_tuning() -> RenderableType:
    settings = {"tuning.batch_tokens": "16k", "tuning.sequences": "1024", "roles.worker.accelerators": "8"}
    trials = [
        Trial(number=1, settings=settings, state="kept", usd_h=98.32, points=LOADS, kept=LOADS[0]),
        Trial(number=2, settings=settings, state="dropped", usd_h=98.32, why="the queue still grew"),
    ]
    state = Tuning(
        name="mine", target="eks", digest="", axis="rate", precision=0.1, point_s=20, started_at="", trials=trials, best=1
    )  # fmt: skip
    return tune.render(state, Path("runs/mine/tune-2026-11-24T10-00-00Z"))


@pytest.mark.parametrize("build", [build_summary, build_comparison, build_sweep, build_tuning])
def test_in_80_columns_no_line_is_wider_and_no_name_or_number_is_cut(build: Callable[[], RenderableType]) -> None:
    result = build()
    narrow, wide = render(result, 80), render(result, 200)
    assert max(map(len, narrow.splitlines())) <= 80
    assert list_numbers(narrow) == list_numbers(wide) and "…" not in narrow
    # Negative control: a terminal that is too narrow cuts some.
    assert list_numbers(render(result, 20)) != list_numbers(wide)
