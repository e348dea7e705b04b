"""What Terraform would do to each stack of a fleet, read from the saved plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.fleet.model import ExistingNetwork
from llm_serving.operations import log_groups
from llm_serving.operations.context import FleetContext, read_states
from llm_serving.rehearsal import override
from llm_serving.terraform import runner, stack_folder, synthesis
from llm_serving.terraform.plan import Plan

FILE = "fleet.tfplan"
"""A saved plan in its stack's folder: what was shown is what is applied. It may hold secrets: mode 0600."""

NETWORK = "network"
"""The stack with the VPC, which the others look up: it must be applied before they can be planned."""


@dataclass(frozen=True)
class StackPlan:
    """What Terraform would do to one stack."""

    name: str
    resources: int
    plan: Plan = field(default_factory=Plan)
    """The saved plan, as Terraform shows it in JSON; empty where it is deferred."""

    deferred_reason: str = ""
    """Why there is no plan yet; "" where there is one."""

    not_emulated: Mapping[str, int] = field(default_factory=dict)
    """Resources that the embedded AWS does not support, by kind."""

    @property
    def is_empty(self) -> bool:
        return not self.deferred_reason and self.plan.is_empty

    def build_payload(self) -> dict[str, Any]:
        return {
            "stack": self.name,
            "resources": self.resources,
            "planned": not self.deferred_reason,
            "waits": self.deferred_reason,
            "add": self.plan.add,
            "change": self.plan.change,
            "destroy": self.plan.destroy,
            "touched": self.plan.affected,
            "changes": {address: change.verb for address, change in self.plan.resources.items()},
            "left_out": dict(self.not_emulated),
        }


def create(context: FleetContext, stack_names: Sequence[str] | None = None) -> list[StackPlan]:
    """Plan every stack that can be planned, and save each plan for `apply`.

    Raises:
        Unavailable: AWS refuses, or does not answer.
        CommandFailed: Terraform failed.
    """
    folders = {name: folder for name, folder in context.folders.items() if stack_names is None or name in stack_names}
    with console.step(f"Plan {', '.join(folders)}") as step:
        deferred = _find_deferred(context, folders)
        ready = {name: folder for name, folder in folders.items() if name not in deferred}
        with log_groups.adopt_existing(context, ready):
            saved = runner.plan(context.program, ready, FILE) if ready else {}
        stack_plans = [
            build_stack_plan(
                name, folder, saved.get(name), deferred.get(name, ""), emulated=context.endpoint is not None
            )
            for name, folder in folders.items()
        ]
        step.note = ", ".join(f"{plan.name} {summarize(plan)}" for plan in stack_plans)
    return stack_plans


def build_stack_plan(
    name: str, folder: Path, plan: Plan | None, deferred_reason: str = "", *, emulated: bool
) -> StackPlan:
    """Return a stack's plan, with what the synthesized stack holds.

    Args:
        plan: None where it is deferred.
    """
    return StackPlan(
        name,
        stack_folder.count_resources(folder),
        plan or Plan(),
        deferred_reason,
        override.count_gaps(stack_folder.read_stack(folder)) if emulated else {},
    )


def summarize(stack_plan: StackPlan) -> str:
    """Return a plan in one word or three counts, as in `+3 ~1 -0`."""
    if stack_plan.deferred_reason:
        return "deferred"
    if stack_plan.is_empty:
        return "no changes"
    plan = stack_plan.plan
    return f"+{plan.add} ~{plan.change} -{plan.destroy}" if plan.resources else "outputs only"


def _find_deferred(context: FleetContext, folders: Mapping[str, Path]) -> dict[str, str]:
    dependent = [name for name, folder in folders.items() if NETWORK in synthesis.read_needs(folder)]
    if not dependent or NETWORK not in context.folders or isinstance(context.fleet.network, ExistingNetwork):
        return {}
    network = read_states(context, [NETWORK])[NETWORK]
    missing_zones = set(context.fleet.zones) - set(network.outputs.get("private_subnet_ids", {}))
    return dict.fromkeys(dependent, f"needs stack {NETWORK}") if missing_zones else {}
