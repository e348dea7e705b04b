"""`blueprint validate`: plays the blueprint's traffic against what is deployed, and says whether the SLO holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.commands.arguments import LOCAL, AsJson, Folder, Target, run_of

if TYPE_CHECKING:
    from scripts.validation.report import Report


def validate(
    folder: Folder,
    target: Target = LOCAL,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Another address of the deployment, such as a gateway's.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="How many requests are counted, in place of the blueprint's number.")
    ] = None,
    user: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Your own Locust user; scripts/validation/user.py shows how.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load-test a deployment with the blueprint's traffic; exit 1 names each limit of its SLO that is missed."""
    from blueprints import blueprint
    from infra.errors import Unavailable
    from scripts import processes
    from scripts.validation import run

    wanted = blueprint.read(folder).value
    at = run_of(folder, target)
    deployed = at.deployment()
    if deployed is None:
        how = f"blueprint deploy {console.near(folder)}"
        raise Unavailable(f"{at.name} is not deployed from here; `{how}` brings it up")
    # Traffic and SLO are the file's as it is now: neither needs a new deployment.
    deployed = deployed.model_copy(update={"traffic": wanted.traffic, "slo": wanted.slo})
    with processes.interruptible():
        made, kept = run.validate(
            deployed, logs=at.logs, runs=at.root / "runs", folder=folder, url=url, requests=requests, user=user
        )
    if as_json:
        print(made.model_dump_json(indent=2))
    else:
        show(made, kept)
    run.gate(made)


def show(made: Report, kept: Path) -> None:
    """The result as a person reads it: each number with its limit, and where the report lies."""
    from rich.markup import escape
    from rich.table import Table

    from scripts.validation import page
    from scripts.validation.charts import number

    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("ms")
    for statistic in page.STATISTICS:
        table.add_column(statistic, justify="right")
    for metric, row in page.cells(made).items():
        texts = []
        for cell in row.values():
            value = "-" if cell.value is None else number(cell.value)
            limit = "" if cell.limit is None else f" ≤ {number(cell.limit)}"
            colour = "" if cell.limit is None else "green" if cell.holds else "red"
            texts.append(f"[{colour}]{value}{limit}[/]" if colour else value)
        table.add_row(page.NAMES[metric], *texts)
    console.out.print(table)
    requests, rates = made.requests, made.throughput
    console.out.print(
        f"{requests.total} requests, {requests.failed} failed; {number(rates.requests_per_s)} answered and "
        f"{number(rates.output_tokens_per_s)} tokens a second"
    )
    for sentence in (*made.remarks, *(row.said for row in made.agreement if row.said), *made.emulated):
        console.out.print(f"[yellow]•[/yellow] {escape(sentence)}")
    colour = "green" if made.verdict == "pass" else "red"
    console.out.print(f"[bold {colour}]{made.verdict.upper()}[/] {escape(console.near(kept / 'report.html'))}")
