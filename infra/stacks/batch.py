"""A batch on ECS: the state machine with its queues, workers, the Batch API, and who hears of a job's end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.bindings import aws, cdktf
from infra.constructs import batch_tasks, network, results_table, secrets, task, task_network, task_watch, workflow
from infra.constructs.account import Account, read_account
from infra.constructs.key import add_key, build_log_group_grant
from infra.constructs.workflow import WorkflowContext
from infra.stacks import base
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.targets.ecs import manifest
from llm_serving.targets.ecs.manifest import EcsBatch

_LOG_RETENTION_DAYS = 90


def list_stacks(document: Document[Fleet], manifest_files: Sequence[Path]) -> list[BatchStack]:
    """Return the stack of each batch that is rendered for ECS.

    Raises:
        InputError: a rendered file is wrong.
    """
    values = [manifest.read(file, document).value for file in manifest_files]
    return [BatchStack(value) for value in values if isinstance(value, EcsBatch)]


class BatchStack:
    """The stack of one batch."""

    NEEDS = ("ecs", "storage")

    def __init__(self, batch: EcsBatch) -> None:
        self.NAME = manifest.format_stack_name(batch.kind, batch.name)
        self._batch = batch

    def is_enabled(self, fleet: Fleet) -> bool:
        """Whether a pool of the fleet runs on ECS."""
        return "ecs" in fleet.orchestrators

    def add(self, app: cdktf.App, document: Document[Fleet]) -> None:
        """Add the stack to the app.

        Outputs: url, log_group, services (names of the ECS services, by role), definitions (task definitions, by
        service), ask (what runs the test request), state_machine, topic (ARNs).
        """
        _add_resources(base.create_stack(app, self.NAME, document), document.value, self._batch)


def _add_resources(stack: cdktf.TerraformStack, fleet: Fleet, batch: EcsBatch) -> None:
    account, fleet_network = read_account(stack, fleet), network.find_network(stack, fleet)
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "range", id=fleet_network.vpc_id)
    namespace = aws.data_aws_service_discovery_dns_namespace.DataAwsServiceDiscoveryDnsNamespace(
        stack, "peers", name=names.format_namespace(fleet), type="DNS_PRIVATE"
    )
    keys = {
        alias: aws.data_aws_kms_alias.DataAwsKmsAlias(
            stack, f"{alias}-key", name=f"alias/{fleet.name}-{alias}"
        ).target_key_arn
        for alias in ("ecs", "storage")
    }
    key = _add_key(stack, fleet, batch, account)
    parts = WorkflowContext(fleet, batch, account, key, keys["storage"])
    added_workflow = workflow.add_workflow(stack, parts)
    log_group = aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack,
        "tasks-logs",
        name=manifest.format_log_group(fleet, batch.name, batch.kind),
        retention_in_days=_LOG_RETENTION_DAYS,
        kms_key_id=key.arn,
    )
    context = batch_tasks.TaskContext(
        workflow=parts,
        cluster_arn=account.build_arn("ecs", f"cluster/{names.format_cluster_name(fleet)}"),
        cluster_key=keys["ecs"],
        subnets=list(fleet_network.private_subnets.values()),
        logs=task.LogDestination(log_group.name, fleet.region),
        secret_arns=secrets.find_arns(stack, batch.services),
    )
    roles = batch_tasks.add_task_roles(stack, context, log_group)
    groups = batch_tasks.add_security_groups(stack, context, vpc_id=fleet_network.vpc_id, vpc_cidr=vpc.cidr_block)
    registry = task_network.add_discovery_service(stack, batch, batch.entry, namespace_id=namespace.id)
    definitions = {}
    for service in batch.services:
        is_api = service == batch.entry
        variable = {batch_tasks.STATE_MACHINE_VARIABLE: added_workflow.state_machine.arn}
        definition, ecs_service = batch_tasks.add_service(
            stack,
            context,
            service,
            roles=roles[service.name],
            security_group=groups[service.name],
            registry=registry if is_api else None,
            variables=variable if is_api else {},
            dependencies=[log_group],
        )
        definitions[service.name] = definition.arn
        task_watch.add_running_alarm(stack, fleet, batch, service, [ecs_service.name])
    if batch.results_table:
        results_table.add_results_table(stack, fleet, batch, batch.results_table)
    _add_outputs(stack, fleet, batch, definitions, added_workflow)
    _add_test_request(stack, context, roles[batch.entry.name], groups[batch.entry.name])


def _add_key(stack: cdktf.TerraformStack, fleet: Fleet, batch: EcsBatch, account: Account) -> aws.kms_key.KmsKey:
    """Add the key of the batch's logs, topic and schedules."""
    log_groups = {
        "Tasks": manifest.format_log_group(fleet, batch.name, batch.kind),
        "Workflow": workflow.format_log_group(batch),
    }
    return add_key(
        stack,
        "batch-key",
        alias=f"{fleet.name}-batch-{batch.name}",
        description=f"Logs, notifications and schedules of {batch.name}",
        account=account,
        grants=(
            *(build_log_group_grant(account, group, sid) for sid, group in log_groups.items()),
            *workflow.build_key_grants(),
        ),
    )


def _format_url(fleet: Fleet, batch: EcsBatch) -> str:
    return f"http://{batch.name}-{batch.entry.name}.{names.format_namespace(fleet)}:{batch.entry.port}"


def _add_outputs(
    stack: cdktf.TerraformStack,
    fleet: Fleet,
    batch: EcsBatch,
    definitions: dict[str, Any],
    added_workflow: workflow.Workflow,
) -> None:
    services = {service.role: [f"{batch.name}-{service.name}"] for service in batch.services}
    base.add_output(
        stack,
        "log_group",
        manifest.format_log_group(fleet, batch.name, batch.kind),
        "Log group of all tasks; streams begin with the role",
    )
    base.add_output(stack, "services", services, "Names of the ECS services, by role")
    base.add_output(stack, "definitions", definitions, "Task definitions, by service: what runs unless ECS rolled back")
    base.add_output(stack, "url", _format_url(fleet, batch), "Base URL of the Batch API for clients in the VPC")
    base.add_output(stack, "state_machine", added_workflow.state_machine.arn, "The state machine of the jobs")
    base.add_output(stack, "topic", added_workflow.topic.arn, "Topic that hears of each job's end: subscribe to it")


def _add_test_request(
    stack: cdktf.TerraformStack,
    context: batch_tasks.TaskContext,
    roles: task.TaskRoles,
    security_group: aws.security_group.SecurityGroup,
) -> None:
    """Add the task definition of the test request, and the output with all that runs it."""
    fleet, batch = context.workflow.fleet, context.workflow.batch
    test_request = task.add_test_request_definition(
        stack,
        batch.entry,
        family=f"{fleet.name}-{batch.name}-ask",
        url=_format_url(fleet, batch),
        roles=roles,
        logs=context.logs,
    )
    request = {
        "task_definition": test_request.arn,
        "subnets": list(context.subnets),
        "group": security_group.id,
    }
    base.add_output(stack, "ask", request, "Task that asks the Batch API whether it serves")
