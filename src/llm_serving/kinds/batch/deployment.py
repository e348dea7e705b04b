"""A batch blueprint resolved: the endpoint, the workers, the Batch API. Frozen data, every number decided."""

from __future__ import annotations

from typing import Any

from llm_serving.kinds.batch.blueprint import BatchSlo, Limits, Sample, Team
from llm_serving.kinds.batch.stack import BatchStack
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.deployment import Deployment
from llm_serving.services.service import Service

API = "batch-api"
WORKER = "batch-worker"
"""Names of the services, and of the programs in images/batch-worker."""


class BatchDeployment(Deployment):
    """A resolved batch. `url` is the base URL of the Batch API, without /v1."""

    kind: str = "batch"
    chart: str = "batch"
    pattern: str
    endpoint_url: str
    """Base URL of the endpoint, without /v1."""

    model: str
    """Name of the replicas' model in rows; empty without replicas of its own."""

    metrics_urls: tuple[str, ...]
    """Pages with the engines' metrics."""

    serving: ServingDeployment | None
    """Its own replicas beside the workers; None if it has none."""

    usd_h: float | None = None
    """Cost of its own replicas per hour; None without prices or replicas."""

    bucket: str
    prefix: str
    """Prefix of all its objects in the bucket."""

    teams: dict[str, Team]
    limits: Limits
    sample: Sample
    slo: BatchSlo
    stack: BatchStack | None = None

    @property
    def batch_workers(self) -> tuple[Service, ...]:
        return tuple(service for service in self.services if service.role == WORKER)

    @property
    def worker_count(self) -> int:
        return sum(worker.replicas.max for worker in self.batch_workers)

    @property
    def api(self) -> Service:
        """The Batch API, which also starts the executions."""
        return self.services[-1]

    @property
    def loaded_models(self) -> tuple[Any, ...]:
        """The models that its own replicas load."""
        return self.serving.loaded_models if self.serving else ()
