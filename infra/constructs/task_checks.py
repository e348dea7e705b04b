"""What ECS, or the fleet's pools on it, would refuse of a rendered deployment, which a user may have edited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from llm_serving.catalog import instances
from llm_serving.catalog.ecs import MAX_STOP_S, MAX_TASKS
from llm_serving.catalog.instances import DEVICES
from llm_serving.fleet import groups
from llm_serving.fleet.interfaces import EFA_DEVICE
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.pool import Orchestrator
from llm_serving.services import rendered
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Mistake

MAX_ALARM_S = 86_400
"""Seconds of all minutes of an alarm. Source: CloudWatch API reference, PutMetricAlarm, Period, 2026-11."""

MAX_LABEL_LENGTH = 63
"""Characters between two dots. Source: Cloud Map API reference, CreateService, Name, 2026-11."""


class OnOrchestrator(Protocol):
    """Data of a stack whose programs are tasks of ECS or pods of EKS."""

    @property
    def orchestrator(self) -> Orchestrator:
        """What runs them."""


StackT = TypeVar("StackT", bound=OnOrchestrator)


def read(file: Path, fleet: Document[Fleet], model: type[Rendered[StackT]]) -> Document[Rendered[StackT]]:
    """Read a rendered deployment; on ECS its services are checked. An InputError has every mistake."""
    document = rendered.read(file, fleet, model)
    if document.value.stack.orchestrator == "ecs":
        check_services(document, fleet.value)
    return document


def check_services(document: Document[Rendered[Any]], fleet: Fleet) -> None:
    """Raise an InputError with every mistake in the services of a deployment on ECS."""
    mistakes: list[Mistake] = []
    if not document.value.services:
        mistakes.append(document.build_mistake(("services",), "[]", "nothing would run", "render it again"))
    for index, service in enumerate(document.value.services):
        find_mistakes = _find_pool_mistakes if service.placement.pool else _find_fargate_mistakes
        mistakes += find_mistakes(document, fleet, index, service)
        if service.replicas.max > MAX_TASKS:
            reason, key_path = f"ECS finds {MAX_TASKS} tasks by name", ("services", index, "replicas", "max")
            fix = f"set {MAX_TASKS} or less"
            mistakes.append(document.build_mistake(key_path, service.replicas.max, reason, fix))
        scale = service.replicas.scale
        if scale and not service.replicas.min and scale.cool_down_s > MAX_ALARM_S:
            scale_path = ("services", index, "replicas", "scale", "cool_down_s")
            reason, fix = "an alarm of CloudWatch looks back a day at the most", "set cool_down: 1d or less"
            mistakes.append(document.build_mistake(scale_path, scale.cool_down_s, reason, fix))
        if len(name := f"{document.value.name}-{service.name}") > MAX_LABEL_LENGTH:
            reason = f"its tasks would be found by the name {name}, of which DNS takes {MAX_LABEL_LENGTH} characters"
            fix = "use a shorter name of the role or the deployment"
            mistakes.append(document.build_mistake(("services", index, "name"), service.name, reason, fix))
    if mistakes:
        raise InputError(mistakes)


def require_metrics(document: Document[Rendered[Any]], index: int, names: set[str]) -> Iterator[Mistake]:
    """Yield a mistake for each metric that alarms and scaling read of a service, and that it does not name."""
    service = document.value.services[index]
    scale = service.replicas.scale
    for name in sorted((names | ({scale.signal} if scale else set())) - service.metrics.keys()):
        reason, fix = f"alarms and scaling read {name}", f"add the Prometheus name of {name}"
        yield document.build_mistake(["services", index, "metrics"], service.metrics, reason, fix)


def _find_fargate_mistakes(
    document: Document[Rendered[Any]],
    fleet: Fleet,  # noqa: ARG001 - Fargate is everywhere
    index: int,
    service: Service,
) -> Iterator[Mistake]:
    key_path: list[str | int] = ["services", index]
    reason = "without a pool the task runs on Fargate, which has none"
    if service.resources.device_files:
        yield document.build_mistake(
            [*key_path, "resources", "device_files"], len(service.resources.device_files), reason, "remove device_files"
        )
    if service.resources.accelerators:
        yield document.build_mistake(
            [*key_path, "resources", "accelerators"], service.resources.accelerators, reason, "set accelerators: 0"
        )
    if service.stop.stop_s > MAX_STOP_S:
        reason = f"without a pool the task runs on Fargate, which waits at most {MAX_STOP_S} s"
        yield document.build_mistake(
            [*key_path, "stop", "stop_s"], service.stop.stop_s, reason, f"set {MAX_STOP_S} or less"
        )


def _find_pool_mistakes(
    document: Document[Rendered[Any]], fleet: Fleet, index: int, service: Service
) -> Iterator[Mistake]:
    key_path: list[str | int] = ["services", index]
    rows, pool_name = instances.load(), service.placement.pool
    pool_groups = groups.resolve_pool(fleet, pool_name) if pool_name in fleet.pools else ()
    if not any(group.orchestrator == "ecs" for group in pool_groups):
        ecs_pools = [name for name, pool in fleet.pools.items() if fleet.get_orchestrator(pool) == "ecs"]
        reason = f"the fleet {fleet.name} has no such pool on ECS"
        fix = f"use one of {', '.join(ecs_pools) or 'another fleet'}"
        yield document.build_mistake([*key_path, "placement", "pool"], pool_name, reason, fix)
        return
    types = {name for group in pool_groups for name in group.types}
    for number, name in enumerate(service.placement.instance_types):
        if name not in types:
            reason = f"no instance of the pool {pool_name} is one"
            fix = f"use one of {', '.join(sorted(types))}"
            yield document.build_mistake([*key_path, "placement", "instance_types", number], name, reason, fix)
    candidates = [rows[name] for name in (types.intersection(service.placement.instance_types) or types)]
    max_gpus = max(row.accelerators.count if row.accelerators else 0 for row in candidates)
    resources, resources_path = service.resources, [*key_path, "resources"]
    if resources.device == DEVICES["gpu"] and resources.accelerators > max_gpus:
        reason, fix = f"an instance of the pool {pool_name} has {max_gpus} at the most", f"set {max_gpus} or less"
        yield document.build_mistake([*resources_path, "accelerators"], resources.accelerators, reason, fix)
    max_efa = max(group.efa for group in pool_groups)
    if sum(device.startswith(EFA_DEVICE) for device in resources.device_files) > max_efa:
        reason = f"an instance of the pool {pool_name} has {max_efa} EFA interfaces"
        key_path, fix = [*resources_path, "device_files"], f"keep {max_efa} of them"
        yield document.build_mistake(key_path, len(resources.device_files), reason, fix)
