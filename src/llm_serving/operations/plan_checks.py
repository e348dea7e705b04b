"""What no plan may do: replace what lasts, move Kubernetes unasked, end nodes before others take their place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from llm_serving import console
from llm_serving.aws import session
from llm_serving.aws.preflight.reservations import fetch_reservation
from llm_serving.catalog import eks
from llm_serving.fleet import groups, log_outputs, names, upgrade
from llm_serving.fleet.checks import join_words
from llm_serving.operations import cluster, non_empty_stores
from llm_serving.operations.context import FleetContext, read_states
from llm_serving.operations.plans import NETWORK, StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.settings.units import format_count
from llm_serving.terraform import synthesis

_VPC, _RESERVATION, _REPOSITORY = "aws_vpc", "aws_ec2_capacity_reservation", "aws_ecr_repository"
_CLUSTER, _NODE_GROUP, _TEMPLATE = "aws_eks_cluster", "aws_eks_node_group", "aws_launch_template"

_LOSSES: Mapping[str, str] = {
    "aws_db_instance": "its keys, budgets and records",
    _RESERVATION: "capacity that EC2 may not have again",
    _REPOSITORY: "its images",
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

    Terraform would delete it with what it holds, and make an empty one of the same name. A change of one line does it,
    such as `network.cidr`. Who wants that makes the new one beside the old.
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
            replacements = [
                reservation for reservation in plan.plan.select(kind).values() if "create" in reservation.actions
            ]
            is_lost = "delete" in change.actions and bool(replacements)
        else:
            is_lost = kind in _LOSSES and change.verb == "replaced"
        if is_lost:
            yield f"{plan.name}: {address}, and {_LOSSES[kind]} would be gone"


def _is_network_used(context: FleetContext) -> bool:
    users = [name for name, folder in context.folders.items() if NETWORK in synthesis.read_needs(folder)]
    return any(stack_state.resources for stack_state in read_states(context, users).values())


_CONTAINER_LINES = "all that containers wrote"


class _Logs(NamedTuple):
    """Lines that were written, the setting by which they are, and the value with which they go where they went."""

    setting: tuple[str, str]
    value: str
    kind: str
    name: str
    lines: str


_LOGS = (
    _Logs(("logs", "to"), log_outputs.CLOUDWATCH, "aws_cloudwatch_log_group", log_outputs.GROUP, _CONTAINER_LINES),
    _Logs(("logs", "to"), log_outputs.S3, "aws_s3_bucket", log_outputs.BUCKET, _CONTAINER_LINES),
    _Logs(("network", "flow_logs"), "30d", "aws_s3_bucket", "flow-logs", "the network's flow logs"),
)


def require_logs_kept(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no plan deletes logs, as another `logs.to` would, or `flow_logs: off`.

    Out of Terraform's state they stay, under their key, until they are old enough to go.
    """
    for plan, logs in itertools.product(stack_plans, _LOGS):
        deleted = [
            address
            for address, change in plan.plan.resources.items()
            if "delete" in change.actions and not change.is_tainted and _is_part(address, logs)
        ]
        if f"{logs.kind}.{logs.name}" not in deleted:
            continue
        folder = console.shorten_path(context.folders[plan.name])
        terraform = (context.program.program, f"-chdir={folder}")
        forget = console.quote_command((*terraform, "state", "rm", *deleted))
        # Else Terraform would create what exists by that name. The plan writes the addresses into the stack before.
        adopt = console.quote_command((*terraform, "import", "ADDRESS", "ID"))
        reason = f"Terraform would delete {plan.name}: {logs.kind}.{logs.name}, with {logs.lines} there"
        fix = f"set {logs.value} again, or run `{forget}`, which keeps it, and then this again; "
        fix += f"for {logs.value} later, run `blueprint fleet plan`, then `{adopt}` for each of these, then the apply"
        section, field = logs.setting
        value = getattr(getattr(context.fleet, section), field, None)
        mistake = context.document.build_mistake(logs.setting, value, reason, fix)
        raise CheckFailed(f"{mistake} Nothing was changed")


def _is_part(address: str, logs: _Logs) -> bool:
    """Whether it is the resource, its key, or a setting of it: those of a bucket are resources of their own."""
    return address.startswith((logs.kind, "aws_kms_")) and address.partition(".")[2].startswith(logs.name)


