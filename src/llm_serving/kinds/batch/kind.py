"""The kind `batch`: files of requests through an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.batch import cloud
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

    def describe(
        self,
        blueprint: Document[Blueprint],  # noqa: ARG002 - the deployment has all
        deployment: BatchDeployment,
    ) -> Iterator[tuple[str, str]]:
        yield "endpoint", f"{deployment.model}, its own replicas" if deployment.serving else deployment.endpoint_url
        for name, team in deployment.teams.items():
            quota = f", at most {team.tokens_per_day:,} tokens a day" if team.tokens_per_day else ""
            deadline = f", deadline {team.deadline:g} s" if team.deadline else ""
            yield "team", f"{name}: weight {team.weight}, priority {team.priority}{deadline}{quota}"
        yield "workers", f"{deployment.worker_count}, rows in s3://{deployment.bucket}/{deployment.prefix}/"

    def build_summary(self, deployment: BatchDeployment) -> dict[str, Any]:
        return {
            "endpoint": deployment.endpoint_url,
            "model": deployment.model,
            "teams": {name: team.model_dump() for name, team in deployment.teams.items()},
            "workers": deployment.worker_count,
            "results": f"s3://{deployment.bucket}/{deployment.prefix}/",
        }

    def stop_work(
        self, deployment: BatchDeployment, connect: Callable[[str], Any], remove_services: Callable[[], None]
    ) -> None:
        """Stop all executions that run. S3 has their jobs, for which the next deploy's Batch API starts new ones.

        AWS deletes a state machine once none of its executions runs, and ends one at its next transition only. One that
        waits for a worker has none for up to two weeks, and Terraform waits five minutes. Sources: Step Functions API
        reference, DeleteStateMachine; AWS re:Post, "My Step Functions state machine is stuck in the DELETING status";
        terraform-provider-aws 5.100, internal/service/sfn/state_machine.go; 2026-11.
        """
        if deployment.stack is None:
            return
        client = connect("stepfunctions")
        state_machine = cloud.format_state_machine(deployment.environment, deployment.stack.workflow)
        if not any(_list_running(client, state_machine)):
            return
        remove_services()
        with console.step("Stop the executions of unfinished jobs") as step:
            stopped = [client.stop_execution(executionArn=arn) for arn in _list_running(client, state_machine)]
            step.note = f"{len(stopped)}; the next deploy goes on with their jobs"

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        deployment = rendered.read(file, fleet, Rendered[BatchStack]).value
        return rendered.list_fargate(deployment.stack.orchestrator, deployment.services, deployment.name)

    def move_to_pool(self, blueprint: Document[Blueprint], pool: str) -> Document[Blueprint]:
        if not blueprint.value.endpoint.model:
            return blueprint
        endpoint = blueprint.value.endpoint.model_copy(update={"pool": pool})
        return replace(blueprint, value=blueprint.value.model_copy(update={"endpoint": endpoint}))


def _list_running(client: Any, state_machine: str) -> Iterator[str]:
    pages = client.get_paginator("list_executions").paginate(stateMachineArn=state_machine, statusFilter="RUNNING")
    try:
        for page in pages:
            yield from (execution["executionArn"] for execution in page["executions"])
    except client.exceptions.StateMachineDoesNotExist:
        return


KIND = BatchKind()
