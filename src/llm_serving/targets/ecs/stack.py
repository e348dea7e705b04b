"""The Terraform stack KIND-NAME of a deployment on ECS.

ECS rolls back what fails to what ran before; where nothing did, the next deploy starts it again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.fleet import names
from llm_serving.operations import apply, context
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import readiness, tasks
from llm_serving.targets.ecs.tasks import EcsDeployment
from llm_serving.targets.on_aws import deployment_stack, images
from llm_serving.terraform import stack_folder, synthesis

EMULATED = "the embedded AWS stores task definitions and services but runs no tasks: the endpoint does not respond"

_VARIABLES = "blueprint.auto.tfvars.json"
"""Values of the stack's variables, in its folder; `infra.constructs.task_service` says what they do."""


def diff(plan: DeploymentPlan) -> str:
    """Return what a deploy would change, as Terraform plans it; empty if nothing."""
    file = planning.write_rendered(plan)
    with deployment_stack.open_context(plan, file) as stack_context:
        return deployment_stack.describe_changes(_plan(stack_context))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Apply the stack and wait until it is ready; returns whether anything changed.

    What an earlier deploy did not see through shows in no plan: its tasks are waited for, and started again where ECS
    gave them up.
    """
    file = planning.write_rendered(plan, force=force)
    with deployment_stack.open_context(plan, file) as stack_context:
        stack = _plan(stack_context)
        changes = deployment_stack.describe_changes(stack)
        rollouts = {} if stack_context.endpoint else _read_rollouts(plan)
        if not changes and all(rollout.get("rolloutState") == "COMPLETED" for rollout in rollouts.values()):
            return False
        given_up = {name: rollout for name, rollout in rollouts.items() if rollout.get("rolloutState") == "FAILED"}
        if not stack_context.endpoint:
            _require_parts(plan, stack.name)
        if changes or given_up:
            confirm(changes or _describe_restart(given_up))
        if changes:
            apply.apply(stack_context, [stack])
        if stack_context.endpoint:
            console.err.print(f"  {EMULATED}", markup=False)
        elif plan.deployment.services:  # Terraform waits for what AWS runs
            _see_through(plan, given_up, context.read_states(stack_context)[stack.name].outputs)
    return bool(changes or given_up)


def _require_parts(plan: DeploymentPlan, stack_name: str) -> None:
    """Check that all images are there, and that the names of the ECS services are free."""
    deployed = tasks.read_deployed(plan)
    images.require_images(plan, (service.image for service in deployed.rendered.services))
    _require_names(plan, deployed, stack_name)


def _see_through(plan: DeploymentPlan, given_up: Mapping[str, Mapping[str, Any]], outputs: Mapping[str, Any]) -> None:
    """Wait until the tasks are ready, of services that ECS gave up too, and call them once."""
    deployed = tasks.read_deployed(plan)
    _start_again(deployed, given_up)
    _scale_from_zero(deployed)
    past = {rollout["id"] for rollout in given_up.values()}
    readiness.wait_until_steady(deployed, outputs["definitions"], past=past)
    with console.step("Send a test request"):
        readiness.send_test_request(deployed, outputs["ask"])


@clients.translate_errors()
def _read_owners(deployed: EcsDeployment) -> dict[str, str]:
    """Return the stack of each ECS service that runs under the deployment's names, by its name; empty for none."""
    with clients.ignore_errors("ClusterNotFoundException"):
        tags = {service["serviceName"]: service.get("tags", []) for service in deployed.describe_services()}
        return {name: {tag["key"]: tag["value"] for tag in own}.get("stack", "") for name, own in tags.items()}
    return {}


def _require_names(plan: DeploymentPlan, deployed: EcsDeployment, stack_name: str) -> None:
    """Check that no other deployment has an ECS service of these names: `a-b` with a role `c`, and `a` with `b-c`; and
    that no role has the name of another's second choice.
    """
    if twice := [name for name, count in Counter(deployed.all_service_names).items() if count > 1]:
        raise CheckFailed(
            f"{plan.deployment.name}: two of its ECS services would be {', '.join(twice)}: the second choice of a pool "
            "adds -1 to a role's name. Nothing was changed. Fix: give the other role another name"
        )
    owners = {name: owner for name, owner in _read_owners(deployed).items() if owner != stack_name}
    if taken_names := [f"{name} (of {owner or 'no stack'})" for name, owner in owners.items()]:
        raise CheckFailed(
            f"{plan.deployment.name}: its ECS services have names that are taken: {', '.join(taken_names)}. Nothing "
            f"was changed. Fix: choose another `name` in {plan.blueprint.path}"
        )


