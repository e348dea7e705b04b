"""The workflow of a batch on AWS: queues, the state machine, events of new files, schedules, and a topic for its end.

The state machine is `state_machine.asl.json`, as on the local target. Each of its steps is a message to the workers
with a task token, so it needs no functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from infra.bindings import aws
from infra.constructs import alarm, iam, model_reader
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement, add_role, allow, list_policies
from infra.constructs.key import add_log_group
from llm_serving.fleet import names
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE, BatchStack
from llm_serving.services.service import Service

MESSAGE_RETENTION_S = 14 * 86400
"""SQS's maximum: how long a step of the state machine may wait for a worker."""

EVENT_SOURCE = "llm-serving.batch"
"""As the state machine writes it."""

_QUEUE_ALARM_S = 900
"""A step that waits longer than this has no worker, and a file no Batch API."""


@dataclass(frozen=True)
class WorkflowContext:
    """The batch and the resources that the workflow uses."""

    stack: FleetStack
    name: str
    """The deployment's."""

    batch: BatchStack
    key: aws.kms_key.KmsKey
    """Key of logs, topic and schedules; its policy has `build_key_grant`."""

    storage_key: str
    """ARN of the results bucket's key."""

    @property
    def state_machine_arn(self) -> str:
        """Built from its name, because its own role refers to it before it exists."""
        return self.stack.account.build_arn("states", f"stateMachine:{self.batch.workflow}")

    @property
    def task_arns(self) -> list[str]:
        """Build ARNs by which IAM judges tasks: a Distributed Map's children run as `stateMachine:NAME/LABEL`.

        Source: Step Functions API reference, DescribeStateMachine, on qualified ARNs, 2026-11.
        """
        return [self.state_machine_arn, f"{self.state_machine_arn}/*"]

    def build_queue_arns(self, names: Iterable[str]) -> list[str]:
        return [self.stack.account.build_arn("sqs", name) for name in names]

    @property
    def step_queues(self) -> list[str]:
        """Names of the queues that the state machine sends to, and workers receive from."""
        return [self.batch.control_queue, *self.batch.run_queues]


def build_key_grant(account: Account, batch: BatchStack) -> Statement:
    """Let EventBridge publish to the encrypted topic. It says to KMS nothing of account or rule: AWS does not support
    `aws:SourceAccount` and `aws:SourceArn` here.

    Source: SNS developer guide, "Managing Amazon SNS encryption keys and costs", 2026-11.
    """
    to_topic = {"ArnEquals": {"kms:EncryptionContext:aws:sns:topicArn": account.build_arn("sns", format_topic(batch))}}
    actions = ["kms:Decrypt", "kms:GenerateDataKey*"]
    return iam.allow_service("Events", iam.EVENTS, actions, "*", condition=to_topic)


def format_log_group(batch: BatchStack) -> str:
    """Format the state machine's log group; with this prefix CloudWatch needs no policy for each group.

    Source: Step Functions developer guide, "Logging using CloudWatch Logs", 2026-11.
    """
    return f"/aws/vendedlogs/states/{batch.workflow}"


def format_topic(batch: BatchStack) -> str:
    return f"{batch.workflow}-ended"


def format_undelivered_queue(batch: BatchStack) -> str:
    """Format the name of the queue of messages that could not become a job."""
    return f"{batch.workflow}-undelivered"


def add_workflow(
    context: WorkflowContext,
) -> tuple[aws.sfn_state_machine.SfnStateMachine, aws.sns_topic.SnsTopic]:
    """Add the queues, the inbox, the schedules and the alarms; return the state machine and the topic."""
    batch = context.batch
    queues = {name: _add_queue(context, name) for name in context.step_queues}
    state_machine = _add_state_machine(context, queues[batch.control_queue])
    if batch.uncached_queue:
        _add_queue(context, batch.uncached_queue)
    inbox = _add_inbox(context)
    _add_schedules(context, inbox)
    topic = _add_topic(context)
    _add_alarms(context)
    return state_machine, topic


def _add_queue(
    context: WorkflowContext, name: str, *grants: Statement, redrive: str | None = None
) -> aws.sqs_queue.SqsQueue:
    batch, arn = context.batch, context.stack.account.build_arn("sqs", name)
    return aws.sqs_queue.SqsQueue(
        context.stack,
        # All names have the same prefix.
        f"queue-{name.removeprefix(f'{batch.workflow}-')}",
        name=name,
        visibility_timeout_seconds=batch.takeover_s,
        message_retention_seconds=MESSAGE_RETENTION_S,
        # SQS's own key: messages name jobs and chunks, and contain no rows.
        sqs_managed_sse_enabled=True,
        redrive_policy=redrive,
        # Inline, and not a resource of its own: the provider waits half a minute for each.
        policy=iam.build_document(iam.require_tls("sqs:*", arn), *grants),
    )


