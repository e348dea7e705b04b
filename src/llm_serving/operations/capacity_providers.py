"""Capacity providers that a plan deletes: no ECS service may still start tasks on one.

ECS takes a provider off its cluster only when no task of the cluster runs on it, and Terraform would try for ten
minutes and fail. A service moves with its deployment's next `blueprint deploy`, which reads the changed fleet file.

Source: ECS API reference, PutClusterCapacityProviders and DeleteCapacityProvider, 2026-11.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_serving.aws import session
from llm_serving.fleet import groups, names
from llm_serving.fleet.checks import join_words
from llm_serving.operations import ecs_tasks
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed

_KIND = "aws_ecs_capacity_provider"


def require_unused(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no service of the cluster uses a capacity provider that a plan deletes.

    Raises:
        CheckFailed: one does; the message names it with the fix.
        Unavailable: AWS refuses, or does not answer.
    """
    actions = {name: change.actions for plan in stack_plans for name, change in plan.plan.select(_KIND).items()}
    deleted = {
        groups.format_provider_name_of(context.fleet.name, name) for name in actions if "delete" in actions[name]
    }
    if not deleted:
        return
    cluster, ecs = names.format_cluster_name(context.fleet), context.aws.client("ecs")
    with session.translate_errors():
        services = list(ecs_tasks.describe_services(ecs, cluster, ecs_tasks.list_services(ecs, cluster)))
    users = [
        f"{service['serviceName']} uses {join_words(sorted(used))}"
        for service in services
        if (used := deleted & {item["capacityProvider"] for item in service.get("capacityProviderStrategy", [])})
    ]
    if users:
        add_first = (
            "keep what the pool had beside what is new and run this; then remove it, and "
            if ("create",) in actions.values()
            else ""
        )
        raise CheckFailed(
            f"{context.document.path}: the plan deletes capacity providers that services on ECS still use: "
            f"{join_words(users)}. Nothing was changed. Fix: {add_first}run `blueprint deploy DIR --target ecs` with "
            "this fleet file first, which moves the tasks; then run this again."
        )
