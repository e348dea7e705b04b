"""The metrics pages of a deployment's replicas, by their addresses in its network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_serving.services.service import Service
from llm_serving.validation.base import MetricsPage


def build(services: Sequence[Service], replicas: Iterable[tuple[str, str, str]]) -> list[MetricsPage]:
    """Return the page of each replica.

    Args:
        replicas: name, role and address of each.
    """
    by_role = {service.role: service for service in services}
    pages = []
    for name, role, address in sorted(replicas):
        service = by_role[role]
        port = service.ports.get("metrics", service.port)
        host = f"[{address}]" if ":" in address else address
        pages.append(MetricsPage(name, role, f"http://{host}:{port}{service.metrics_path}"))
    return pages
