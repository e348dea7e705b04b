"""`blueprint fleet upgrade`: what is behind, and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from llm_serving import console, processes
from llm_serving.fleet import model, upgrade
from llm_serving.fleet.upgrade import Installed, Step
from llm_serving.operations import context, installed
from llm_serving.options.arguments import FLEET, AsJson, Fleet
from llm_serving.services import inputs
from llm_serving.settings import overrides
from llm_serving.settings.errors import Unavailable
from llm_serving.tables import fleet_plan_table


def show_upgrade(
    fleet: Fleet = FLEET,
    write: Annotated[bool, typer.Option("--write", help="Write the next step to the fleet file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is behind the versions that this release pins, in the order to upgrade in.

    Says what each step drains, and who says that it comes in this place. With AWS credentials it reads what runs;
    without, the fleet file only. --write takes one step, and the next only after the last was applied.
    """
    settings = inputs.read_fleet(fleet).value
    running, unread = _read_account(settings)
    if write and running is None:
        raise Unavailable(
            "--write: no AWS credentials found, and only the account shows whether the last step was applied. "
            "Fix: sign in (`aws sso login`), or set AWS_PROFILE."
        )
    steps = upgrade.list_steps(settings, running)
    if as_json:
        console.print_json(_build_payload(steps, unread))
    else:
        _print_upgrade(fleet, settings, steps, unread)
    if write and steps and steps[0].edit:
        key_path, value = steps[0].edit
        text = fleet.read_bytes().decode("utf-8")
        changed_text = overrides.apply(text, {".".join(key_path): value}, after="orchestrator")
        processes.write_whole(fleet, changed_text)


def _read_account(settings: model.Fleet) -> tuple[Installed | None, list[str]]:
    aws = context.open_session(settings.region)
    if not aws.has_credentials():
        return None, ["the account: no AWS credentials were found"]
    with context.lock_fleet(settings) as data_folder:
        return installed.read(aws, settings, data_folder)


def _print_upgrade(fleet: Path, settings: model.Fleet, steps: list[Step], unread: list[str]) -> None:
    for line in unread:
        console.err.print(f"Not read: {line}", markup=False)
    if settings.creates_eks:
        console.err.print(fleet_plan_table.describe_support(settings))
    if not steps:
        console.out.print("Nothing is behind.")
        return
    console.out.print(_render_steps(steps))
    console.out.print(f"Next: {_describe_step(fleet, steps[0])}", markup=False, soft_wrap=True)


def _describe_step(fleet: Path, step: Step) -> str:
    name = console.shorten_path(fleet)
    edit = f"{'.'.join(step.edit[0])}: {step.edit[1]} in {name}, then " if step.edit else ""
    commands = (
        f"{command}{f' --fleet {name}' * command.startswith(('blueprint fleet', 'blueprint platform'))}"
        for command in step.commands
    )
    return edit + ", then ".join(commands)


def _render_steps(steps: Sequence[Step]) -> Table:
    table = Table.grid("", "", padding=(0, 2, 0, 0))
    for number, step in enumerate(steps, start=1):
        table.add_row(str(number), Text(step.name, "bold"))
        for change in step.changes:
            table.add_row("", Text(change))
        table.add_row("", Text(f"drains: {step.drains}"))
        table.add_row("", Text(f"because: {step.rule.reason} ({step.rule.source})"))
    return table


def _build_payload(steps: Sequence[Step], unread: Sequence[str]) -> dict[str, Any]:
    return {
        "steps": [
            {
                "name": step.name,
                "changes": list(step.changes),
                "drains": step.drains,
                "reason": step.rule.reason,
                "source": step.rule.source,
                "edit": {".".join(step.edit[0]): step.edit[1].strip('"')} if step.edit else {},
                "commands": list(step.commands),
            }
            for step in steps
        ],
        "not_read": list(unread),
    }
