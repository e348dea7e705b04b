"""A plan that moves the control plane of EKS to another version of Kubernetes: by one minor version, as the file says.

A default that moves with a release of this repository would upgrade a cluster that nobody meant to upgrade, before the
charts that must know the version.

Source: EKS user guide, "Update existing cluster to new Kubernetes version" and "Rollback cluster to previous Kubernetes
version", 2026-11.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_serving.catalog import eks
from llm_serving.fleet import upgrade
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed

_KIND = "aws_eks_cluster"


def require_stated(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that the file names the version that a plan moves the control plane to, and that it is one step away.

    Raises:
        CheckFailed: it does not, or it is not.
    """
    moves = (change.moves for plan in stack_plans for change in plan.plan.select(_KIND).values() if change.moves)
    for before, after in moves:
        if "version" not in context.fleet.eks.model_fields_set:
            reason = f"the file does not say it, and the cluster has {before}"
        elif not upgrade.is_one_step(before, after):
            reason = f"the cluster has {before}, and EKS moves it by one minor version at a time"
        else:
            continue
        stay = f'write "{before}" to stay, or ' if before in eks.END_OF_STANDARD_SUPPORT else ""
        fix = f"{stay}follow `blueprint fleet upgrade`"
        mistake = context.document.build_mistake(("eks", "version"), after, reason, fix)
        raise CheckFailed(f"{mistake} The cluster is unchanged")
