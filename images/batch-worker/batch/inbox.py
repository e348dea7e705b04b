"""Turns files in a team's inbox into jobs: S3 sends events to a queue, on AWS through EventBridge. EventBridge
Scheduler sends the files of schedules to the same queue.
"""

from __future__ import annotations

import json
import logging
import urllib.parse
from collections.abc import Iterator
from typing import Any

from batch import layout
from batch.jobs import BadSubmission, Jobs
from batch.layout import Submission
from batch.settings import Settings

log = logging.getLogger("batch-inbox")


class Inbox:
    """The queue of S3's events. `take` blocks."""

    def __init__(self, sqs: Any, settings: Settings, jobs: Jobs) -> None:
        self._sqs, self._settings, self._jobs = sqs, settings, jobs
        self._keys = layout.Layout(settings.prefix)
        self._queue = ""

    def take(self) -> list[str]:
        """Create jobs from the files that arrived; returns their ids."""
        self._queue = self._queue or self._sqs.get_queue_url(QueueName=self._settings.inbox_queue)["QueueUrl"]
        response = self._sqs.receive_message(
            QueueUrl=self._queue, MaxNumberOfMessages=10, WaitTimeSeconds=self._settings.queue_wait_s
        )
        job_ids: list[str] = []
        for message in response.get("Messages", ()):
            try:
                job_ids += self._submit_all(message["Body"])
            except BadSubmission as error:
                log.warning("%s: %s", message["Body"][:1000], error.message)
                if not self._settings.is_emulated:
                    continue  # after some attempts it is in the queue of undelivered messages, which has an alarm
            self._sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
        return job_ids

    def _submit_all(self, text: str) -> Iterator[str]:
        if schedule := parse_schedule(text):
            yield self._submit_scheduled(schedule)
        for bucket, key in parse_event(text):
            # The name of another folder `submit` refuses.
            team, *path = key.removeprefix(self._keys.build(layout.INBOXES)).split("/")
            # Spark, Hadoop and Athena read no file of such a name either: _SUCCESS, _temporary/, .crc.
            is_hidden = any(name.startswith(("_", ".")) for name in path)
            if not is_hidden and not key.endswith(("/", layout.TEMPLATE_FILE)):
                yield self._jobs.submit(Submission(key, team=team, bucket=bucket))["id"]

    def _submit_scheduled(self, schedule: dict[str, str]) -> str:
        """Create a job from a schedule's file; the same time of the same schedule is the same job."""
        submission = Submission(
            self._keys.build(layout.SCHEDULED, schedule["file"]),
            team=schedule["team"],
            priority=schedule.get("priority", ""),
            metadata={"schedule": schedule["name"]},
            again=f"{schedule['name']} {schedule['time']}",
        )
        return self._jobs.submit(submission)["id"]


def parse_schedule(text: str) -> dict[str, str]:
    """Parse a message of EventBridge Scheduler: name, file, team and time; empty for other messages."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    schedule = message.get("schedule") if isinstance(message, dict) else None
    return schedule if isinstance(schedule, dict) else {}


def parse_event(text: str) -> list[tuple[str, str]]:
    """Parse buckets and keys of an event: EventBridge's, or S3's own notification, which quotes keys.

    Other messages, such as the one by which S3 tests the queue, have none.
    """
    try:
        event = json.loads(text)
        if "detail" in event:
            return [_parse_place(event["detail"])]
        places = [_parse_place(record["s3"]) for record in event["Records"]]
        return [(bucket, urllib.parse.unquote_plus(key)) for bucket, key in places]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _parse_place(entry: Any) -> tuple[str, str]:
    return str(entry["bucket"]["name"]), str(entry["object"]["key"])
