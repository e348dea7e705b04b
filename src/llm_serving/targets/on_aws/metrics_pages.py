"""The metrics pages of a deployment's replicas, by their addresses in its network."""

from __future__ import annotations

from collections.abc import Iterable

from llm_serving.catalog import engines
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.validation.base import MetricsPage

_ROUTER_PATH = "/metrics"


def build(deployment: ServingDeployment, replicas: Iterable[tuple[str, str, str]]) -> list[MetricsPage]:
    """Return the page of each replica.

    Args:
        replicas: name, role and address of each.
    """
    roles = {role.name: role for role in deployment.roles}
    engine_path = engines.load_engines()[deployment.engine].metrics_path
    pages = []
    for name, role_name, address in sorted(replicas):
        role = roles[role_name]
        port = role.ports.get("metrics", deployment.list_services(role)[0].port)
        host = f"[{address}]" if ":" in address else address
        path = engine_path if role.kind == "engine" else _ROUTER_PATH
        pages.append(MetricsPage(name, role_name, f"http://{host}:{port}{path}"))
    return pages
