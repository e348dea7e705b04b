"""Applies the stacks that were planned, in order; what was not shown to the user before is not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_serving import console
from llm_serving.aws import state_bucket as state
from llm_serving.operations import plans
from llm_serving.operations.context import FleetContext, initialize_stacks
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform import runner

LIMIT_S = 3 * 3600.0
"""An EKS cluster takes a quarter of an hour, node groups of large machines another one; the provider has limits of its
own for each resource."""

GRACE_S = 300.0
"""Terraform, asked to stop, waits for what it has begun and writes it down. Killed before, it would forget it."""


def apply(context: FleetContext, approved_plans: Sequence[StackPlan]) -> None:
    """Applies each stack's plan, wave by wave; a stack that could not be planned before is planned when its turn comes.

    Args:
        agreed: what the user has seen.

    Raises:
        AnswerIsNo: a later plan would touch what the one that was shown does not.
        CommandFailed: Terraform failed; the same command goes on.
    """
    approved = {plan.name: plan for plan in approved_plans}
    for wave in context.waves:
        deferred = [name for name, folder in wave.items() if name in approved and not (folder / plans.FILE).is_file()]
        new_plans = {plan.name: plan for plan in plans.create(context, deferred)} if deferred else {}
        _require_approved(context, approved, new_plans)
        wave_plans = [new_plans.get(name, approved[name]) for name in wave if name in approved]
        for plan in wave_plans:
            if plan.is_empty:
                console.err.print(f"[green]✓[/green] {plan.name}: done already, Terraform finds no difference")
        _apply(context, {plan.name: wave[plan.name] for plan in wave_plans if not plan.is_empty})
        for name in wave:
            (wave[name] / plans.FILE).unlink(missing_ok=True)


def ensure_state_bucket(context: FleetContext) -> None:
    """Makes the bucket of Terraform's state, or what it lacks, once it is agreed to; says so where nothing is to do.

    Raises:
        AnswerIsNo: the bucket is somebody else's, or in another region.
        Unavailable: AWS refuses, or does not answer.
    """
    if context.fleet.state == "local":
        return
    if state.ensure_state_bucket(context.fleet, confirm=lambda: True):
        delete_plans(context)
        initialize_stacks(context)
    else:
        console.err.print(f"[green]✓[/green] {context.fleet.state}: done already, its bucket is as it should be")


def delete_plans(context: FleetContext) -> None:
    """Plans made before the state had its place cannot be applied."""
    for folder in context.folders.values():
        (folder / plans.FILE).unlink(missing_ok=True)


def _apply(context: FleetContext, folders: Mapping[str, Path]) -> None:
    if not folders:
        return
    with console.step(f"Apply {', '.join(folders)} to {context.cloud_name}") as step:
        runner.run(
            context.program,
            folders,
            ("apply", "-input=false", plans.FILE),
            timeout_s=LIMIT_S,
            grace_s=GRACE_S,
            on_progress=lambda note: setattr(step, "note", note),
        )
        step.note = "done"


def _require_approved(
    context: FleetContext, approved: Mapping[str, StackPlan], new_plans: Mapping[str, StackPlan]
) -> None:
    unapproved = [
        f"  {address} would be {action}"
        for name, plan in new_plans.items()
        for address, action in plan.affected.items()
        if approved[name].affected.get(address) != action
    ]
    if unapproved:
        raise CheckFailed(
            f"{context.document.path}: Terraform would now change more than was shown before. Nothing of it was done; "
            "look at it with `blueprint fleet plan`, then run this again:\n" + "\n".join(unapproved)
        )
