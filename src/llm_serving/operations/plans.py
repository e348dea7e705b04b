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
from llm_serving.operations.context import FleetContext, read_states
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

    affected: Mapping[str, str] = field(default_factory=dict)
    """What is there and would not stay as it is: by address, `updated in-place`, `replaced` or `destroyed`."""

    deferred_reason: str = ""
    """Why there is no plan; "" where there is one."""

    not_emulated: Mapping[str, int] = field(default_factory=dict)
    """What the embedded AWS cannot hold, by kind."""

    @property
    def is_empty(self) -> bool:
        """Whether the stack is as it should be."""
        return not self.deferred_reason and not (self.add or self.change or self.destroy)

    def build_payload(self) -> dict[str, Any]:
        """The plan as `--json` shows it."""
        return {
            "stack": self.name,
            "resources": self.resources,
            "planned": not self.deferred_reason,
            "waits": self.deferred_reason,
            "add": self.add,
            "change": self.change,
            "destroy": self.destroy,
            "touched": dict(self.affected),
            "left_out": dict(self.not_emulated),
        }


def create(context: FleetContext, stack_names: Sequence[str] | None = None) -> list[StackPlan]:
    """Has Terraform plan every stack that can be planned, and keeps each plan for `apply`.

    Args:
        only: names of the stacks; all of the site where None.

    Raises:
        CommandFailed: Terraform failed.
    """
    folders = {name: folder for name, folder in context.folders.items() if stack_names is None or name in stack_names}
    with console.step(f"Plan {', '.join(folders)}: nothing is changed yet") as step:
        deferred = _find_deferred(context, folders)
        ready = {name: folder for name, folder in folders.items() if name not in deferred}
        outputs = _run_plan(context, ready) if ready else {}
        emulated = context.endpoint is not None
        stack_plans = [
            _parse_plan(name, folder, outputs.get(name), deferred.get(name, ""), emulated)
            for name, folder in folders.items()
        ]
        step.note = ", ".join(f"{plan.name} {summarize(plan)}" for plan in stack_plans)
    return stack_plans


def summarize(plan: StackPlan) -> str:
    """A plan in a few signs."""
    return (
        "waits"
        if plan.deferred_reason
        else "no changes"
        if plan.is_empty
        else f"+{plan.add} ~{plan.change} -{plan.destroy}"
    )


def _find_deferred(context: FleetContext, folders: Mapping[str, Path]) -> dict[str, str]:
    """Why some stacks cannot be planned yet."""
    dependent = [name for name in folders if name not in names.BASE_STACKS]
    if not dependent or NETWORK not in context.folders or isinstance(context.fleet.network, ExistingNetwork):
        return {}
    network = read_states(context, [NETWORK])[NETWORK]
    missing = set(context.fleet.zones) - set(network.outputs.get("private_subnet_ids", {}))
    reason = f"looks up the VPC and its subnets, which the stack {NETWORK} makes first"
    return dict.fromkeys(dependent, reason) if missing else {}


def _run_plan(context: FleetContext, folders: Mapping[str, Path]) -> dict[str, str]:
    for folder in folders.values():
        (folder / FILE).unlink(missing_ok=True)
    results = runner.run(context.program, folders, ("plan", "-input=false", f"-out={FILE}"))
    for folder in folders.values():
        (folder / FILE).chmod(0o600)
    return {name: result.output for name, result in results.items()}


_COUNTS = re.compile(r"^Plan: (\d+) to add, (\d+) to change, (\d+) to destroy", re.MULTILINE)
_AFFECTED = re.compile(r"^  # (\S+) .*\b(updated in-place|replaced|destroyed)\b", re.MULTILINE)


def _parse_plan(name: str, folder: Path, output: str | None, deferred_reason: str, emulated: bool) -> StackPlan:
    """Terraform's own words as figures."""
    stack = json.loads((folder / "cdk.tf.json").read_text())
    count = sum(map(len, stack.get("resource", {}).values()))
    not_emulated = emulator_gaps.count_gaps(stack) if emulated else {}
    if output is None:
        return StackPlan(name, count, deferred_reason=deferred_reason, not_emulated=not_emulated)
    match = _COUNTS.search(output)
    add, change, destroy = map(int, match.groups()) if match else (0, 0, 0)
    return StackPlan(name, count, add, change, destroy, dict(_AFFECTED.findall(output)), "", not_emulated)
