"""What the commands do on the targets `eks` and `ecs`: the same steps for both, by the target's own module."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from llm_serving import console

if TYPE_CHECKING:
    from llm_serving.targets.on_aws.plan import Plan

TARGETS = ("eks", "ecs")


def module_of(target: str) -> ModuleType:
    """The module of a target: difference, deploy, members, logs, destroy."""
    return importlib.import_module(f"llm_serving.targets.{target}.target")


def plan(folder: Path, fleet: Path, target: str) -> Plan:
    """The blueprint decided for a target, and what should be known of it said.

    Raises:
        InputError: a file is wrong, or the blueprint cannot work there, or has no template for it.
    """
    from llm_serving.targets.on_aws import plan as plans

    made = plans.plan(folder, fleet, target=target)
    for note in (*made.deployment.notes, *made.deployment.emulated):
        console.err.print(f"[dim]{note}[/dim]")
    return made


def reachable(made: Plan, url: str | None) -> AbstractContextManager[str]:
    """The URL to load: the one that the user names, such as a gateway's, else the near end of a tunnel."""
    if url:
        return contextlib.nullcontext(url)
    tunnel: AbstractContextManager[str] = module_of(made.deployment.target).reachable(made)
    return tunnel


def deploy(made: Plan, agree: Callable[[str], None], *, force: bool) -> None:
    """Brings it up and waits for a real answer.

    Raises:
        InputError: an adapter in S3 is none of its role's model; nothing was asked of the target.
    """
    from llm_serving.targets.on_aws import adapters

    adapters.refuse(made)
    changed = module_of(made.deployment.target).deploy(made, agree, force=force)
    state = "is up" if changed else "no change; it is up"
    console.out.print(f"{made.deployment.name}: {state} at {made.deployment.url}", markup=False)


def status(made: Plan, *, as_json: bool) -> None:
    """Shows what runs.

    Raises:
        AnswerIsNo: nothing runs, or not all of it is ready.
    """
    from rich.table import Table

    from llm_serving.settings.errors import AnswerIsNo
    from llm_serving.targets.replica_status import READY

    members = module_of(made.deployment.target).members(made)
    if as_json:
        said = {"name": made.deployment.name, "url": made.deployment.url, "members": [asdict(one) for one in members]}
        print(json.dumps(said, indent=2))
    elif members:
        table = Table("role", "name", "state", "restarts", "machine")
        for one in members:
            table.add_row(one.role, one.name, one.state, str(one.restarts), one.machine)
        console.out.print(table)
        console.out.print(f"{made.deployment.name}: {made.deployment.url}", markup=False)
    if not members:
        raise AnswerIsNo(f"{made.deployment.name}: nothing runs on {made.deployment.target}")
    waiting = sorted({one.role for one in members if one.state != READY})
    if waiting:
        raise AnswerIsNo(f"{made.deployment.name}: not all of {', '.join(waiting)} is ready")
