"""Destroys a fleet in reverse order, and what costs most first.

Karpenter's instances, then load balancers and charts, then the pools' Auto Scaling and node groups, then the rest of
their stacks, then network and storage. What holds data is kept, unless it may go: buckets and registries that are not
empty, and volumes of Kubernetes' claims.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console
from llm_serving.aws import session
from llm_serving.fleet import names
from llm_serving.fleet.checks import join_words
from llm_serving.operations import (
    add_ons,
    checkpoints,
    claim_volumes,
    cluster,
    ecs_tasks,
    non_empty_stores,
    taken_names,
)
from llm_serving.operations.apply import run_terraform
from llm_serving.operations.claim_volumes import ClaimVolume
from llm_serving.operations.context import FleetContext, find_orphan_stacks, read_states
from llm_serving.operations.non_empty_stores import NonEmptyStore
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.terraform import stack_folder
from llm_serving.terraform.state import StackState

STORAGE = "storage"
"""The stack of buckets and registries."""

EKS, ECS = "eks", "ecs"

_DESTROY = ("destroy", "-auto-approve", "-input=false")

_INSTANCE_KINDS = ("aws_autoscaling_group", "aws_eks_node_group")
"""Kinds of resources that run the pools' instances."""

_SYSTEM_GROUP = "system"
"""EKS's node group of the add-ons, which is destroyed with the cluster."""


