"""What the code of a batch's programs calls: that of workers, and that of the Batch API."""

from __future__ import annotations

from collections.abc import Iterator

from infra.constructs import model_reader
from infra.constructs.policy import Statement, allow
from infra.constructs.workflow import WorkflowContext
from llm_serving.services.service import Service


def list_calls(context: WorkflowContext, service: Service) -> tuple[str, Iterator[Statement]]:
    """Return the word for a program's role, and what it calls."""
    return ("api", build_api_statements(context)) if service.is_entry else ("work", build_worker_statements(context))


def build_worker_statements(context: WorkflowContext) -> Iterator[Statement]:
    """Allow to take steps from the queues, read inputs, write results, and answer the state machine."""
    yield from _build_storage_statements(context)
    yield allow(
        "TakeSteps",
        ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"],
        context.build_queue_arns(context.step_queues),
    )
    if queue := context.batch.uncached_queue:
        actions = ["sqs:GetQueueUrl", "sqs:PurgeQueue", "sqs:SendMessage"]
        yield allow("TellOfCache", actions, context.build_queue_arns([queue]))
    yield allow("Forget", ["s3:DeleteObject"], f"{context.bucket_arn}/{context.batch.prefix}/uncached/*")
    yield allow("Answer", ["states:SendTaskFailure", "states:SendTaskSuccess"], context.task_arns)


def build_api_statements(context: WorkflowContext) -> Iterator[Statement]:
    """Allow to accept files and submissions, start executions, and read results."""
    yield from _build_storage_statements(context)
    yield allow("Delete", ["s3:DeleteObject"], f"{context.bucket_arn}/{context.batch.prefix}/files/*")
    yield allow(
        "FindQueues", ["sqs:GetQueueUrl"], context.build_queue_arns([*context.step_queues, context.batch.inbox_queue])
    )
    yield allow(
        "TakeFiles", ["sqs:DeleteMessage", "sqs:ReceiveMessage"], context.build_queue_arns([context.batch.inbox_queue])
    )
    yield allow("Start", ["states:StartExecution"], context.state_machine_arn)
    yield allow("ListRunning", ["states:ListExecutions"], context.state_machine_arn)
    yield allow("Follow", ["states:DescribeExecution"], context.execution_arn)


def _build_storage_statements(context: WorkflowContext) -> Iterator[Statement]:
    """Allow to read and write the batch's own objects, and to read other inputs."""
    batch, account = context.batch, context.stack.account
    own = f"{context.bucket_arn}/{batch.prefix}/*"
    inputs = [location.removeprefix("s3://").partition("/") for location in batch.inputs]
    buckets = {bucket: account.build_bucket_arn(bucket) for bucket, _, _ in inputs}
    objects = [f"{buckets[bucket]}/{prefix.rstrip('/')}/*" for bucket, _, prefix in inputs]
    yield allow("Read", ["s3:GetObject"], [own, *objects])
    yield allow("Write", ["s3:AbortMultipartUpload", "s3:PutObject"], own)
    # On the whole bucket: S3 answers 404 for a missing object only to callers that may list it. Others get 403, also
    # with a condition on the prefix. Source: S3 API reference, GetObject, permissions, 2026-11.
    yield allow("List", ["s3:ListBucket"], [context.bucket_arn, *sorted(buckets.values())])
    yield allow("Encrypt", ["kms:Decrypt", "kms:GenerateDataKey"], context.storage_key)
    if batch.inputs:
        yield from model_reader.build_key_statements(context.stack.fleet)
