"""The replicas of a deployment on AWS: what runs of them, containers that take commands, and their metrics pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_serving.services.service import Service
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.validation.base import MetricsPage


@dataclass(frozen=True)
class ReplicaStatus:
    """One row of `blueprint status`: a pod on EKS, a task on ECS."""

    name: str
    role: str
    state: str
    """`ready`, or why it is not ready, in the orchestrator's words."""

    restarts: int
    machine: str
    """The node or container instance; empty where it has none yet."""


class RunCommand(Protocol):
    """Runs a command in a container."""

    def __call__(self, command: list[str], line: str = "", *, limit_s: float) -> str:
        """Return what it printed.

        Args:
            line: what it reads from its input, or its last argument on ECS, whose input is a terminal.

        Raises:
            Unavailable: it did not start, or did not end in time.
        """
        ...


@dataclass(frozen=True)
class ReplicaContainer:
    """The container of a service in one pod or task."""

    name: str
    """Of the pod or task."""

    answers: bool
    """Whether it answers requests: of a replica over several nodes the first one does, for which the others compute."""

    run: RunCommand


def build_no_logs(plan: DeploymentPlan, role: str | None) -> CheckFailed:
    """Return the refusal where there is no log of a role, or of any."""
    place = f"{f' of {role}' if role else ''} on {plan.deployment.target}"
    roles = ", ".join(dict.fromkeys(service.role for service in plan.deployment.services))
    others = f"use one of {roles}, or " if role and roles else ""
    return CheckFailed(f"{plan.deployment.name}: no logs{place}. Fix: {others}run blueprint deploy.")


def build_pages(services: Sequence[Service], replicas: Iterable[tuple[str, str, str]]) -> list[MetricsPage]:
    """Return the metrics page of each replica, by its address in the deployment's network.

    Args:
        replicas: name, role and address of each; those of a role that is gone may still drain, and have no page.
    """
    by_role = {service.role: service for service in services}
    pages = []
    for name, role, address in sorted(entry for entry in replicas if entry[1] in by_role):
        service = by_role[role]
        port = service.ports.get("metrics", service.port)
        host = f"[{address}]" if ":" in address else address
        pages.append(MetricsPage(name, role, f"http://{host}:{port}{service.metrics_path}"))
    return pages