def destroy(plan: DeploymentPlan) -> bool:
    """Destroy the stack and wait until its tasks are gone; returns whether there was one.

    Raises:
        CheckFailed: it runs, and its state is elsewhere.
    """
    with deployment_stack.open_context(plan, planning.ensure_rendered(plan, tasks.FILE)) as stack_context:
        is_removed = deployment_stack.destroy(plan, stack_context)
        [stack_name] = stack_context.folders
    owners = {} if is_removed else _read_owners(tasks.read_deployed(plan))
    if running := [name for name, owner in owners.items() if owner == stack_name]:
        raise CheckFailed(
            f"{plan.deployment.name}: {', '.join(running)} run on ECS, and the state here has nothing of them. "
            f"Fix: run this in the directory that they were deployed from, with the same `state` in {plan.fleet.path}"
        )
    return is_removed


def _plan(stack_context: FleetContext) -> StackPlan:
    """Plan the stack; where services would be replaced, as for other capacity providers, move their tasks instead."""
    [folder] = stack_context.folders.values()
    if "ecs" in synthesis.read_needs(folder):
        _require_cluster(stack_context)
    declared = stack_folder.read_stack(folder).get("variable", {})
    for force in (False, True):
        values = {name: value for name, value in {"force_new_deployment": force}.items() if name in declared}
        (folder / _VARIABLES).write_text(json.dumps(values), encoding="utf-8")
        [stack] = fleet_plans.create(stack_context)
        if not any(
            address.startswith("aws_ecs_service.") and change.verb == "replaced"
            for address, change in stack.plan.resources.items()
        ):
            break
    return stack


@clients.translate_errors()
def _require_cluster(stack_context: FleetContext) -> None:
    """Check that the fleet's stacks are applied: Terraform would name each thing that it looks up and does not find.

    Raises:
        Unavailable: they are not.
    """
    name, aws = names.format_cluster_name(stack_context.fleet), stack_context.aws
    clusters = aws.client("ecs").describe_clusters(clusters=[name])["clusters"]
    if "ACTIVE" not in (cluster["status"] for cluster in clusters):
        file = console.shorten_path(stack_context.document.path)
        reason = f"the ECS cluster {name} is not in {aws.region} of the account {stack_context.account}"
        raise Unavailable(f"{reason}. Nothing was changed. Fix: run `blueprint fleet apply --fleet {file}` first.")


@clients.translate_errors()
def _read_rollouts(plan: DeploymentPlan) -> dict[str, dict[str, Any]]:
    """Read the last deployment of each ECS service that is there, by the service's name."""
    return {
        service["serviceName"]: rollout
        for service in tasks.read_deployed(plan).describe_services()
        for rollout in service["deployments"]
        if rollout["status"] == "PRIMARY"
    }


def _describe_restart(given_up: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"  {name}: {rollout.get('rolloutStateReason') or 'failed'}" for name, rollout in given_up.items()]
    return "\n".join(("no change, but ECS gave up an earlier deploy; its tasks will be started again:", *lines))


@clients.translate_errors()
def _start_again(deployed: EcsDeployment, given_up: Mapping[str, Mapping[str, Any]]) -> None:
    """Start the tasks of services anew where ECS gave up; a failed deployment starts none (ECS API reference, 2026-11).

    A service that Terraform just changed has a new deployment already.
    """
    ecs, cluster = deployed.ecs, deployed.cluster
    for name, given_up_rollout in given_up.items():
        [ecs_service] = ecs.describe_services(cluster=cluster, services=[name])["services"]
        last = {rollout["id"] for rollout in ecs_service["deployments"] if rollout["status"] == "PRIMARY"}
        if given_up_rollout["id"] in last:
            ecs.update_service(cluster=cluster, service=name, forceNewDeployment=True)


@clients.translate_errors()
def _scale_from_zero(deployed: EcsDeployment) -> None:
    """Start one replica of each role that scaled to zero, so that the test request gets a response."""
    ecs, cluster = deployed.ecs, deployed.cluster
    for service in deployed.rendered.scale_to_zero_services:
        name = deployed.list_service_names(service)[0]
        [ecs_service] = ecs.describe_services(cluster=cluster, services=[name])["services"]
        if ecs_service["desiredCount"] == 0:
            ecs.update_service(cluster=cluster, service=name, desiredCount=readiness.count_initial(service))
