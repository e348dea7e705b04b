"""Executions of a batch's state machine on AWS, which carry its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llm_serving import console
from llm_serving.kinds.batch import cloud
from llm_serving.kinds.batch.deployment import BatchDeployment


def stop(deployment: BatchDeployment, connect: Callable[[str], Any], remove_services: Callable[[], None]) -> None:
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


def _list_running(client: Any, state_machine: str) -> Iterator[str]:
    pages = client.get_paginator("list_executions").paginate(stateMachineArn=state_machine, statusFilter="RUNNING")
    try:
        for page in pages:
            yield from (execution["executionArn"] for execution in page["executions"])
    except client.exceptions.StateMachineDoesNotExist:
        return
