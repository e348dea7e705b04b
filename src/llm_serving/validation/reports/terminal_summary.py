"""A validation's result in the terminal: each number with its limit, and the path of the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.settings.units import format_bytes
from llm_serving.validation.pages import html_report
from llm_serving.validation.pages.charts import format_number
from llm_serving.validation.pages.html_report import Cell
from llm_serving.validation.reports import kind_report
from llm_serving.validation.reports.report import Report, describe_error

NOTICED_STALL_S = 1.0

_CELL_STYLES = {"met": "green", "missed": "red", "not shown": "yellow"}


def render(report: Report, folder: Path) -> RenderableType:
    """Render the report that was saved in `folder`."""
    requests, rates = report.requests, report.throughput
    return Group(
        _render_latencies(report),
        f"{requests.total} requests, {requests.failed} failed; {format_number(rates.requests_per_s)} requests/s, "
        + (
            f"{format_number(rates.output_tokens_per_s)} output tokens/s"
            if rates.inputs_per_s is None
            else f"{format_number(rates.inputs_per_s)} {html_report.name_counted(report)}/s"
        ),
        *_list_failures(report),
        *_list_steady_lines(report),
        *_list_model_tables(report),
        *_list_lines(report),
        *_list_transfer_lines(report),
        *_list_unlike_lines(report),
        *kind_report.render_end(report, folder, (*report.remarks, *_list_disagreements(report))),
    )


def _list_failures(report: Report) -> Iterator[str]:
    """Yield each kind of failure with what its first request got."""
    details = {answer.error: " ".join(answer.detail.split()) for answer in report.answers}
    for kind, count in report.requests.by_error.items():
        yield f"  {count} {kind}: {details.get(kind) or describe_error(kind)}"


def _list_steady_lines(report: Report) -> Iterator[str]:
    """Yield the rates of a closed loop that goes on: those that the SLO and a sweep count."""
    if report.settings["traffic"].get("users") and report.steady:
        yield f"Without ramp and drain: {html_report.describe_steady(report, report.steady)}"


def _list_lines(report: Report) -> Iterator[str]:
    """Yield a line for each number besides latencies that the load has."""
    if len(report.by_input) > 1:
        parts = [f"{group.from_tokens:,}–{group.to_tokens:,}: {format_number(group.p95)}" for group in report.by_input]
        yield f"End-to-end p95 in ms by input tokens: {', '.join(parts)}"
    overlap, slo = report.shared, report.settings["slo"]
    if overlap.prompts and overlap.cached is not None:  # the router's policy at work
        cached = f"{overlap.cached:.0%} of prompt tokens found in engine caches"
        yield f"{overlap.prompts:.0%} of prompt text shared; {cached}"
    if report.goodput.share is not None:
        limit, rate = slo.get("goodput"), format_number(report.goodput.requests_per_s)
        bound = f"–{report.share_bounds['goodput'].lower:.1%} ≥ {limit * 100:g}%" if limit else ""
        yield f"Goodput: {report.goodput.share:.1%}{bound} of requests meet every limit, {rate}/s"
    if (expected := report.expected) and expected.score is not None:
        yield f"Mean score of the answers by {expected.score_by}: {expected.score:.1%}"
    if (limit := slo.get("stall")) or report.longest_stall_s >= NOTICED_STALL_S:
        most = f" ≤ {format_number(limit)} s" if limit else ""
        nothing = "no answer" if html_report.is_pooled(report) else "no token"
        yield f"Longest stall: {nothing} for {format_number(report.longest_stall_s)} s{most}"
    cost = report.cost
    if cost and cost.per_million_tokens is not None and cost.per_thousand_requests is not None:
        yield (
            f"{cost.per_million_tokens:.3f} USD per million tokens, {cost.per_thousand_requests:.3f} per 1,000 "
            f"requests ({cost.usd_h:,.2f} USD/h on demand)"
        )


def _list_model_tables(report: Report) -> Iterable[Table]:
    heads, rows = html_report.build_model_table(report)
    if rows:
        table = Table(box=None, header_style="dim", pad_edge=False)
        table.add_column(heads[0], overflow="fold")
        for head in heads[1:]:
            table.add_column(head.replace(" ", "\n", 1), justify="right")  # in two lines, to leave room for names
        for row in rows:
            table.add_row(*map(Text, row))
        yield table


def _list_transfer_lines(report: Report) -> Iterable[str]:
    """Return what the hand-over from prefill to decode takes, and what else a first token waits for."""
    transfers = report.kv_transfers
    if transfers is None:
        return
    failed = f", {transfers.failed} failed" if transfers.failed else ""
    if transfers.mean_ms is None:
        yield f"No KV cache was handed over{failed}"
        return
    share = "" if transfers.share_of_ttft is None else f", {transfers.share_of_ttft:.0%} of the time to first token"
    size = format_bytes(transfers.bytes / transfers.count)
    yield f"{transfers.count} KV transfers{failed}: {size} in {format_number(transfers.mean_ms)} ms each{share}"
    parts = {"prefill": transfers.prefill_ms, "decode": transfers.decode_ms, "router": transfers.router_ms}
    if transfers.router_ms is not None:
        yield "First token: " + " + ".join(f"{name} {format_number(ms or 0)} ms" for name, ms in parts.items())


def _list_unlike_lines(report: Report) -> Iterable[Text]:
    """Return a line for each role of a model on unlike accelerators: its share of the requests, and its limits."""
    for row in report.unlike_workers:
        line = Text(f"{row.role}, {row.replicas} x {row.accelerators}: {row.requests} requests")
        if row.share is not None:
            line.append(f", {row.share:.0%} of all; by weight {row.weight_share:.0%}")
        for metric, latencies in row.latencies.items():
            for statistic, latency in latencies.items():
                if latency.state is not None and latency.limit is not None:
                    limit = f"; {metric.removesuffix('_ms')} {statistic} {html_report.format_bucket(latency)} ms"
                    line.append(f"{limit} ≤ {format_number(latency.limit)}", _CELL_STYLES[latency.state])
        yield line


def _list_disagreements(report: Report) -> Iterable[str]:
    """Return the first difference between client and engine for each metric; the page has all of them."""
    messages: dict[str, str] = {}
    for row in report.agreement:
        if row.said:
            messages.setdefault(row.metric, row.said)
    return messages.values()


def _render_latencies(report: Report) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("ms")
    for statistic in html_report.STATISTICS:
        table.add_column(statistic, justify="right")
    for metric, row in html_report.build_cells(report).items():
        table.add_row(html_report.METRIC_NAMES[metric], *_render_cells(row.values()))
    return table


def _render_cells(row: Iterable[Cell]) -> Iterator[Text]:
    for cell in row:
        text, upper = "-" if cell.value is None else format_number(cell.value), cell.upper
        if cell.limit is not None:
            bound = "?" if upper is None else "∞" if math.isinf(upper) else format_number(upper)
            text = f"{text}–{bound} ≤ {format_number(cell.limit)}"
        yield Text(text, _CELL_STYLES[cell.state] if cell.limit is not None else "")
