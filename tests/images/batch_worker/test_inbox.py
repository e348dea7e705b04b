"""Files that arrive without a client, and what a job has if nobody says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from batch.inbox import Inbox
from batch.jobs import Jobs
from batch.layout import Submission
from batch.resources import Queues
from batch.store import Store

from tests.images.batch_worker.conftest import BUCKET, StateMachine
from tests.images.batch_worker.test_chunk import build_rows


class Queue:
    """A queue with one message, in the place of SQS; notes whether it is deleted."""

    def __init__(self, key: str) -> None:
        self._body = json.dumps({"detail": {"bucket": {"name": BUCKET}, "object": {"key": key}}})
        self.is_deleted = False

    def get_queue_url(self, **_: Any) -> dict[str, str]:
        return {"QueueUrl": "inbox"}

    def receive_message(self, **_: Any) -> dict[str, Any]:
        return {"Messages": [{"Body": self._body, "ReceiptHandle": "receipt"}]}

    def delete_message(self, **_: Any) -> None:
        self.is_deleted = True


@pytest.mark.parametrize(
    ("key", "is_kept"),
    [
        ("batch/mine/inbox/default/rows.jsonl", False),
        ("batch/mine/inbox/default/template.json", False),
        ("batch/mine/inbox/default/folder/", False),
        ("batch/mine/inbox/default/empty-table/_SUCCESS", False),
        ("batch/mine/inbox/default/table/_temporary/0/empty.parquet", False),
        ("batch/mine/inbox/default/.empty.parquet.crc", False),
        ("batch/mine/inbox/default/empty.jsonl", True),
        ("batch/mine/inbox/nobody/rows.jsonl", True),
        ("batch/mine/inbox/rows.jsonl", True),
    ],
)
def test_a_file_in_an_inbox_that_can_be_no_job_is_left_for_the_queue_that_has_an_alarm(
    store: Store, batch_settings: Any, jobs: Jobs, key: str, is_kept: bool
) -> None:
    store.write(key, b"" if "empty" in key else b"\n".join(build_rows(1)))
    for is_emulated in (False, True):  # the embedded AWS has no such queue
        queue = Queue(key)
        Inbox(queue, replace(batch_settings, is_emulated=is_emulated), jobs).take()
        assert queue.is_deleted == (is_emulated or not is_kept)


def test_a_deadline_is_the_submissions_else_the_teams(
    store: Store, batch_settings: Any, state_machine: StateMachine
) -> None:
    store.write("deadline.jsonl", b"\n".join(build_rows(1)))
    for own_s, team_s, expected in ((5.0, 60.0, 5.0), (0.0, 60.0, 60.0)):
        settings = replace(
            batch_settings, teams={"default": replace(batch_settings.teams["default"], deadline_s=team_s)}
        )
        queues = Queues("control", {("default", "normal"): "run"})
        jobs = Jobs(store, settings, state_machine, "arn:aws:states:us-west-2:1:stateMachine:mine", queues)
        job = jobs.submit(Submission("deadline.jsonl", team="default", deadline_s=own_s, again=f"{own_s} {team_s}"))
        assert job["deadline_at"] - job["created_at"] == pytest.approx(expected)
