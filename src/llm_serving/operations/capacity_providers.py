"""Capacity providers that a plan deletes, or gives other instances: no ECS service may still need what they were.

ECS takes a provider off its cluster only when no task of the cluster runs on it, and Terraform would try for ten
minutes and fail. A service moves with its deployment's next `blueprint deploy`, which reads the changed fleet file.

Another type of the same family is a provider's in place: its instances are replaced one after the other, whether the
services' placement constraints take the new type or not.

Source: ECS API reference, PutClusterCapacityProviders and DeleteCapacityProvider, 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    users = [
        f"{service['serviceName']} uses {join_words(sorted(used_providers))}"
        for service in _describe_services(context)
        if (used_providers := deleted & _list_providers(service))
    ]
    if users:
        add_first = (
            "keep what the pool had beside what is new, or add another pool, and run this; then remove the old, and "
            if ("create",) in actions.values()
            else ""
        )
        raise CheckFailed(
            f"{context.document.path}: the plan deletes capacity providers that services on ECS still use: "
            f"{join_words(users)}. Nothing was changed. Fix: {add_first}run `blueprint deploy DIR --target ecs` with "
            "this fleet file first, which moves the tasks; then run this again."
        )


def require_placeable(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that services may run on the types that a plan gives the instances of their capacity providers.

    Raises:
        CheckFailed: one may not; the message names it with the fix.
        Unavailable: AWS refuses, or does not answer.
    """
    changed_resources = {
        address.partition(".")[2]
        for plan in stack_plans
        if plan.name == "ecs"
        for address, change in plan.plan.resources.items()
        if "update" in change.actions
    }
    types = {
        groups.format_provider_name(context.fleet, group): group.types
        for group in groups.resolve_all(context.fleet)
        if changed_resources & {f"{group.name}-template", f"{group.name}-machines"}
    }
    if not types:
        return
    stranded = [line for service in _describe_services(context) for line in _list_stranded(service, types)]
    if stranded:
        raise CheckFailed(
            f"{context.document.path}: services on ECS would lose their instances and start on no new one: "
            f"{join_words(stranded)}. Nothing was changed. Fix: write the new type after the old in the pool, run this "
            "and `blueprint deploy DIR --target ecs`; then remove the old, deploy, and run this again."
        )


def _list_stranded(service: dict[str, Any], types: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the capacity providers of a service that would have none of the types that it takes."""
    allowed = set(_list_types(service))
    for provider in sorted(types.keys() & _list_providers(service)) if allowed else ():
        if allowed.isdisjoint(types[provider]):
            would_have = f"{provider} would have {join_words(types[provider])}"
            yield f"{service['serviceName']} takes {join_words(sorted(allowed))}, and {would_have}"


def _describe_services(context: FleetContext) -> list[dict[str, Any]]:
    cluster, ecs = names.format_cluster_name(context.fleet), context.aws.client("ecs")
    with session.translate_errors():
        return list(ecs_tasks.describe_services(ecs, cluster, ecs_tasks.list_services(ecs, cluster)))


def _list_providers(service: dict[str, Any]) -> set[str]:
    return {item["capacityProvider"] for item in service.get("capacityProviderStrategy", [])}


_TYPES = re.compile(r"attribute:ecs\.instance-type in \[(.+)\]")
"""As `infra.constructs.task_service` writes it."""


def _list_types(service: dict[str, Any]) -> Iterator[str]:
    for constraint in service.get("placementConstraints", []):
        if match := _TYPES.fullmatch(constraint.get("expression", "")):
            yield from match[1].split(", ")
