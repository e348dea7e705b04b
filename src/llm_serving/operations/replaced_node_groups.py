"""Node groups of EKS that a plan ends while it makes others for the same pool, or hands the pool to Karpenter.

All nodes of a group go at once, with what runs there, before the others have a node. So it is with another type, zone
or way to buy, and with `size: 0..4` after `1..4`. A pool or a choice that is only removed may go.

Source: EKS user guide, "Delete a managed node group from your cluster", 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_serving.aws import session
from llm_serving.fleet import groups, names
from llm_serving.fleet.checks import join_words
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.settings.units import format_count

_KIND = "aws_eks_node_group"


def require_empty(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no node runs in a node group that goes while its pool stays.

    Raises:
        CheckFailed: some do; the message names their group with the fix.
    """
    changes = {name: change for plan in stack_plans for name, change in plan.plan.select(_KIND).items()}
    deleted = [name for name, change in changes.items() if "delete" in change.actions and not change.is_tainted]
    created = {name for name, change in changes.items() if "create" in change.actions}
    pools = {
        group.pool
        for group in groups.resolve_all(context.fleet)
        if group.name in created or (group.orchestrator, group.kind) == ("eks", "karpenter")
    }
    if running := list(_list_running(context, deleted, pools)):
        raise CheckFailed(
            f"{context.document.path}: the plan ends {join_words(running)} before their pool has others. Nothing was "
            "changed. Fix: keep what the pool had beside what is new (with size: 0..N, `by: node-groups`), or add "
            "another pool; run this and deploy each blueprint; then remove the old, deploy, and run this again."
        )


def _list_running(context: FleetContext, group_names: Sequence[str], pools: set[str]) -> Iterator[str]:
    eks: Any = context.aws.client("eks") if group_names and pools else None
    for name in group_names if eks else ():
        with session.translate_errors(), session.ignore_errors("ResourceNotFoundException"):
            cluster = names.format_cluster_name(context.fleet)
            group = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
            nodes = group["scalingConfig"]["desiredSize"]
            if nodes and group.get("labels", {}).get("fleet/pool") in pools:
                yield f"{format_count(nodes, 'node')} of the node group {name}"