def require_repositories_empty(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no repository goes that has images: ECR would refuse it in the middle of the apply.

    Source: ECR API reference, DeleteRepository, RepositoryNotEmptyException, 2026-11.
    """
    changes = {name: change for plan in stack_plans for name, change in plan.plan.select(_REPOSITORY).items()}
    images = [name.removeprefix("image-") for name, change in changes.items() if change.actions == ("delete",)]
    if not (stores := non_empty_stores.find(context.aws, {"repositories": images}, context.fleet.name)):
        return
    command = "aws ecr delete-repository --force --region"
    deletions = " and ".join(f"`{command} {context.fleet.region} --repository-name {store.name}`" for store in stores)
    value = list(context.fleet.storage.repositories)
    names_left = join_words(f"{store.name} ({store.summary})" for store in stores)
    reason = f"the plan deletes {names_left}, and ECR deletes no repository that has images"
    fix = f"keep it, or run {deletions}, and then this again"
    mistake = context.document.build_mistake(("storage", "repositories"), value, reason, fix)
    raise CheckFailed(f"{mistake} Nothing was changed")


def require_version_stated(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that the file names the version that a plan moves the control plane to, and that it is one step away.

    A default that moves with a release of this repository would upgrade a cluster that nobody meant to upgrade, before
    the charts that must know the version.

    Source: EKS user guide, "Update existing cluster to new Kubernetes version" and "Rollback cluster to previous
    Kubernetes version", 2026-11.
    """
    moves = (change.moves for plan in stack_plans for change in plan.plan.select(_CLUSTER).values() if change.moves)
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


def require_groups_empty(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no node runs in a node group that goes while its pool stays, by other groups or Karpenter.

    All nodes of a group go at once, with what runs there, before the others have a node. So it is with another type,
    zone or way to buy, and with `size: 0..4` after `1..4`. A pool or a choice that is only removed may go.

    Source: EKS user guide, "Delete a managed node group from your cluster", 2026-11.
    """
    changes = {name: change for plan in stack_plans for name, change in plan.plan.select(_NODE_GROUP).items()}
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
    client: Any = context.aws.client("eks") if group_names and pools else None
    for name in group_names if client else ():
        with session.translate_errors(), session.ignore_errors("ResourceNotFoundException"):
            cluster_name = names.format_cluster_name(context.fleet)
            group = client.describe_nodegroup(clusterName=cluster_name, nodegroupName=name)["nodegroup"]
            nodes = group["scalingConfig"]["desiredSize"]
            if nodes and group.get("labels", {}).get("fleet/pool") in pools:
                yield f"{format_count(nodes, 'node')} of the node group {name}"


def require_karpenter_idle(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no node of Karpenter's runs where a plan takes away their access to the cluster, and its own role.

    So it is once the file has no pool of its, as after `size: 1..4` in place of `0..4`: the nodes would leave the
    cluster at once, and cost on, for Karpenter could end none.

    Source: EKS user guide, "Create access entries", 2026-11.
    """
    entries = (plan.plan.select("aws_eks_access_entry").get("karpenter-nodes") for plan in stack_plans)
    if not any(entry and entry.actions == ("delete",) for entry in entries):
        return
    if running := cluster.list_karpenter_instances(context.aws, context.fleet):
        raise CheckFailed(
            f"{context.document.path}: the plan takes the cluster from {format_count(len(running), 'node')} of "
            "Karpenter, of which the file has no pool any more. Nothing was changed. Fix: keep its pool beside a new "
            "one, run this and deploy each blueprint; then run `kubectl delete nodepools --all`, which drains them, "
            "and this again without the pool."
        )


def require_blocks_ended(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no instance runs in a Capacity Block that a plan takes off its pool.

    EKS and Auto Scaling would replace them at once, by those of a block that may not have begun.

    Source: EC2 API reference, CapacityReservation, 2026-11.
    """
    changes = {name: change for plan in stack_plans for name, change in plan.plan.select(_TEMPLATE).items()}
    for group in groups.resolve_all(context.fleet):
        change = changes.get(f"{group.name}-template")
        if not change or not change.moves or not (running := _count_instances(context, change.moves[0])):
            continue
        before, after = change.moves
        reason = f"{format_count(running, 'instance')} of the block {before} would be replaced at once"
        fix = f"set {before} again until it ends, and add a pool for {after}"
        key_path = ("pools", group.pool, "buy")
        mistake = context.document.build_mistake(key_path, {"capacity-block": after}, reason, fix)
        raise CheckFailed(f"{mistake} Nothing was changed")


def _count_instances(context: FleetContext, reservation_id: str) -> int:
    """Return how many run in a reservation; 0 in one that is over."""
    with session.translate_errors():
        reservation = fetch_reservation(context.aws, reservation_id)
    if reservation is None or reservation["State"] != "active":
        return 0
    return int(reservation["TotalInstanceCount"] - reservation["AvailableInstanceCount"])
