"""Applies the stacks that were planned, in order. Only what was shown is applied: the saved plan file itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from llm_serving import console
from llm_serving.aws import state_bucket
from llm_serving.operations import (
    capacity_providers,
    plan_checks,
    plans,
    removed_zones,
    taken_names,
)
from llm_serving.operations.context import FleetContext, initialize_stacks
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform import runner
from llm_serving.terraform.plan import find_unapproved

LIMIT_S = 3 * 3600.0
"""An EKS cluster takes 15 minutes, node groups of large instances another 15; the provider has limits of its own for
each resource."""

GRACE_S = 300.0
"""Terraform, asked to stop, waits for what it has begun and records it in the state. Killed before, it would not."""


def apply(context: FleetContext, approved_plans: Sequence[StackPlan]) -> None:
    """Apply each stack's saved plan, wave by wave; a deferred one is planned when its turn comes.

    Args:
        approved_plans: the plans that the user has seen; other stacks are left alone.

    Raises:
        CheckFailed: a plan that had to be made again has changes that the approved one has not, or one of the checks
            finds that the plans would end what is in use, take names of others, or move Kubernetes unasked.
        CommandFailed: Terraform failed; the same command resumes.
    """
    _require_network(context, approved_plans)
    require_safe(context, approved_plans)
    approved = {plan.name: plan for plan in approved_plans}
    for wave in removed_zones.order_waves(context, approved):
        deferred = [name for name, folder in wave.items() if name in approved and not (folder / plans.FILE).is_file()]
        new_plans = {plan.name: plan for plan in plans.create(context, deferred)} if deferred else {}
        _require_approved(context, approved, new_plans)
        taken_names.require_free(context, list(new_plans.values()))
        if plans.NETWORK in wave:
            removed_zones.require_empty(context, approved)
        wave_plans = [new_plans.get(name, approved[name]) for name in wave if name in approved]
        for plan in wave_plans:
            if plan.is_empty:
                console.err.print(f"[green]✓[/green] {plan.name}: up to date")
        if changed_folders := {plan.name: wave[plan.name] for plan in wave_plans if not plan.is_empty}:
            title = f"Apply {', '.join(changed_folders)} to {context.cloud_name}"
            run_terraform(context, changed_folders, ("apply", "-input=false", plans.FILE), title)
        for plan in wave_plans:
            (wave[plan.name] / plans.FILE).unlink(missing_ok=True)


def _require_network(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that a plan that waits for the network is not applied without it."""
    waiting = [plan.name for plan in stack_plans if plan.deferred_reason]
    if waiting and plans.NETWORK not in (plan.name for plan in stack_plans):
        raise CheckFailed(
            f"{context.document.path}: {', '.join(waiting)}: the network is not there, or lacks a zone of the file. "
            f"Nothing was changed. Fix: apply it too: `blueprint fleet apply {plans.NETWORK} {' '.join(waiting)}`"
        )


def require_safe(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that plans end nothing that is in use, take no names of others, and move Kubernetes as the file says.

    Raises:
        CheckFailed: they do not; nothing was changed.
        Unavailable: AWS refuses, or does not answer.
    """
    plan_checks.require_kept(context, stack_plans)
    plan_checks.require_logs_kept(context, stack_plans)
    plan_checks.require_repositories_empty(context, stack_plans)
    plan_checks.require_version_stated(context, stack_plans)
    capacity_providers.require_unused(context, stack_plans)
    capacity_providers.require_placeable(context, stack_plans)
    plan_checks.require_groups_empty(context, stack_plans)
    plan_checks.require_karpenter_idle(context, stack_plans)
    plan_checks.require_blocks_ended(context, stack_plans)
    removed_zones.require_clusters_zones(context, {plan.name: plan for plan in stack_plans})
    taken_names.require_free(context, stack_plans)


def ensure_state_bucket(context: FleetContext) -> None:
    """Create the bucket of Terraform's state, or add the settings that it lacks.

    Raises:
        CheckFailed: the bucket belongs to another account, or is in another region.
    """
    if context.fleet.state == "local":
        return
    if state_bucket.ensure_state_bucket(context.fleet, context.aws, confirm=lambda: True):
        delete_plans(context)
        initialize_stacks(context)
    else:
        console.err.print(f"[green]✓[/green] {context.fleet.state}: bucket up to date")


def delete_plans(context: FleetContext) -> None:
    """Delete saved plans: one that was made with another backend of the state cannot be applied."""
    for folder in context.folders.values():
        (folder / plans.FILE).unlink(missing_ok=True)


@contextmanager
def use_plans(context: FleetContext) -> Iterator[None]:
    """Delete the plans that were saved meanwhile, applied or not: they may hold secrets."""
    try:
        yield
    finally:
        delete_plans(context)


def run_terraform(context: FleetContext, folders: Mapping[str, Path], arguments: Sequence[str], title: str) -> None:
    """Run a command that changes the stacks in `folders`, as a step with their progress.

    Raises:
        CommandFailed: Terraform failed; the same command resumes.
    """
    with console.step(title) as step:
        runner.run(
            context.program,
            folders,
            arguments,
            timeout_s=LIMIT_S,
            grace_s=GRACE_S,
            on_progress=lambda note: setattr(step, "note", note),
        )
        step.note = "done"


def _require_approved(
    context: FleetContext, approved: Mapping[str, StackPlan], new_plans: Mapping[str, StackPlan]
) -> None:
    """Require that plans which had to be made again change nothing more than the approved ones.

    A deferred plan was shown by the number of its resources, so the new one may only create, and take over log groups
    of those that an earlier fleet left.
    """
    unapproved: list[str] = []
    for name, new in new_plans.items():
        if approved[name].deferred_reason:
            imported = {address for address, change in new.plan.resources.items() if change.is_import}
            verbs = {address: verb for address, verb in new.plan.affected.items() if address not in imported}
        else:
            verbs = find_unapproved(approved[name].plan, new.plan)
        unapproved += [f"  {address} would be {verb}" for address, verb in verbs.items()]
    if unapproved:
        raise CheckFailed(
            f"{context.document.path}: Terraform would now change more than was shown before. Nothing of it was "
            "applied. Fix: review it with `blueprint fleet plan`, then run this again:\n" + "\n".join(unapproved)
        )
