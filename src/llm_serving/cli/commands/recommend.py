"""`blueprint recommend`: the cheapest deployment for a model, a traffic and an SLO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.cli.commands import patterns
from llm_serving.kinds.serving import recommend as recommendation
from llm_serving.kinds.serving.recommend import Answer, Question
from llm_serving.options import completions, quantities
from llm_serving.options.arguments import AsJson
from llm_serving.prediction.problem import Candidate
from llm_serving.settings.errors import CheckFailed, require_choice
from llm_serving.settings.units import Rate, TokenRange
from llm_serving.validation.pages import charts

_PURCHASES = ("on-demand", "spot")

Folder = Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Blueprint with the traffic and the SLO.")]
Model = Annotated[
    str | None, typer.Option(help="Model, as in blueprint.yaml.", autocompletion=completions.complete_models)
]
Arrivals = Annotated[str | None, typer.Option(metavar="RATE", help="Requests a second, such as 10/s.")]
InputTokens = Annotated[str | None, typer.Option(metavar="RANGE", help="Tokens of a prompt: 500..1500.")]
OutputTokens = Annotated[str | None, typer.Option(metavar="RANGE", help="Tokens of an answer: 100..300.")]
SharedPrefix = Annotated[int | None, typer.Option(min=0, metavar="N", help="Tokens that all prompts begin with.")]
TtftLimit = Annotated[
    float | None, typer.Option("--ttft-p95", min=0.001, metavar="MS", help="Limit of the time to first token.")
]
ItlLimit = Annotated[
    float | None, typer.Option("--itl-p95", min=0.001, metavar="MS", help="Limit of the time between tokens.")
]
Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Trace whose times and lengths count.")]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", help="Consider this type only; repeatable.", autocompletion=completions.complete_instance_types
    ),
]
Region = Annotated[str | None, typer.Option(help="Region of the prices; default is the fleet's.")]
Fleet = Annotated[Path | None, typer.Option(metavar="FILE", help="Consider what this fleet rents.")]
Purchase = Annotated[str, typer.Option(help="on-demand or spot.")]
MaxCost = Annotated[float | None, typer.Option(min=0.001, metavar="USD", help="Most that it may cost an hour.")]
Top = Annotated[int, typer.Option(min=1, max=50, metavar="N", help="Types to compare.")]
Explain = Annotated[str | None, typer.Option(metavar="TYPE", help="Say why this type is out.")]
Chart = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the latencies of the cheapest as SVG.")]
Write = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the best as a blueprint.")]


def recommend(
    folder: Folder = None,
    model: Model = None,
    arrivals: Arrivals = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    shared_prefix: SharedPrefix = None,
    ttft_p95: TtftLimit = None,
    itl_p95: ItlLimit = None,
    trace: Trace = None,
    type_: Types = None,
    region: Region = None,
    fleet: Fleet = None,
    buy: Purchase = "on-demand",
    max_usd_per_hour: MaxCost = None,
    top: Top = 3,
    explain: Explain = None,
    chart: Chart = None,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Find the cheapest deployment that meets an SLO.

    Simulates replicas of each instance type under the traffic; it needs no accelerator, no network and no AWS account.
    Exits 1 if none meets the SLO.
    """
    require_choice("--buy", buy, "way to buy", _PURCHASES)
    question = Question(
        folder=folder,
        model=model,
        arrivals=quantities.parse("--arrivals", arrivals, Rate) if arrivals else None,
        input_tokens=quantities.parse("--input-tokens", input_tokens, TokenRange) if input_tokens else None,
        output_tokens=quantities.parse("--output-tokens", output_tokens, TokenRange) if output_tokens else None,
        shared_prefix=shared_prefix,
        ttft_p95=ttft_p95,
        itl_p95=itl_p95,
        trace=trace,
        types=type_ or (),
        region=region,
        fleet=fleet,
        buy=buy,
        max_usd_h=max_usd_per_hour,
        top=top,
    )
    if write:
        patterns.require_new_folder(write, "--write")
    answer = recommendation.recommend(question)
    _print(answer, explain, as_json=as_json)
    if chart:
        chart.write_text(_render_chart(answer), encoding="utf-8")
    _require_met(answer)
    if write:
        _write(answer, write, is_quiet=as_json)
    elif not as_json and not explain:
        console.out.print("Next: the same command with --write DIR", markup=False)


def _print(answer: Answer, explained: str | None, *, as_json: bool) -> None:
    if as_json:
        console.print_json(recommendation.build_payload(answer))
    elif explained:
        console.out.print(recommendation.explain(answer, explained), markup=False)
    else:
        console.print_result(_render(answer))


def _require_met(answer: Answer) -> None:
    """Fail where nothing meets the SLO, with what comes closest."""
    if answer.result.candidates:
        return
    closest = answer.result.closest
    limits = " and ".join(map(str, answer.limits))
    if closest is None:
        raise CheckFailed(f"no type meets {limits}: {answer.result.floor}")
    text = f"{closest.replicas} x {closest.configuration.instance.name} comes closest, {closest.gap:.2f} times a limit"
    raise CheckFailed(f"no type meets {limits}: {text}. Fix: raise that limit or --max-usd-per-hour.")


def _write(answer: Answer, folder: Path, *, is_quiet: bool) -> None:
    pattern = recommendation.choose_pattern(answer.result.candidates[0])
    with patterns.remove_unfinished(folder):
        patterns.copy_pattern(patterns.PATTERNS / pattern, folder)
        recommendation.write(answer, folder)
    if not is_quiet:
        console.out.print(f"Next: blueprint check {folder} --fleet {folder / 'fleet.yaml'} --target eks", markup=False)


_SHOWN_REJECTIONS = 8


def _render(answer: Answer) -> RenderableType:
    """Render the deployments that meet the SLO, then why the next types do not."""
    shown = answer.result.candidates[: answer.top]
    limited = [limit.metric for limit in answer.limits]
    others = [row for row in answer.result.rejected if not row.reason.startswith("the same accelerators")]
    return Group(
        _render_table(shown or ([answer.result.closest] if answer.result.closest else []), limited, is_met=bool(shown)),
        *(Text(recommendation.describe(shown[0])) for _ in shown[:1]),
        *(Text(f"quota: {recommendation.describe_quota(shown[0], answer.buy)}") for _ in shown[:1]),
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
            f"{' + '.join(map(str, recommendation.count_replicas(candidate).values()))} x {own.split.ranks}",
            f"{candidate.usd_h:,.2f}",
            f"{candidate.usd_per_million_output_tokens:,.2f}",
            *(f"{row.p95:,.0f} ≤{row.high:,.0f}" for row in map(candidate.predicted.__getitem__, limited)),
            candidate.basis,
            word,
        )
    return table


def _render_chart(answer: Answer) -> str:
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
