"""A deployment on EKS that has a Terraform stack beside its release.

The stack comes first, for EKS Pod Identity gives a pod its role as it starts. On the way back the release goes first,
for its pods use what the stack has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from llm_serving.operations import add_ons as addons
from llm_serving.operations import apply
from llm_serving.operations import plans as fleet_plans
from llm_serving.services.deployment import Deployment
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import release, values_check
from llm_serving.targets.on_aws import deployment_stack, images

FILE, STACK_FILE = "eks.yaml", "stack.yaml"
"""The rendered files: values of the chart, and the data of the stack where that chart does not take them."""


def format_stack_file(deployment: Deployment) -> str:
    """Format the data of a stack that the chart's values have no place for: what clients call, and the rest."""
    services = [service.model_dump(mode="json", exclude_defaults=True) for service in deployment.entries]
    document = {
        "kind": deployment.kind,
        "name": deployment.name,
        "fleet": deployment.fleet,
        "services": services,
        "stack": deployment.stack.model_dump(mode="json", exclude_none=True),
    }
    title = f"# {deployment.name} on EKS, for the stack {deployment.kind}-{deployment.name}. Rendered.\n"
    return title + yaml.safe_dump(document, sort_keys=False)


def diff(plan: DeploymentPlan) -> str:
    """Return what a deploy would change, in AWS and then in the cluster; empty if nothing."""
    file = _find_stack_file(plan, planning.write_rendered(plan))
    with deployment_stack.open_context(plan, file) as stack_context:
        [stack] = fleet_plans.create(stack_context)
        return _join(deployment_stack.describe_changes(stack), release.diff(plan))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Apply the stack, upgrade the release and wait until it is ready; returns whether anything changed."""
    addons.require_tools()
    file = _find_stack_file(plan, planning.write_rendered(plan, force=force))
    with deployment_stack.open_context(plan, file) as stack_context:
        [stack] = fleet_plans.create(stack_context)
        if changes := _join(deployment_stack.describe_changes(stack), release.diff(plan)):
            images.require_images(plan)
            release.require_objects(plan)
            confirm(changes)
        if not stack.is_empty:
            apply.apply(stack_context, [stack])
        try:
            is_upgraded = release.deploy(plan, lambda _: None, force=force)  # the user has seen its changes
        except CheckFailed as error:
            name = plan.deployment.name
            raise CheckFailed(f"{error}\nthe stack {stack.name} stays: deploy {name} again, or destroy it") from None
    return is_upgraded or not stack.is_empty


def destroy(plan: DeploymentPlan) -> bool:
    """Uninstall the release, then destroy the stack; returns whether there was any of it."""
    file = _find_stack_file(plan, planning.ensure_rendered(plan, FILE))
    with deployment_stack.open_context(plan, file) as stack_context:
        was_released = release.destroy(plan)
        return deployment_stack.destroy(plan, stack_context) or was_released


def _find_stack_file(plan: DeploymentPlan, values: Path) -> Path:
    """Find the file with the data of the stack, beside the values or they themselves."""
    return values.with_name(STACK_FILE) if has_stack_file(plan.deployment) else values


def has_stack_file(deployment: Deployment) -> bool:
    """Return whether the data of the stack is in a file of its own: not where the chart takes them as values."""
    return deployment.stack is not None and "stack" not in values_check.load_schema(deployment.chart)["properties"]


def _join(*changes: str) -> str:
    return "\n".join(filter(None, changes))
