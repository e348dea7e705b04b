"""The kind `batch`: files of requests through an endpoint."""

# ruff: noqa: ARG002 - a kind takes what others need

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch import resolve, summary
from llm_serving.kinds.batch.blueprint import Blueprint
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.services.environment import Environment
from llm_serving.services.kinds import Kind
from llm_serving.settings.document import Document


class BatchKind(Kind[Blueprint, BatchDeployment]):
    """Offline batches; each method is described in `Kind`."""

    NAME = "batch"
    SETTINGS = Blueprint
    DEPLOYMENT = BatchDeployment
    VALIDATOR = "llm_serving.kinds.batch.validation.validate"

    list_port_names = staticmethod(resolve.list_port_names)
    build_summary = staticmethod(summary.build_payload)

    def resolve(
        self, blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment
    ) -> BatchDeployment:
        return resolve.resolve(blueprint, fleet, environment)

    def refresh(self, deployment: BatchDeployment, blueprint: Blueprint) -> BatchDeployment:
        return deployment.model_copy(update={"sample": blueprint.sample, "slo": blueprint.slo})

    def move_to_pool(self, blueprint: Document[Blueprint], pool: str) -> Document[Blueprint]:
        if not blueprint.value.endpoint.model:
            return blueprint
        endpoint = blueprint.value.endpoint.model_copy(update={"pool": pool})
        return replace(blueprint, value=blueprint.value.model_copy(update={"endpoint": endpoint}))

    def describe(self, blueprint: Document[Blueprint], deployment: BatchDeployment) -> Iterable[tuple[str, str]]:
        return summary.describe(deployment)


KIND = BatchKind()
