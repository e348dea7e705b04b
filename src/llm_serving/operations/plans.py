"""What Terraform would do to each stack of a fleet, read from its own plan."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.fleet import names
from llm_serving.fleet.model import ExistingNetwork
from llm_serving.operations.context import Site, states
from llm_serving.rehearsal import emulator_gaps
from llm_serving.terraform import runner

FILE = "fleet.tfplan"
"""A plan in its stack's folder, so that what was shown is what is applied. It may hold secrets: for its owner alone."""

NETWORK = "network"
"""The stack in whose VPC the machines of the others stand: these look it up, so it must be there to plan them."""


@dataclass(frozen=True)
class StackPlan:
    """What Terraform would do to one stack."""

    name: str
    resources: int
    """In the synthesized stack."""

    add: int = 0
    change: int = 0
    destroy: int = 0
    """A resource that is replaced counts as one added and one destroyed, as Terraform itself counts."""

    touched: Mapping[str, str] = field(default_factory=dict)
    """What is there and would not stay as it is: by address, `updated in-place`, `replaced` or `destroyed`."""

    waits: str = ""
    """Why there is no plan; "" where there is one."""

    left_out: Mapping[str, int] = field(default_factory=dict)
    """What the embedded AWS cannot hold, by kind."""

    @property
    def empty(self) -> bool:
        """Whether the stack is as it should be."""
        return not self.waits and not (self.add or self.change or self.destroy)

    def plain(self) -> dict[str, Any]:
        """The plan as `--json` shows it."""
        return {
            "stack": self.name,
            "resources": self.resources,
            "planned": not self.waits,
            "waits": self.waits,
            "add": self.add,
            "change": self.change,
            "destroy": self.destroy,
            "touched": dict(self.touched),
            "left_out": dict(self.left_out),
        }


def make(site: Site, only: Sequence[str] | None = None) -> list[StackPlan]:
    """Has Terraform plan every stack that can be planned, and keeps each plan for `apply`.

    Args:
        only: names of the stacks; all of the site where None.

    Raises:
        CommandFailed: Terraform failed.
    """
    wanted = {name: folder for name, folder in site.folders.items() if only is None or name in only}
    with console.step(f"Plan {', '.join(wanted)}: nothing is changed yet") as step:
        waiting = _waiting(site, wanted)
        ready = {name: folder for name, folder in wanted.items() if name not in waiting}
        said = _planned(site, ready) if ready else {}
        emulated = site.endpoint is not None
        made = [_read(name, folder, said.get(name), waiting.get(name, ""), emulated) for name, folder in wanted.items()]
        step.note = ", ".join(f"{one.name} {short(one)}" for one in made)
    return made


def short(plan: StackPlan) -> str:
    """A plan in a few signs."""
    return "waits" if plan.waits else "no changes" if plan.empty else f"+{plan.add} ~{plan.change} -{plan.destroy}"


def _waiting(site: Site, wanted: Mapping[str, Path]) -> dict[str, str]:
    """Why some stacks cannot be planned yet."""
    others = [name for name in wanted if name not in names.BASE_STACKS]
    if not others or NETWORK not in site.folders or isinstance(site.fleet.network, ExistingNetwork):
        return {}
    network = states(site, [NETWORK])[NETWORK]
    missing = set(site.fleet.zones) - set(network.outputs.get("private_subnet_ids", {}))
    why = f"looks up the VPC and its subnets, which the stack {NETWORK} makes first"
    return dict.fromkeys(others, why) if missing else {}


def _planned(site: Site, folders: Mapping[str, Path]) -> dict[str, str]:
    for folder in folders.values():
        (folder / FILE).unlink(missing_ok=True)
    ended = runner.run(site.program, folders, ("plan", "-input=false", f"-out={FILE}"))
    for folder in folders.values():
        (folder / FILE).chmod(0o600)
    return {name: end.output for name, end in ended.items()}


_COUNTS = re.compile(r"^Plan: (\d+) to add, (\d+) to change, (\d+) to destroy", re.MULTILINE)
_TOUCHED = re.compile(r"^  # (\S+) .*\b(updated in-place|replaced|destroyed)\b", re.MULTILINE)


def _read(name: str, folder: Path, said: str | None, waits: str, emulated: bool) -> StackPlan:
    """Terraform's own words as figures."""
    stack = json.loads((folder / "cdk.tf.json").read_text())
    count = sum(map(len, stack.get("resource", {}).values()))
    left_out = emulator_gaps.counted(stack) if emulated else {}
    if said is None:
        return StackPlan(name, count, waits=waits, left_out=left_out)
    found = _COUNTS.search(said)
    add, change, destroy = map(int, found.groups()) if found else (0, 0, 0)
    return StackPlan(name, count, add, change, destroy, dict(_TOUCHED.findall(said)), "", left_out)
