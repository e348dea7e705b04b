"""`blueprint rehearse`: the fleet's stacks against a mocked provider, and from apply to destroy on an embedded AWS."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console, processes
from llm_serving.options.arguments import FLEET, OUT, AsJson, Out
from llm_serving.rehearsal import emulator, override, run
from llm_serving.rehearsal.run import Rehearsal, StackResult
from llm_serving.services import inputs
from llm_serving.settings.errors import InputError, quote_value


def rehearse(
    stacks: Annotated[
        list[str] | None, typer.Argument(metavar="STACK", help="Stacks to rehearse; all if left out.")
    ] = None,
    fleet: Annotated[
        Path, typer.Option("--fleet", metavar="FILE", help="The fleet file, or a folder of fleet files.")
    ] = FLEET,
    out: Out = OUT,
    mocked: Annotated[bool, typer.Option("--mocked", help="Plan with a mocked provider only; takes seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Apply and destroy the stacks against an embedded AWS.

    Plans with a mocked provider, applies, checks for drift, destroys, and checks that nothing is left.
    """
    if mocked and stacks:
        raise InputError("--mocked: it plans all stacks. Fix: remove --mocked, or the stacks.")
    documents = [inputs.read_fleet(file) for file in _list_fleet_files(fleet)]
    data_folder = Path(".blueprint") / "rehearsal"
    with processes.handle_interrupts():
        if mocked:
            rehearsals = run.plan(documents, out=out, data=data_folder / "mocked")
        else:
            rehearsals = [
                run.rehearse(
                    document,
                    out=out if len(documents) == 1 else out / document.value.name,
                    data=data_folder / document.value.name,
                    stack_names=stacks or None,
                )
                for document in documents
            ]
    _print_result(rehearsals, mocked=mocked, as_json=as_json)


def _print_result(rehearsals: Sequence[run.Rehearsal], *, mocked: bool, as_json: bool) -> None:
    if as_json:
        emulated = [] if mocked else [emulator.EMULATION_NOTE]
        console.print_json(
            {"rehearsals": [dataclasses.asdict(rehearsal) for rehearsal in rehearsals], "emulated": emulated}
        )
        return
    console.out.print(f"{rehearsals[0].terraform}, AWS provider from {rehearsals[0].provider_from}")
    console.out.print(render(rehearsals), soft_wrap=False)
    if not mocked:
        console.out.print("No drift after any apply; nothing left after the destroy.")
        console.out.print(emulator.EMULATION_NOTE)


def _list_fleet_files(fleet: Path) -> list[Path]:
    if not fleet.is_dir():
        return [fleet]
    if files := sorted(fleet.glob("*.yaml")):
        return files
    raise InputError(
        f"--fleet: {quote_value(fleet)}: the folder has no fleet file (*.yaml). Fix: use another folder, or a file."
    )


def render(rehearsals: Sequence[Rehearsal]) -> RenderableType:
    """Render the table of one fleet or several, and why some resources are not emulated."""
    return Group(_render_table(rehearsals), *_render_reasons(rehearsals))


def _render_table(rehearsals: Sequence[Rehearsal]) -> Table:
    stacks = [stack for rehearsal in rehearsals for stack in rehearsal.stacks.values()]
    table = Table(box=box.HORIZONTALS, show_footer=True, show_edge=False, pad_edge=False)
    table.add_column("fleet", footer="total", overflow="fold")
    table.add_column("stack", no_wrap=True)
    for title, footer in zip(
        ("resources", "mocked plan", "emulated apply", "not emulated"), _format_figures(stacks), strict=True
    ):
        table.add_column(title, footer=footer, justify="right")
    for rehearsal in rehearsals:
        for index, (name, stack) in enumerate(rehearsal.stacks.items()):
            last = index == len(rehearsal.stacks) - 1
            table.add_row("" if index else rehearsal.fleet, name, *_format_figures([stack]), end_section=last)
    return table


def _format_figures(stacks: Sequence[StackResult]) -> tuple[str, str, str, str]:
    applied = [stack.applied for stack in stacks if stack.applied is not None]
    return (
        f"{sum(stack.resources for stack in stacks):,}",
        f"{sum(stack.mocked for stack in stacks):,}",
        f"{sum(applied):,}" if applied else "-",
        f"{sum(sum(stack.not_held.values()) for stack in stacks):,}",
    )


def _render_reasons(rehearsals: Sequence[Rehearsal]) -> Iterator[Text]:
    kinds: Counter[str] = Counter()
    for rehearsal in rehearsals:
        for stack in rehearsal.stacks.values():
            kinds.update(stack.not_held)
    for kind, count in sorted(kinds.items()):
        yield Text.assemble("not emulated: ", (f"{count} {kind}", "bold"), f": {override.REASONS[kind]}")