def _add_state_machine(
    context: WorkflowContext, control_queue: aws.sqs_queue.SqsQueue
) -> aws.sfn_state_machine.SfnStateMachine:
    batch = context.batch
    group_name = format_log_group(batch)
    log_group = add_log_group(context.stack, "workflow-logs", group_name, context.key, keep_days=90)
    role = add_role(
        context.stack,
        names.format_deployment_purpose(context.name, "flow"),
        description=f"Carries the jobs of {context.name}",
        trust=iam.build_trust_policy(
            "states.amazonaws.com",
            ArnLike={"aws:SourceArn": context.task_arns},
            StringEquals={"aws:SourceAccount": context.stack.account.id},
        ),
        statements=[
            allow("Send", ["sqs:SendMessage"], context.build_queue_arns(context.step_queues)),
            *iam.read_statements(
                context.stack,
                "state-machine",
                workflow=batch.workflow,
                bucket=batch.bucket,
                prefix=batch.prefix,
                storage_key=context.storage_key,
                event_source=EVENT_SOURCE,
            ),
        ],
    )
    return aws.sfn_state_machine.SfnStateMachine(
        context.stack,
        "workflow",
        name=batch.workflow,
        type="STANDARD",
        role_arn=role.arn,
        definition=format_definition(batch, control_queue.url, context.stack.fleet.region),
        logging_configuration={
            "level": "ERROR",
            "include_execution_data": False,
            "log_destination": f"{log_group.arn}:*",
        },
        depends_on=list_policies(role),
    )


def format_definition(batch: BatchStack, control_queue: str, region: str) -> str:
    """Format the state machine's definition.

    Each of its integrations fails where their ARN has another partition than the execution. Source: aws-cdk#4597.
    """
    text = STATE_MACHINE_FILE.read_text(encoding="utf-8")
    text = text.replace("arn:aws:", f"arn:{names.find_partition(region)}:")
    return text.replace("${control_queue}", control_queue).replace("${deployment}", batch.workflow)


def _add_inbox(context: WorkflowContext) -> aws.sqs_queue.SqsQueue:
    """Add the queue of new files in inboxes. The Batch API turns each into one job, and starts its execution."""
    batch, account = context.batch, context.stack.account
    rule = alarm.add_rule(
        context.stack,
        "inbox-files",
        f"Files in the inboxes of {context.name}",
        {
            "source": ["aws.s3"],
            "detail-type": ["Object Created"],
            "detail": {"bucket": {"name": [batch.bucket]}, "object": {"key": [{"prefix": f"{batch.prefix}/inbox/"}]}},
        },
        name=f"{batch.workflow}-inbox",
    )
    undelivered_name = format_undelivered_queue(batch)
    grants = {
        name: iam.allow_rules("FromEvents", account.build_arn("sqs", name), rule.arn)
        for name in (undelivered_name, batch.inbox_queue)
    }
    undelivered = _add_queue(context, undelivered_name, grants[undelivered_name])
    # So often the Batch API may try to create a job from a file's event.
    redrive = json.dumps({"deadLetterTargetArn": undelivered.arn, "maxReceiveCount": 20})
    inbox = _add_queue(context, batch.inbox_queue, grants[batch.inbox_queue], redrive=redrive)
    aws.cloudwatch_event_target.CloudwatchEventTarget(
        context.stack,
        "inbox-files-queue",
        rule=rule.name,
        arn=inbox.arn,
        target_id="inbox",
        dead_letter_config={"arn": undelivered.arn},
    )
    return inbox


def _add_schedules(context: WorkflowContext, inbox: aws.sqs_queue.SqsQueue) -> None:
    """Send each schedule's file to the inbox queue by EventBridge Scheduler; the time makes each run a new job.

    What Scheduler cannot send is lost without a queue for it, which has an alarm here. Source: EventBridge Scheduler
    user guide, "Configuring a schedule's dead-letter queue", 2026-11.
    """
    batch = context.batch
    if not batch.schedules:
        return
    [undelivered] = context.build_queue_arns([format_undelivered_queue(batch)])
    role = _add_schedule_role(context, [inbox.arn, undelivered])
    for name, schedule in batch.schedules.items():
        message = {
            "name": name,
            "file": schedule.file,
            "team": schedule.team,
            "priority": schedule.priority,
            "time": "<aws.scheduler.scheduled-time>",
        }
        aws.scheduler_schedule.SchedulerSchedule(
            context.stack,
            f"schedule-{name}",
            name=f"{batch.workflow}-{name}",
            description=f"{schedule.file} of {schedule.team}",
            schedule_expression=schedule.at,
            schedule_expression_timezone=schedule.time_zone,
            kms_key_arn=context.key.arn,
            flexible_time_window={"mode": "OFF"},
            target={
                "arn": inbox.arn,
                "role_arn": role.arn,
                "input": json.dumps({"schedule": message}),
                "dead_letter_config": {"arn": undelivered},
            },
            depends_on=list_policies(role),
        )


