"""Applies the stacks that were planned, in order; what was not shown to the user before is not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_serving import console
from llm_serving.aws import state_bucket as state
from llm_serving.operations import plans
from llm_serving.operations.context import Site, connect
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import AnswerIsNo
from llm_serving.terraform import runner

LIMIT_S = 3 * 3600.0
"""An EKS cluster takes a quarter of an hour, node groups of large machines another one; the provider has limits of its
own for each resource."""

GRACE_S = 300.0
"""Terraform, asked to stop, waits for what it has begun and writes it down. Killed before, it would forget it."""


def apply(site: Site, agreed: Sequence[StackPlan]) -> None:
    """Applies each stack's plan, wave by wave; a stack that could not be planned before is planned when its turn comes.

    Args:
        agreed: what the user has seen.

    Raises:
        AnswerIsNo: a later plan would touch what the one that was shown does not.
        CommandFailed: Terraform failed; the same command goes on.
    """
    seen = {plan.name: plan for plan in agreed}
    for wave in site.waves:
        late = [name for name, folder in wave.items() if name in seen and not (folder / plans.FILE).is_file()]
        fresh = {plan.name: plan for plan in plans.make(site, late)} if late else {}
        _only_what_was_seen(site, seen, fresh)
        now = [fresh.get(name, seen[name]) for name in wave if name in seen]
        for plan in now:
            if plan.empty:
                console.err.print(f"[green]✓[/green] {plan.name}: done already, Terraform finds no difference")
        _apply(site, {plan.name: wave[plan.name] for plan in now if not plan.empty})
        for name in wave:
            (wave[name] / plans.FILE).unlink(missing_ok=True)


def state_bucket(site: Site) -> None:
    """Makes the bucket of Terraform's state, or what it lacks, once it is agreed to; says so where nothing is to do.

    Raises:
        AnswerIsNo: the bucket is somebody else's, or in another region.
        Unavailable: AWS refuses, or does not answer.
    """
    if site.fleet.state == "local":
        return
    if state.ensure_state_bucket(site.fleet, agree=lambda: True):
        forget_plans(site)
        connect(site)
    else:
        console.err.print(f"[green]✓[/green] {site.fleet.state}: done already, its bucket is as it should be")


def forget_plans(site: Site) -> None:
    """Plans made before the state had its place cannot be applied."""
    for folder in site.folders.values():
        (folder / plans.FILE).unlink(missing_ok=True)


def _apply(site: Site, folders: Mapping[str, Path]) -> None:
    if not folders:
        return
    with console.step(f"Apply {', '.join(folders)} to {site.at}") as step:
        runner.run(
            site.program,
            folders,
            ("apply", "-input=false", plans.FILE),
            timeout_s=LIMIT_S,
            grace_s=GRACE_S,
            note=lambda note: setattr(step, "note", note),
        )
        step.note = "done"


def _only_what_was_seen(site: Site, seen: Mapping[str, StackPlan], fresh: Mapping[str, StackPlan]) -> None:
    new = [
        f"  {address} would be {what}"
        for name, plan in fresh.items()
        for address, what in plan.touched.items()
        if seen[name].touched.get(address) != what
    ]
    if new:
        raise AnswerIsNo(
            f"{site.document.path}: Terraform would now change more than was shown before. Nothing of it was done; "
            "look at it with `blueprint fleet plan`, then run this again:\n" + "\n".join(new)
        )
