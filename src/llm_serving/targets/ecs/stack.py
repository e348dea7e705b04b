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
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.operations import apply, context, ecs_tasks
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import readiness, tasks
from llm_serving.targets.ecs.tasks import EcsDeployment
from llm_serving.targets.on_aws import deployment_stack, images
from llm_serving.terraform import stack_folder

EMULATED = "the embedded AWS stores task definitions and services but runs no tasks: the endpoint does not respond"

_MACHINES_TIMEOUT_S = INSTANCE_START_S

_VARIABLES = "blueprint.auto.tfvars.json"
"""Values of the stack's variables, in its folder; `infra.constructs.task_service` says what they do."""


def diff(plan: DeploymentPlan) -> str:
    """Return what a deploy would change, as Terraform plans it; empty if nothing.

    Raises:
        InputError: the rendered file was edited by hand.
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed.
    """
    file = planning.write_rendered(plan)
    with deployment_stack.open_context(plan, file) as stack_context:
        return deployment_stack.describe_changes(_plan(stack_context))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Apply the stack and wait until it is ready; returns whether anything changed.

    What an earlier deploy did not see through shows in no plan: its tasks are waited for, and started again where ECS
    gave them up.

    Args:
        confirm: shows the changes; raises if the user declines.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CheckFailed: an image is missing, or it did not become ready and ECS gave it up.
        CommandFailed: Terraform failed; run the command again to resume.
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
    """Check that all images are there, and that the names of the ECS services are free.

    Raises:
        CheckFailed: an image is missing, or a name is taken.
        Unavailable: AWS cannot be asked.
    """
    deployed = tasks.read_deployed(plan)
    images.require_images(plan, (service.image for service in deployed.deployment.services))
    _require_names(plan, deployed, stack_name)


def _see_through(plan: DeploymentPlan, given_up: Mapping[str, Mapping[str, Any]], outputs: Mapping[str, Any]) -> None:
    """Wait until the tasks are ready, of services that ECS gave up too, and call them once.

    Raises:
        CheckFailed: they are not ready in time, or ECS gave them up; or the call failed.
    """
    deployed, aws = tasks.read_deployed(plan), plan.aws
    _start_again(aws, deployed, given_up)
    _scale_from_zero(aws, deployed)
    timeout_s = _MACHINES_TIMEOUT_S + planning.compute_start_s(deployed.deployment.services)
    with console.step(f"Wait until {plan.deployment.name} is ready (up to {timeout_s / 60:.0f} min)") as step:
        readiness.wait_until_steady(
            aws,
            deployed,
            outputs["definitions"],
            timeout_s,
            lambda text: setattr(step, "note", text),
            past={rollout["id"] for rollout in given_up.values()},
        )
    with console.step("Send a test request"):
        readiness.send_test_request(aws, deployed, outputs["ask"])


def _require_names(plan: DeploymentPlan, deployed: EcsDeployment, stack_name: str) -> None:
    """Check that no other deployment has an ECS service of these names: `a-b` with a role `c`, and `a` with `b-c`; and
    that no role has the name of another's second choice.

    Raises:
        CheckFailed: some are taken, or would be twice; names all of them.
        Unavailable: AWS cannot be asked.
    """
    cluster, service_names = deployed.cluster, list(deployed.all_service_names)
    if twice := [name for name, count in Counter(service_names).items() if count > 1]:
        raise CheckFailed(
            f"{plan.deployment.name}: two of its ECS services would be {', '.join(twice)}: the second choice of a pool "
            "adds -1 to a role's name. Nothing was changed. Fix: give the other role another name"
        )
    taken: list[str] = []
    with clients.translate_errors():
        for ecs_service in ecs_tasks.describe_services(plan.aws.client("ecs"), cluster, service_names):
            owner = {tag["key"]: tag["value"] for tag in ecs_service.get("tags", [])}.get("stack")
            if ecs_service.get("status") == "ACTIVE" and owner != stack_name:
                taken.append(f"{ecs_service['serviceName']} (of {owner or 'no stack'})")
    if taken:
        raise CheckFailed(
            f"{plan.deployment.name}: its ECS services have names that are taken: {', '.join(taken)}. Nothing was "
            f"changed. Fix: choose another `name` in {plan.blueprint.path}"
        )


def destroy(plan: DeploymentPlan) -> bool:
    """Destroy the stack and wait until its tasks are gone; returns whether there was one.

    Raises:
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed; run the command again to resume.
    """
    with deployment_stack.open_context(plan, planning.ensure_rendered(plan, tasks.FILE)) as stack_context:
        return deployment_stack.destroy(plan, stack_context)


def _plan(stack_context: FleetContext) -> StackPlan:
    """Plan the stack; where services would be replaced, as for other capacity providers, move their tasks instead."""
    [folder] = stack_context.folders.values()
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


def _read_rollouts(plan: DeploymentPlan) -> dict[str, dict[str, Any]]:
    """Read the last deployment of each ECS service that is there, by the service's name."""
    deployed, ecs = tasks.read_deployed(plan), plan.aws.client("ecs")
    with clients.translate_errors():
        services = list(ecs_tasks.describe_services(ecs, deployed.cluster, [*deployed.all_service_names]))
    return {
        service["serviceName"]: rollout
        for service in services
        for rollout in service["deployments"]
        if service.get("status") == "ACTIVE" and rollout["status"] == "PRIMARY"
    }


def _describe_restart(given_up: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"  {name}: {rollout.get('rolloutStateReason') or 'failed'}" for name, rollout in given_up.items()]
    return "\n".join(("no change, but ECS gave up an earlier deploy; its tasks will be started again:", *lines))


def _start_again(aws: AwsSession, deployed: EcsDeployment, given_up: Mapping[str, Mapping[str, Any]]) -> None:
    """Start the tasks of services anew where ECS gave up; a failed deployment starts none (ECS API reference, 2026-11).

    A service that Terraform just changed has a new deployment already.
    """
    ecs, cluster = aws.client("ecs"), deployed.cluster
    for name, rollout in given_up.items():
        with clients.translate_errors():
            [ecs_service] = ecs.describe_services(cluster=cluster, services=[name])["services"]
            if any(
                found["status"] == "PRIMARY" and found["id"] == rollout["id"] for found in ecs_service["deployments"]
            ):
                ecs.update_service(cluster=cluster, service=name, forceNewDeployment=True)


def _scale_from_zero(aws: AwsSession, deployed: EcsDeployment) -> None:
    """Start one replica of each role that scaled to zero, so that the test request gets a response."""
    ecs, cluster = aws.client("ecs"), deployed.cluster
    for service in deployed.deployment.scale_to_zero_services:
        service_name = deployed.list_service_names(service)[0]
        with clients.translate_errors():
            [ecs_service] = ecs.describe_services(cluster=cluster, services=[service_name])["services"]
            if ecs_service["desiredCount"] == 0:
                ecs.update_service(cluster=cluster, service=service_name, desiredCount=readiness.count_initial(service))