def _add_schedule_role(context: WorkflowContext, queue_arns: list[str]) -> aws.iam_role.IamRole:
    return add_role(
        context.stack,
        names.format_deployment_purpose(context.name, "time"),
        description=f"Schedules of {context.name}",
        trust=iam.build_trust_policy(
            "scheduler.amazonaws.com", StringEquals={"aws:SourceAccount": context.stack.account.id}
        ),
        statements=(
            allow("Send", ["sqs:SendMessage"], queue_arns),
            allow("Decrypt", ["kms:Decrypt"], context.key.arn),
        ),
    )


def _add_topic(context: WorkflowContext) -> aws.sns_topic.SnsTopic:
    batch = context.batch
    topic = aws.sns_topic.SnsTopic(context.stack, "ended", name=format_topic(batch), kms_master_key_id=context.key.arn)
    rule = alarm.add_rule(
        context.stack,
        "ended-jobs",
        f"Ends of the jobs of {context.name}",
        {"source": [EVENT_SOURCE], "detail": {"deployment": [batch.workflow]}},
        name=f"{batch.workflow}-ended",
    )
    aws.sns_topic_policy.SnsTopicPolicy(
        context.stack,
        "ended-policy",
        arn=topic.arn,
        # Without a condition, which EventBridge never meets at a topic. Source: EventBridge user guide, "Using
        # resource-based policies for Amazon EventBridge", Amazon SNS permissions, 2026-11.
        policy=iam.build_document(
            iam.require_tls("sns:Publish", topic.arn),
            iam.allow_service("FromEvents", iam.EVENTS, "sns:Publish", topic.arn),
        ),
    )
    aws.cloudwatch_event_target.CloudwatchEventTarget(
        context.stack, "ended-jobs-topic", rule=rule.name, arn=topic.arn, target_id="ended"
    )
    return topic


def _add_alarms(context: WorkflowContext) -> None:
    """Add alarms for steps and files that nobody takes, for files that did not become a job, and for a results cache.

    A message is counted until it is done, and a large job's plan or merge may be under way for hours. Source: SQS
    developer guide, "Available CloudWatch metrics for Amazon SQS", 2026-11.
    """
    batch = context.batch
    _add_waiting_alarm(context, "waiting", batch.control_queue, "Steps wait for workers")
    _add_waiting_alarm(context, "files", batch.inbox_queue, "Files wait for the Batch API")
    alarm.add_alarm(
        context.stack,
        batch.workflow,
        "undelivered",
        alarm.find_metric(
            "undelivered", "undelivered-files", {"QueueName": format_undelivered_queue(batch)}, "Maximum"
        ),
        description=f"Files of which no job was made of {context.name}",
        signal="undelivered-files",
        condition=alarm.Condition(0),
    )
    if batch.uncached_queue:
        alarm.add_alarm(
            context.stack,
            batch.workflow,
            "uncached",
            alarm.find_metric("uncached", "uncached-chunks", {"QueueName": batch.uncached_queue}, "Minimum"),
            description=f"Answers that the results cache lacks of {context.name}",
            signal="uncached-chunks",
            condition=alarm.Condition(
                0,
                periods=15,  # minutes: failover or scaling takes a few
            ),
        )


def _add_waiting_alarm(context: WorkflowContext, name: str, queue: str, description: str) -> None:
    of_queue = {"QueueName": queue}
    alarm.add_alarm(
        context.stack,
        context.batch.workflow,
        name,
        alarm.find_metric("age", "oldest-step", of_queue, "Maximum"),
        # Of any queue it counts the messages that nobody has.
        alarm.find_metric("waiting", "undelivered-files", of_queue, "Minimum"),
        alarm.Expression("stale", "IF(waiting > 0, age, 0)", "Age of the oldest while some wait"),
        description=f"{description} of {context.name}",
        signal="oldest-step",
        condition=alarm.Condition(_QUEUE_ALARM_S),
    )


def list_calls(context: WorkflowContext, service: Service) -> tuple[str, list[Statement]]:
    """Return the word for a program's role, and what it calls."""
    batch, stack = context.batch, context.stack
    inputs = [location.removeprefix("s3://").partition("/") for location in batch.inputs]
    buckets = {bucket: stack.account.build_bucket_arn(bucket) for bucket, _, _ in inputs}
    values = {
        "workflow": batch.workflow,
        "bucket": batch.bucket,
        "prefix": batch.prefix,
        "input_buckets": sorted(buckets.values()),
        "input_objects": [f"{buckets[bucket]}/{prefix.rstrip('/')}/*" for bucket, _, prefix in inputs],
        "storage_key": context.storage_key,
        "step_queues": context.build_queue_arns(context.step_queues),
        "inbox_queue": context.build_queue_arns([batch.inbox_queue]),
        "uncached_queue": context.build_queue_arns(filter(None, [batch.uncached_queue])),
        "tasks": context.task_arns,
    }
    return "api" if service.is_entry else "work", [
        *iam.read_statements(stack, "batch-storage", **values),
        *(model_reader.build_key_statements(stack.fleet) if inputs else ()),
        *iam.read_statements(stack, "batch-api" if service.is_entry else "batch-worker", **values),
    ]
