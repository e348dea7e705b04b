"""Runs steps, and answers the state machine."""

from __future__ import annotations

import logging
import time

from botocore.exceptions import BotoCoreError, ClientError

from batch.errors import classify
from batch.queue import Mailbox, Message
from batch.steps import Steps
from batch.store import Conflict

log = logging.getLogger("batch-worker")


class StepRunner:
    """Runs steps. Every call blocks: call it in a thread."""

    def __init__(self, steps: Steps, mailbox: Mailbox) -> None:
        self._steps, self._mailbox = steps, mailbox

    def run(self, message: Message) -> None:
        """Run a step, and answer the state machine."""
        start = time.monotonic()
        try:
            output = self._steps.run(message.task, message.body)
            self._mailbox.succeed(message, output)
            log.info("%s of %s: %s in %.1f s", message.task, message.body["job"], output, time.monotonic() - start)
        except Exception as error:  # noqa: BLE001 - every failure of a step goes to the state machine
            self.fail(message, error)

    def fail(self, message: Message, error: Exception) -> None:
        """Tell the state machine that a step failed, and whether to repeat it."""
        code, text, is_final = classify(error)
        log.warning("%s of %s: %s: %s", message.task, message.body.get("job"), code, text)
        cause = {"code": code, "message": text}
        try:
            self._steps.note_cause(message.body, cause, is_final=is_final)
        except (BotoCoreError, ClientError, Conflict, KeyError) as failure:  # maybe the bucket is denied
            log.warning("cause: %s", failure)
        try:
            self._mailbox.fail(message, code if is_final else "Transient", cause)
        except (BotoCoreError, ClientError) as failure:
            log.warning("answer: %s", failure)  # the message becomes visible again
            self._mailbox.release(message)