@dataclass(frozen=True)
class DestroyPlan:
    """What a destroy would delete."""

    context: FleetContext
    states: Mapping[str, StackState]
    stores: Sequence[NonEmptyStore]
    """Buckets and registries that are not empty."""

    volumes: Sequence[ClaimVolume]
    """Volumes of Kubernetes' claims, which no stack has."""

    karpenter_instances: Sequence[str]
    """Ids of instances that Terraform does not manage."""

    services: Sequence[str]
    """Services on the ECS cluster, which use its capacity providers."""

    orphan_stacks: Sequence[str]
    """Stacks in the state that the fleet file does not define."""

    with_data: bool

    @property
    def keeps_storage(self) -> bool:
        """Whether the storage stack is kept, for its data."""
        return bool(self.stores) and not self.with_data

    @property
    def has_own_cluster(self) -> bool:
        """Whether the stack of EKS has a cluster of its own."""
        state = self.states.get(EKS)
        return state is not None and any(address.startswith("aws_eks_cluster.") for address in state.resources)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be deleted."""
        return not self.stacks and not (self.volumes and self.with_data)

    @property
    def stacks(self) -> list[str]:
        """Stacks to destroy, in order."""
        stack_names = [name for wave in reversed(self.context.waves) for name in wave if name in self.states]
        return [name for name in stack_names if not (name == STORAGE and self.keeps_storage)]


def plan_destroy(context: FleetContext, *, with_data: bool) -> DestroyPlan:
    """List what there is to destroy; change nothing."""
    with console.step(f"List existing resources of {context.fleet.name}") as step:
        aws = context.aws
        stack_states = {name: state for name, state in read_states(context).items() if state.resources}
        outputs = stack_states[STORAGE].outputs if STORAGE in stack_states else {}
        services: list[str] = []
        if ECS in stack_states:
            with session.translate_errors():
                arns = ecs_tasks.list_services(aws.client("ecs"), names.format_cluster_name(context.fleet))
            services = [arn.rsplit("/", 1)[-1] for arn in arns]
        plan = DestroyPlan(
            context,
            stack_states,
            non_empty_stores.find(aws, outputs, context.fleet.name),
            claim_volumes.find(aws, context.fleet) if EKS in context.fleet.orchestrators else (),
            cluster.list_karpenter_instances(aws, context.fleet) if EKS in stack_states else (),
            services,
            find_orphan_stacks(context),
            with_data,
        )
        step.note = ", ".join(f"{name} {len(state.resources)}" for name, state in stack_states.items()) or "nothing"
    return plan


def destroy(plan: DestroyPlan) -> None:
    """Destroy it; resume a destroy that was interrupted.

    Raises:
        CheckFailed: instances are still running at the end.
        Unavailable: the cluster cannot be reached while Karpenter's instances run in it.
        CommandFailed: Terraform or helm failed.
    """
    context = plan.context
    if EKS in plan.stacks:
        _delete_cluster_resources(plan)
    waves = [{name: context.folders[name] for name in wave if name in plan.stacks} for wave in reversed(context.waves)]
    for name, folder in itertools.chain.from_iterable(wave.items() for wave in waves):
        if targets := [f"-target={address}" for address in _list_instance_addresses(folder)]:
            run_terraform(context, {name: folder}, (*_DESTROY, *targets), f"Destroy the instances of {name}")
    for wave in filter(None, waves):
        for store in plan.stores if STORAGE in wave else ():
            non_empty_stores.empty(context.aws, store)
        run_terraform(context, wave, _DESTROY, f"Destroy {', '.join(wave)} in {context.cloud_name}")
    if plan.with_data:
        claim_volumes.delete(context.aws, plan.volumes)
    (context.data / checkpoints.FILE).unlink(missing_ok=True)  # all of its steps are undone
    cluster.require_no_instances(context.aws, context.fleet)


def require_no_dependents(plan: DestroyPlan) -> None:
    """Require that nothing depends on the fleet, no blueprint on ECS, no stack or cluster that its file has not; and
    that its state is here where its network is.

    Raises:
        CheckFailed: something does; the message says how to remove it.
    """
    if not plan.states:  # or there would be nothing to destroy, and the fleet cost on
        taken_names.require_no_network(plan.context)
    cluster_name = plan.context.fleet.eks.cluster
    if cluster_name and plan.has_own_cluster:
        raise CheckFailed(
            f"{plan.context.document.path}: eks: cluster: {cluster_name}: this fleet made another cluster, which would "
            "not be emptied before it goes. Fix: remove `cluster` from the file for this destroy."
        )
    if plan.services:
        raise CheckFailed(
            f"{join_words(plan.services)} still running on the cluster "
            f"{names.format_cluster_name(plan.context.fleet)}, on its instances. "
            "Fix: run `blueprint destroy DIR --target ecs` first."
        )
    if plan.orphan_stacks:
        raise CheckFailed(
            f"the state also holds {join_words(plan.orphan_stacks)}: not defined in {plan.context.document.path} and "
            "would be orphaned. Fix: run `blueprint destroy` for a blueprint's stack; for a cluster's, add its "
            "orchestrator back to the file."
        )


def _delete_cluster_resources(plan: DestroyPlan) -> None:
    """Delete instances first, then load balancers, then charts."""
    context = plan.context
    if context.endpoint:
        console.err.print(
            "  the embedded EKS starts no nodes, so there is no Karpenter, load balancer or chart to remove"
        )
        return
    if not plan.has_own_cluster:
        return
    try:
        with console.step(f"Connect to the cluster {context.fleet.name}"):
            api = cluster.connect(context.aws, context.fleet, context.data)
    except (Unavailable, console.CommandFailed) as error:
        leftovers = [*plan.karpenter_instances, *cluster.list_load_balancers(context.aws, context.fleet)]
        if leftovers:
            pronoun = "it" if len(leftovers) == 1 else "them"
            raise Unavailable(
                f"{join_words(leftovers)} would outlive the cluster, which made {pronoun}: {error}"
            ) from None
        console.err.print(f"  Skipped the cluster, which has created no resources: {error}", markup=False)
        return
    with console.step("Terminate the instances that Karpenter started"):
        cluster.terminate_machines(api)
    with console.step("Delete load balancers"):
        cluster.delete_load_balancers(api)
    folder = Path("rendered") / context.fleet.name / "platform"
    commands = add_ons.build_remove_commands(context.fleet, folder, context.document.path)
    add_ons.remove(commands, folder, kubeconfig=cluster.open_session(context.aws, context.data).kubeconfig)


def _list_instance_addresses(folder: Path) -> list[str]:
    resources = stack_folder.read_stack(folder).get("resource", {})
    return [
        f"{kind}.{name}"
        for kind in _INSTANCE_KINDS
        for name, settings in resources.get(kind, {}).items()
        if settings.get("node_group_name") != _SYSTEM_GROUP
    ]
