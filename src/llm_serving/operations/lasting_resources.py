"""What no plan may replace: Terraform would delete it with what it holds, and make an empty one of the same name.

A change of one line does it, such as `network.cidr`. Who wants that makes the new one beside the old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_serving.fleet.checks import join_words
from llm_serving.operations.context import FleetContext, read_states
from llm_serving.operations.plans import NETWORK, StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform import synthesis

_VPC, _RESERVATION, _CLUSTER = "aws_vpc", "aws_ec2_capacity_reservation", "aws_eks_cluster"

_LOSSES: Mapping[str, str] = {
    "aws_db_instance": "its keys, budgets and records",
    _RESERVATION: "capacity that EC2 may not have again",
    "aws_ecr_repository": "its images",
    _CLUSTER: "all that runs on it",
    "aws_elasticache_replication_group": "what it keeps",
    "aws_kms_key": "whatever it encrypted",
    "aws_msk_cluster": "its events and answers",
    "aws_s3_bucket": "its objects",
    _VPC: "the network of all that runs in it",
}
"""What would be lost, by kind of resource."""


def require_kept(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that the plans replace nothing that lasts, and delete no cluster, and no VPC that other stacks are in.

    Raises:
        CheckFailed: they do; names each, with what would be lost, and the fix.
    """
    lost = [line for plan in stack_plans for line in _list_lost(context, plan)]
    if lost:
        raise CheckFailed(
            f"{context.document.path}: Terraform would replace {join_words(lost)}. Nothing was changed. Fix: take back "
            "the change that it follows from; for a new one, make another pool, deployment or fleet beside this one."
        )


def _list_lost(context: FleetContext, plan: StackPlan) -> Iterator[str]:
    for address, change in plan.plan.resources.items():
        kind = address.partition(".")[0]
        if change.is_tainted:
            continue
        if kind == _VPC:
            is_lost = "delete" in change.actions and _is_network_used(context)
        elif kind == _CLUSTER:  # also where an existing one takes its place
            is_lost = "delete" in change.actions
        elif kind == _RESERVATION:  # another `by` or `efa` names its group, and so itself, anew
            made = [other for other in plan.plan.select(kind).values() if "create" in other.actions]
            is_lost = "delete" in change.actions and bool(made)
        else:
            is_lost = kind in _LOSSES and change.verb == "replaced"
        if is_lost:
            yield f"{plan.name}: {address}, and {_LOSSES[kind]} would be gone"


def _is_network_used(context: FleetContext) -> bool:
    users = [name for name, folder in context.folders.items() if NETWORK in synthesis.read_needs(folder)]
    return any(stack_state.resources for stack_state in read_states(context, users).values())
