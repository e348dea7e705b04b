"""`blueprint check`: reads both files and prints their mistakes, or what they resolve to; no side effects."""

from __future__ import annotations

from typing import Any

from llm_serving import console
from llm_serving.catalog import eks
from llm_serving.fleet.model import Fleet
from llm_serving.options import arguments
from llm_serving.services import kinds
from llm_serving.settings.document import Document
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan


def check(
    folder: arguments.Folder,
    fleet: arguments.Fleet = arguments.FLEET,
    target: arguments.Target = arguments.TARGET,
    as_json: arguments.AsJson = False,
) -> None:
    """Check a blueprint against its fleet, without side effects.

    Prints every mistake with its line and fix, or what the two files resolve to.
    """
    plan = planning.plan_offline(folder, fleet, target)
    if as_json:
        console.print_json({"ok": True, "mistakes": [], "deployment": _build_payload(plan)})
    else:
        _print_summary(plan)


def _build_payload(plan: DeploymentPlan) -> dict[str, Any]:
    common = {key: getattr(plan.deployment, key) for key in ("name", "kind", "target", "fleet")}
    return {**common, **kinds.get_for(plan.blueprint).build_summary(plan.deployment)}


def _print_summary(plan: DeploymentPlan) -> None:
    description = kinds.get_for(plan.blueprint).describe(plan.blueprint, plan.deployment)
    for part, text in (*_describe_fleet(plan.fleet), *description):
        console.out.print(f"[bold]{part:<10}[/bold]", end="")
        console.out.print(text, markup=False)


def _describe_fleet(document: Document[Fleet]) -> list[tuple[str, str]]:
    fleet = document.value
    limit = f", at most {fleet.spend_limit:g} USD/h" if fleet.spend_limit else ""
    pools = [
        ("pool", f"{name}: {pool.size} x {' or '.join(pool.types)} in {', '.join(fleet.get_zones(pool))}")
        for name, pool in fleet.pools.items()
    ]
    support = [("EKS", eks.describe_support(fleet.eks.version)[0])] if fleet.creates_eks else []
    return [("fleet", f"{fleet.name} ({document.path}): {fleet.region}, {fleet.orchestrator}{limit}"), *support, *pools]
