"""A gateway blueprint resolved: the proxy, its teams, and what answers. Frozen data, every number decided."""

from __future__ import annotations

import itertools

from llm_serving.kinds.gateway.blueprint import GatewaySlo, Sample, Team
from llm_serving.kinds.gateway.stack import GatewayStack
from llm_serving.services.deployment import Deployment
from llm_serving.settings.choices import Task
from llm_serving.settings.plain import PlainData

GATEWAY, METER, DATABASE = "gateway", "meter", "postgres"
"""Names of its processes; the first and the last are names of ports too."""

ADMIN = "gateway-admin"
"""Name of the port of LiteLLM itself, with its administration."""

MAX_BODY_MIB = 32
"""Of a request. LiteLLM reads the body before it looks at the key, and takes six times its size of memory: 1.8 GB for
one of 300 MiB without a key (1.106.0, 2026-11-29)."""


class Backend(PlainData):
    """What answers a route."""

    id: str
    """LiteLLM's id of it, which its records of requests have."""

    route: str
    name: str
    """Deployment, or the host of a URL; `mock` for a mock."""

    task: Task | None = None
    """What its models are for; None where that is unknown."""

    usd_h: float | None = None
    """What the deployment costs an hour; None where that is unknown, or no deployment."""

    metrics_urls: tuple[str, ...] = ()
    """Pages with its engines' metrics."""

    prompt_tokens: str = ""
    output_tokens: str = ""
    """Prometheus names of its engines' counters of tokens."""

    usage_url: str = ""
    """Page with what teams used at the deployment's own routers; empty where these ask for no keys."""

    @property
    def is_metered(self) -> bool:
        """Whether its cost an hour and its engines' counters are known."""
        return self.usd_h is not None and bool(self.metrics_urls and self.prompt_tokens and self.output_tokens)


class GatewayDeployment(Deployment):
    """A resolved gateway. `url` is the base URL for clients, without /v1."""

    kind: str = "gateway"
    pattern: str
    admin_url: str
    """Base URL of LiteLLM's administration, which clients do not reach; empty on AWS."""

    database_port: int
    """0 on AWS, where the stack knows the address."""

    stack: GatewayStack | None = None
    """None on this machine."""

    cost: str = ""
    """What the stack costs an hour; empty on this machine."""

    chart: str = "batch"
    teams: dict[str, Team]
    routes: dict[str, tuple[Backend, ...]]
    embeddings: tuple[Backend, ...] = ()
    """What turns questions into vectors, for answers to those that mean the same."""

    sample: Sample
    slo: GatewaySlo

    @property
    def backends(self) -> tuple[Backend, ...]:
        return (*itertools.chain.from_iterable(self.routes.values()), *self.embeddings)
