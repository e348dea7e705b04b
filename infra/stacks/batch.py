"""A batch: the state machine with its queues, the roles or services of workers and Batch API, and a topic for its end.

On ECS workers and the Batch API are services of this stack. On EKS they are pods of charts/batch, and the stack has
their roles.
"""

from __future__ import annotations

import functools

from infra.bindings import aws
from infra.constructs import iam, results_table, task_checks, task_network, task_place, task_programs, workflow
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import add_key, build_log_group_grant, find_key
from infra.constructs.security_group import SecurityGroups
from infra.constructs.task_place import TaskPlace
from infra.constructs.task_programs import ProgramRoles
from infra.constructs.workflow import WorkflowContext
from infra.stacks import base
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.kinds.batch.stack import BatchStack
from llm_serving.services.rendered import Rendered

KIND = "batch"

Batch = Rendered[BatchStack]


def _add_resources(stack: FleetStack, batch: Batch) -> None:
    """Add all; outputs: state_machine, topic (ARNs); on ECS those of `task_place.add_outputs` too."""
    context = WorkflowContext(stack, batch.name, batch.stack, _add_key(stack, batch), find_key(stack, "storage"))
    roles = ProgramRoles(
        stack,
        batch,
        iam.find_service_secrets(stack, batch.services),
        functools.partial(workflow.list_calls, context),
    )
    state_machine, topic = workflow.add_workflow(context)
    if batch.stack.results_table:
        results_table.add_results_table(stack, batch.name, batch.stack, batch.stack.results_table)
    if batch.stack.orchestrator == "ecs":
        place = task_place.find_place(stack)
        task_programs.add_programs(
            roles,
            place,
            log_key=context.key,
            groups=_add_security_groups(stack, batch, place),
            dependencies=[state_machine],
            may_use_spot=True,
        )
    else:
        roles.add_for_pods()
    base.add_output(stack, "state_machine", state_machine.arn, "The state machine of the jobs")
    base.add_output(stack, "topic", topic.arn, "Topic of each job's end: subscribe to it")


def _add_key(stack: FleetStack, batch: Batch) -> aws.kms_key.KmsKey:
    log_groups = {"Workflow": workflow.format_log_group(batch.stack)}
    if batch.stack.orchestrator == "ecs":
        log_groups["Tasks"] = format_log_group(stack.fleet, KIND, batch.name)
    return add_key(
        stack,
        "batch-key",
        alias=f"{stack.fleet.name}-batch-{batch.name}",
        description=f"Logs, notifications and schedules of {batch.name}",
        grants=(
            *(build_log_group_grant(stack, group, sid) for sid, group in log_groups.items()),
            workflow.build_key_grant(stack.account, batch.stack),
        ),
    )


def _add_security_groups(stack: FleetStack, batch: Batch, place: TaskPlace) -> SecurityGroups:
    """Add the security groups, by service: clients can reach the Batch API; nothing can reach the workers."""
    groups = task_network.add_groups(
        stack, batch.name, [service.name for service in batch.services], place.network.vpc_id
    )
    task_network.add_entry_rules(stack, "api", groups[batch.entry.name], batch.entry, place.vpc)
    for service in batch.services:
        task_network.add_call_rules(stack, service, groups[service.name], place.vpc)
    return groups


list_stacks = functools.partial(
    base.list_deployments, KIND, lambda file, fleet: task_checks.read(file, fleet, Batch).value, _add_resources
)
