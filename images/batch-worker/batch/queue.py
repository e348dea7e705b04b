"""Messages of the queues, and answers to the state machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

_GONE = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")
"""Errors of an execution that ended or passed the step to another: no answer is expected."""


@dataclass(frozen=True, eq=False)  # deliveries are compared by identity, not by content
class Message:
    """A step of a job that a worker must do."""

    queue: str
    receipt: str
    body: dict[str, Any]

    @property
    def task(self) -> str:
        """plan, scan, check, run, merge or fail."""
        return str(self.body["task"])


class Mailbox:
    """The queues from a worker's side. Every call blocks: call it in a thread."""

    def __init__(self, sqs: Any, stepfunctions: Any, takeover_s: float) -> None:
        self._sqs = sqs
        self._stepfunctions = stepfunctions
        self._takeover_s = max(1, round(takeover_s))

    def receive(self, queue: str, wait_s: int) -> Message | None:
        """Receive a message; None if there is none within `wait_s` seconds."""
        response = self._sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, WaitTimeSeconds=wait_s)
        for message in response.get("Messages", ()):
            try:
                return Message(queue, message["ReceiptHandle"], json.loads(message["Body"]))
            except ValueError:
                self._sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return None

    def keep(self, message: Message) -> None:
        """Extend the visibility timeout of a message."""
        self._set_visibility(message, self._takeover_s)

    def hand_back(self, message: Message) -> None:
        """Return a message to the queue at once."""
        self._set_visibility(message, 0)

    def succeed(self, message: Message, output: dict[str, Any]) -> None:
        """Tell the state machine that the step is done."""
        text = json.dumps(output)
        self._answer(message, lambda token: self._stepfunctions.send_task_success(taskToken=token, output=text))

    def fail(self, message: Message, error: str, cause: dict[str, Any]) -> None:
        """Tell the state machine that the step failed; it repeats the error `Transient`."""
        code, text = error[:256], json.dumps(cause)[:32000]
        self._answer(
            message, lambda token: self._stepfunctions.send_task_failure(taskToken=token, error=code, cause=text)
        )

    def _answer(self, message: Message, send: Callable[[str], Any]) -> None:
        try:
            send(message.body["token"])
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _GONE:
                raise
        self._sqs.delete_message(QueueUrl=message.queue, ReceiptHandle=message.receipt)

    def _set_visibility(self, message: Message, seconds: int) -> None:
        try:
            self._sqs.change_message_visibility(
                QueueUrl=message.queue, ReceiptHandle=message.receipt, VisibilityTimeout=seconds
            )
        except ClientError:
            # It timed out, and another worker has it: the chunk's head decides whose results count.
            return
