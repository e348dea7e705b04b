"""The Terraform stack KIND-NAME of one deployment: synthesized from its rendered file, planned and destroyed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_serving import console, processes
from llm_serving.aws import session
from llm_serving.aws.preflight import identity
from llm_serving.operations import apply, context
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.services import kinds
from llm_serving.services.rendered import format_stack_name
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.terraform import stack_folder, synthesis

_DESTROY = ("destroy", "-auto-approve", "-input=false")


@contextmanager
def open_context(plan: DeploymentPlan, file: Path) -> Iterator[FleetContext]:
    """Lock the deployment for this command, and yield the context of its stack; plans that are saved meanwhile go.

    Raises:
        Unavailable: another command is running on it.
    """
    data_folder = context.build_data_path(plan.fleet.value) / _format_name(plan)
    data_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with processes.lock_file(data_folder / ".busy", f"another command is running on {plan.deployment.name}"):
        stack_context = build_context(plan, file, data_folder)
        with apply.use_plans(stack_context):
            yield stack_context


def build_context(plan: DeploymentPlan, file: Path, data: Path) -> FleetContext:
    """Synthesize and initialize the stack of the rendered `file`.

    Raises:
        InputError: the file is wrong.
        CheckFailed: a local state is of another account or region.
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed.
    """
    account = identity.require_account(plan.fleet, plan.aws).account
    stacks_folder = data / "cdktf.out" if plan.aws.is_emulated else plan.directory.root / "cdktf.out"
    with console.step(f"Synthesize the stack of {console.shorten_path(file)}") as step:
        folders = synthesis.synthesize(plan.fleet, stacks_folder, deployments=[file], stack_names=[_format_name(plan)])
        step.note = ", ".join(console.shorten_path(folder / "cdk.tf.json") for folder in folders.values())
    program = stack_folder.find_terraform(folders, data, plan.aws)
    stack_context = FleetContext(plan.fleet, data, folders, program, plan.aws, account)
    context.initialize_stacks(stack_context)
    return stack_context


def describe_changes(stack: StackPlan) -> str:
    """Describe Terraform's plan, one line for each resource; empty where nothing changes."""
    if stack.is_empty:
        return ""
    lines = [f"  {change.verb}: {address}" for address, change in stack.plan.resources.items()]
    return "\n".join([f"{stack.name}: {fleet_plans.summarize(stack)}", *lines])


def destroy(plan: DeploymentPlan, stack_context: FleetContext) -> bool:
    """Destroy the stack; returns whether there was one."""
    if not any(state.resources for state in context.read_states(stack_context).values()):
        return False
    deployment, folders = plan.deployment, stack_context.folders

    def remove_services() -> None:
        [folder] = folders.values()
        service_names = stack_folder.read_stack(folder).get("resource", {}).get("aws_ecs_service", {})
        if targets := [f"-target=aws_ecs_service.{name}" for name in service_names]:
            title = f"Remove the services of {deployment.name}"
            apply.run_terraform(stack_context, folders, (*_DESTROY, *targets), title)

    with session.translate_errors():
        kinds.get(deployment.kind).stop_work(deployment, plan.aws.client, remove_services)
    apply.run_terraform(stack_context, folders, _DESTROY, f"Remove {deployment.name} from {stack_context.cloud_name}")
    return True


def _format_name(plan: DeploymentPlan) -> str:
    return format_stack_name(plan.deployment.kind, plan.deployment.name)
