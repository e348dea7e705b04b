"""The kind `batch`: files of requests through an endpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.batch import executions, summary
from llm_serving.kinds.batch import resolve as resolving
from llm_serving.kinds.batch.blueprint import Blueprint
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.stack import BatchStack
from llm_serving.services import rendered
from llm_serving.services.kinds import Kind
from llm_serving.services.rendered import Rendered
from llm_serving.settings.document import Document


class BatchKind(Kind[Blueprint, BatchDeployment]):
    """Offline batches; each method is described in `Kind`."""

    NAME = "batch"
    SETTINGS = Blueprint
    DEPLOYMENT = BatchDeployment
    VALIDATOR = "llm_serving.kinds.batch.validation.validate"
    REFRESHED = ("sample", "slo")

    resolve = staticmethod(resolving.resolve)
    list_port_names = staticmethod(resolving.list_port_names)
    describe = staticmethod(summary.describe)
    build_summary = staticmethod(summary.build_payload)
    stop_work = staticmethod(executions.stop)

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        deployment = rendered.read(file, fleet, Rendered[BatchStack]).value
        return rendered.list_fargate(deployment.stack.orchestrator, deployment.services, deployment.name)

    def move_to_pool(self, blueprint: Document[Blueprint], pool: str) -> Document[Blueprint]:
        if not blueprint.value.endpoint.model:
            return blueprint
        endpoint = blueprint.value.endpoint.model_copy(update={"pool": pool})
        return replace(blueprint, value=blueprint.value.model_copy(update={"endpoint": endpoint}))


KIND = BatchKind()
