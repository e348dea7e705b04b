"""Messages of the queues, and answers to the state machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from batch.settings import Settings
from batch.store import get_code

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

    def __init__(self, sqs: Any, stepfunctions: Any, settings: Settings) -> None:
        self._sqs = sqs
        self._stepfunctions = stepfunctions
        self._takeover_s, self._wait_s = max(1, round(settings.takeover_s)), settings.queue_wait_s
        self._is_closed = False
        self.held: set[Message] = set()
        """Messages in progress."""

    def receive(self, queue: str) -> Message | None:
        """Receive a message; None if there is none within some seconds, or if the mailbox was closed meanwhile."""
        response = self._sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, WaitTimeSeconds=self._wait_s)
        for received in response.get("Messages", ()):
            try:
                message = Message(queue, received["ReceiptHandle"], json.loads(received["Body"]))
            except (ValueError, RecursionError):
                self._sqs.delete_message(QueueUrl=queue, ReceiptHandle=received["ReceiptHandle"])
                continue
            if not self._is_closed:
                self.held.add(message)
                return message
            self.hand_back(message)
        return None

    def close(self) -> None:
        """Hand every message back that arrives from now on."""
        self._is_closed = True

    def release(self, message: Message) -> None:
        """Give a message up: it becomes visible again after the takeover time."""
        self.held.discard(message)

    def keep(self, message: Message) -> None:
        """Extend the visibility timeout of a message."""
        self._set_visibility(message, self._takeover_s)

    def hand_back(self, message: Message) -> None:
        self._set_visibility(message, 0)
        self.release(message)

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
            if get_code(error) not in _GONE:
                raise
        self._sqs.delete_message(QueueUrl=message.queue, ReceiptHandle=message.receipt)
        self.release(message)

    def _set_visibility(self, message: Message, seconds: int) -> None:
        try:
            self._sqs.change_message_visibility(
                QueueUrl=message.queue, ReceiptHandle=message.receipt, VisibilityTimeout=seconds
            )
        except ClientError:
            # It timed out, and another worker has it: the chunk's head decides whose results count.
            return
