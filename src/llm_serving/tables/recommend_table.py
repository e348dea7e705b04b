"""Deployments compared in the terminal, and as a chart of price against latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.kinds.serving import recommend
from llm_serving.kinds.serving.recommend import Answer
from llm_serving.prediction.problem import Candidate
from llm_serving.validation.pages import charts

_SHOWN_REJECTIONS = 8


def render(answer: Answer) -> RenderableType:
    """Render the deployments that meet the SLO, then why the next types do not."""
    shown = answer.result.candidates[: answer.top]
    limited = [limit.metric for limit in answer.limits]
    others = [row for row in answer.result.rejected if not row.reason.startswith("the same accelerators")]
    return Group(
        _render_table(shown or ([answer.result.closest] if answer.result.closest else []), limited, is_met=bool(shown)),
        *(Text(recommend.describe(shown[0])) for _ in shown[:1]),
        *(Text(f"quota: {recommend.describe_quota(shown[0], answer.buy)}") for _ in shown[:1]),
        *(Text.assemble((f"{row.instance}: ", "bold"), row.reason) for row in others[:_SHOWN_REJECTIONS]),
        *_list_more(len(others) - _SHOWN_REJECTIONS),
        *(Text.assemble(("• ", "yellow"), note) for note in answer.notes),
    )


def _list_more(count: int) -> Iterator[Text]:
    if count > 0:
        yield Text(f"and {count} more types: --json lists them, --explain TYPE explains one")


def _render_table(candidates: list[Candidate], limited: Sequence[str], *, is_met: bool) -> Table:
    """Render the latencies that the SLO limits; nodes where one needs several."""
    has_nodes = any(candidate.nodes > 1 for candidate in candidates)
    latencies = [f"{metric.removesuffix('_ms').upper()} p95" for metric in limited]
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("instance", no_wrap=True)
    for heading in (*(["nodes"] if has_nodes else []), "replicas", "USD/h", "USD/1M out", *latencies):
        table.add_column(heading, justify="right", overflow="fold", min_width=max(map(len, heading.split())))
    table.add_column("basis", no_wrap=True)
    table.add_column("", no_wrap=True)
    for number, candidate in enumerate(candidates):
        own = candidate.configuration
        word = Text("chosen", "bold green") if is_met and not number else Text("" if is_met else "closest", "red")
        table.add_row(
            own.instance.name,
            *([str(candidate.nodes)] if has_nodes else []),
            f"{' + '.join(map(str, recommend.count_replicas(candidate).values()))} x {own.split.ranks}",
            f"{candidate.usd_h:,.2f}",
            f"{candidate.usd_per_million_output_tokens:,.2f}",
            *(f"{row.p95:,.0f} ≤{row.high:,.0f}" for row in map(candidate.predicted.__getitem__, limited)),
            candidate.basis,
            word,
        )
    return table


def render_chart(answer: Answer) -> str:
    """Render the latencies that the SLO limits as an SVG file, the cheapest deployment first."""
    closest = [answer.result.closest] if answer.result.closest else []
    rows = answer.result.candidates[: answer.top] or closest
    names = [f"{row.usd_h:,.2f} USD/h  {row.configuration.instance.name}" for row in rows]
    panels = []
    for limit in answer.limits if rows else ():
        latencies = [row.predicted[limit.metric] for row in rows]
        intervals = [
            charts.Interval(name, latency.low, latency.p95, latency.high)
            for name, latency in zip(names, latencies, strict=True)
        ]
        title, limit_name = f"{limit.metric.removesuffix('_ms').upper()} p95", f"{limit.statistic} {limit.ms:g} ms"
        panels.append(charts.Panel(title, "ms", intervals, limit_name, limit.ms))
    return charts.render_panels(panels)
