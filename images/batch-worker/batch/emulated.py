"""Resources that the Batch API creates in an embedded AWS, which starts empty: queues, the state machine, S3's events.

On AWS the stack `batch` creates them, and this module is not used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batch import layout
from batch.settings import Settings

EMULATED_ROLE = "arn:aws:iam::123456789012:role/batch"
"""The emulator requires the name of a role, and enforces none."""


def create_resources(sqs: Any, stepfunctions: Any, s3: Any, settings: Settings, definition: Path) -> str:
    """Create queues and state machine unless they exist; returns the state machine's ARN."""
    attributes = {"VisibilityTimeout": str(round(settings.takeover_s)), "MessageRetentionPeriod": "1209600"}
    for name in (settings.inbox_queue, *settings.run_queues.values()):
        sqs.create_queue(QueueName=name, Attributes=attributes)
    _watch_inboxes(sqs, s3, settings)
    # Last, because it tells the workers that all queues exist.
    control = sqs.create_queue(QueueName=settings.control_queue, Attributes=attributes)
    machines = stepfunctions.list_state_machines()["stateMachines"]
    arn = next((machine["stateMachineArn"] for machine in machines if machine["name"] == settings.name), "")
    text = render_definition(definition.read_text(encoding="utf-8"), settings, control["QueueUrl"])
    if arn:
        stepfunctions.update_state_machine(stateMachineArn=arn, definition=text)
        return str(arn)
    created = stepfunctions.create_state_machine(name=settings.name, definition=text, roleArn=EMULATED_ROLE)
    return str(created["stateMachineArn"])


def _watch_inboxes(sqs: Any, s3: Any, settings: Settings) -> None:
    queue = sqs.get_queue_url(QueueName=settings.inbox_queue)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    prefix = layout.Layout(settings.prefix).build(layout.INBOXES)
    rule = {
        "QueueArn": arn,
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}},
    }
    s3.put_bucket_notification_configuration(
        Bucket=settings.bucket, NotificationConfiguration={"QueueConfigurations": [rule]}
    )


def render_definition(text: str, settings: Settings, control_queue: str) -> str:
    """Insert the deployment's values into the state machine's definition, as the stack does."""
    return text.replace("${control_queue}", control_queue).replace("${deployment}", settings.name)
