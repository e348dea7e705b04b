"""A batch: the state machine with its queues, the roles or services of workers and Batch API, and a topic for its end.

On ECS workers and the Batch API are services of this stack. On EKS they are pods of charts/batch, and the stack has
their roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.bindings import aws, cdktf
from infra.constructs import (
    batch_pods,
    batch_tasks,
    network,
    results_table,
    secrets,
    task,
    task_network,
    task_watch,
    workflow,
)
from infra.constructs.account import Account, read_account
from infra.constructs.key import add_key, build_log_group_grant
from infra.constructs.workflow import WorkflowContext
from infra.stacks import base
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError
from llm_serving.targets.ecs import manifest as ecs_manifest
from llm_serving.targets.ecs.manifest import EcsBatch
from llm_serving.targets.eks import manifest as eks_manifest
from llm_serving.targets.eks.manifest import EksBatch
from llm_serving.targets.on_aws.rendered import BatchManifest, format_stack_name

_LOG_RETENTION_DAYS = 90


def list_stacks(document: Document[Fleet], manifest_files: Sequence[Path]) -> list[BatchStack]:
    """Return the stack of each batch that is rendered for ECS or EKS.

    Raises:
        InputError: a rendered file is wrong, or a batch is rendered for both.
    """
    stacks: dict[str, BatchStack] = {}
    for file in manifest_files:
        reader = eks_manifest if file.name == eks_manifest.FILE else ecs_manifest
        batch = reader.read(file, document).value
        if isinstance(batch, BatchManifest):
            stack = BatchStack(batch)
            if stack.NAME in stacks:
                raise InputError(
                    f"{file}: {batch.name}: both targets have the stack {stack.NAME}. Fix: delete the folder of "
                    "the target that does not run, or set another name."
                )
            stacks[stack.NAME] = stack
    return list(stacks.values())


class BatchStack:
    """The stack of one batch."""

    def __init__(self, batch: BatchManifest) -> None:
        self.NAME = format_stack_name(batch.kind, batch.name)
        self.NEEDS = (batch.ORCHESTRATOR, "storage")
        self._batch = batch

    def is_enabled(self, fleet: Fleet) -> bool:
        """Whether a pool of the fleet runs on the batch's orchestrator."""
        return self._batch.ORCHESTRATOR in fleet.orchestrators

    def add(self, app: cdktf.App, document: Document[Fleet]) -> None:
        """Add the stack to the app.

        Outputs: state_machine, topic (ARNs); on ECS those of `base.TaskOutputs` too.
        """
        _add_resources(base.create_stack(app, self.NAME, document), document.value, self._batch)


def _add_resources(stack: cdktf.TerraformStack, fleet: Fleet, batch: BatchManifest) -> None:
    account = read_account(stack, fleet)
    key = _add_key(stack, fleet, batch, account)
    secret_arns = secrets.find_arns(stack, batch.services)
    context = WorkflowContext(fleet, batch, account, key, _find_key(stack, fleet, "storage"), secret_arns)
    added_workflow = workflow.add_workflow(stack, context)
    if batch.results_table:
        results_table.add_results_table(stack, fleet, batch, batch.results_table)
    if isinstance(batch, EcsBatch):
        _add_tasks(stack, context, batch, added_workflow)
    elif isinstance(batch, EksBatch):
        batch_pods.add_roles(stack, context, batch)
    base.add_output(stack, "state_machine", added_workflow.state_machine.arn, "The state machine of the jobs")
    base.add_output(stack, "topic", added_workflow.topic.arn, "Topic of each job's end: subscribe to it")


def _find_key(stack: cdktf.TerraformStack, fleet: Fleet, alias: str) -> str:
    """Look up the ARN of one of the fleet's keys."""
    return aws.data_aws_kms_alias.DataAwsKmsAlias(
        stack, f"{alias}-key", name=f"alias/{fleet.name}-{alias}"
    ).target_key_arn


def _add_key(stack: cdktf.TerraformStack, fleet: Fleet, batch: BatchManifest, account: Account) -> aws.kms_key.KmsKey:
    """Add the key of the batch's logs, topic and schedules."""
    log_groups = {"Workflow": workflow.format_log_group(batch)}
    if isinstance(batch, EcsBatch):
        log_groups["Tasks"] = ecs_manifest.format_log_group(fleet, batch.name, batch.kind)
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


def _add_tasks(
    stack: cdktf.TerraformStack, parts: WorkflowContext, batch: EcsBatch, added_workflow: workflow.Workflow
) -> None:
    """Add workers and the Batch API as ECS services, with their outputs."""
    fleet, account = parts.fleet, parts.account
    fleet_network = network.find_network(stack, fleet)
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "range", id=fleet_network.vpc_id)
    namespace = aws.data_aws_service_discovery_dns_namespace.DataAwsServiceDiscoveryDnsNamespace(
        stack, "peers", name=names.format_namespace(fleet), type="DNS_PRIVATE"
    )
    log_group = aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack,
        "tasks-logs",
        name=ecs_manifest.format_log_group(fleet, batch.name, batch.kind),
        retention_in_days=_LOG_RETENTION_DAYS,
        kms_key_id=parts.key.arn,
    )
    context = batch_tasks.TaskContext(
        workflow=parts,
        batch=batch,
        cluster_arn=account.build_arn("ecs", f"cluster/{names.format_cluster_name(fleet)}"),
        cluster_key=_find_key(stack, fleet, "ecs"),
        subnets=list(fleet_network.private_subnets.values()),
        logs=task.LogDestination(log_group.name, fleet.region),
    )
    roles = batch_tasks.add_task_roles(stack, context, log_group)
    groups = batch_tasks.add_security_groups(stack, context, vpc_id=fleet_network.vpc_id, vpc_cidr=vpc.cidr_block)
    registry = task_network.add_discovery_service(stack, batch, batch.entry, namespace_id=namespace.id)
    definitions = {}
    for service in batch.services:
        definition, ecs_service = batch_tasks.add_service(
            stack,
            context,
            service,
            roles=roles[service.name],
            security_group=groups[service.name],
            registry=registry if service == batch.entry else None,
            dependencies=[log_group, added_workflow.state_machine],
        )
        definitions[service.name] = definition.arn
        task_watch.add_running_alarm(stack, fleet, batch, service, [ecs_service.name])
    _add_task_outputs(stack, context, definitions, roles[batch.entry.name], groups[batch.entry.name])


def _add_task_outputs(
    stack: cdktf.TerraformStack,
    context: batch_tasks.TaskContext,
    definitions: Mapping[str, str],
    roles: task.TaskRoles,
    security_group: aws.security_group.SecurityGroup,
) -> None:
    """Add the task definition of the test request, and the outputs with all that runs it."""
    fleet, batch = context.workflow.fleet, context.batch
    url = f"http://{batch.name}-{batch.entry.name}.{names.format_namespace(fleet)}:{batch.entry.port}"
    test_request = task.add_test_request_definition(
        stack, batch.entry, family=f"{fleet.name}-{batch.name}-ask", url=url, roles=roles, logs=context.logs
    )
    base.add_task_outputs(
        stack,
        base.TaskOutputs(
            log_group=ecs_manifest.format_log_group(fleet, batch.name, batch.kind),
            services={service.role: [f"{batch.name}-{service.name}"] for service in batch.services},
            definitions=definitions,
            url=url,
            test_request=test_request.arn,
            subnets=context.subnets,
            security_group=security_group.id,
        ),
    )
