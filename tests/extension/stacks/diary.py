"""The stack of a diary: its queue, who may write to it, and on ECS its services."""

from __future__ import annotations

from llm_serving.kinds.diary.kind import DiaryStack

from infra.bindings import aws
from infra.constructs import iam, task, task_network, task_place, task_roles, task_service
from infra.constructs.iam import add_role, allow
from infra.stacks import base
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.services import rendered
from llm_serving.services.rendered import Rendered

KIND = "diary"


def list_stacks(document, files):
    """Return the stack of each diary."""
    diaries = [file for file in files if rendered.read_kind(file, document.value) == KIND]
    return [DeploymentStack(rendered.read(file, document, Rendered[DiaryStack]).value) for file in diaries]


class DeploymentStack:
    """The stack of one diary."""

    def __init__(self, diary):
        self.NAME = rendered.format_stack_name(KIND, diary.name)
        self.NEEDS = (diary.stack.orchestrator, "storage")
        self._diary = diary

    def is_enabled(self, fleet):
        """Return whether the fleet has its orchestrator."""
        return self._diary.stack.orchestrator in fleet.orchestrators

    def add(self, app, document):
        """Add the stack to the app."""
        stack, diary = base.create_stack(app, self.NAME, document), self._diary
        queue = aws.sqs_queue.SqsQueue(stack, "queue", name=diary.stack.queue, sqs_managed_sse_enabled=True)
        if diary.stack.orchestrator == "ecs":
            _add_tasks(stack, diary, queue)
            return
        for service in diary.services:
            trust = iam.build_pod_trust_policy(stack)
            role = _add_role(stack, diary, service, queue, trust)
            iam.add_service_association(stack, diary.name, service.name, role)


def _add_role(stack, diary, service, queue, trust):
    return add_role(
        stack,
        names.format_deployment_purpose(diary.name, service.name),
        description=f"Writes into the queue of {diary.name}",
        trust=trust,
        statements=[allow("Write", "sqs:SendMessage", queue.arn)],
    )


def _add_tasks(stack, diary, queue):
    fleet, place = stack.fleet, task_place.find_place(stack)
    task_service.add_force_variable(stack)
    log_group = aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack, "logs", name=format_log_group(fleet, KIND, diary.name), retention_in_days=7
    )
    execution = task_roles.add_execution_role(stack, diary.name, log_group=log_group)
    groups = task_network.add_groups(stack, diary.name, [row.name for row in diary.services], place.network.vpc_id)
    task_network.add_entry_rules(stack, "api", groups[diary.entry.name], diary.entry, place.vpc)
    context = task_service.ServiceContext(stack=stack, deployment=diary.name, place=place, may_use_spot=True)
    added, roles = {}, {}
    for service in diary.services:
        trust = task_roles.build_trust_policy(stack.account)
        role = _add_role(stack, diary, service, queue, trust)
        roles[service.name] = task.TaskRoles(execution, role)
        definition = task.add_definition(
            stack,
            service,
            family=f"{fleet.name}-{diary.name}-{service.name}",
            roles=roles[service.name],
            logs=task.LogDestination(log_group.name, fleet.region),
            image_prefixes={},
        )
        parts = task_service.ServiceParts(definition, groups[service.name], registry=None, dependencies=[log_group])
        added[service.name] = task_service.add_services(context, service, parts)
    entry = diary.entry.name
    task_place.add_outputs(stack, diary, place, added, roles=roles[entry], security_group=groups[entry])
