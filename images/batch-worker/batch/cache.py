"""Answers in Valkey or Redis, for servers that look them up; S3 is the source of truth.

A finished chunk's answers are written by pipelines, before the state machine gets the end of the chunk. If the cache is
down, the chunk is recorded below PREFIX/uncached/ in S3, and a worker writes it later. On AWS a queue from which nobody
receives has a message for each such chunk until none is left: its alarm tells who is on call.

    NAME:TEAM:CUSTOM_ID -> {"answer", "model", "prompt_version", "batch", "at"}      see batch/cache_reader.py
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import redis
from botocore.exceptions import BotoCoreError, ClientError

from batch import layout, rows
from batch.cache_reader import Client, build_key, build_login, parse_value
from batch.layout import Job
from batch.secrets import Secret, Unreadable
from batch.settings import CacheSettings, Settings
from batch.store import Store

log = logging.getLogger("batch-cache")

PIPELINE_ROWS = 500


class _SecretLogin(redis.CredentialProvider):
    """User and password of a secret, read for each new connection, so that a new password needs no restart."""

    def __init__(self, secret: str) -> None:
        self._secret = Secret(secret)
        self._read()

    def _read(self) -> tuple[str, str]:
        username, password = self._secret.read_fields("username", "password")
        return username, password

    def get_credentials(self) -> tuple[str, str]:
        try:
            return self._read()
        except Unreadable as error:
            raise redis.AuthenticationError(str(error)) from None


class ResultCache:
    """The cache of one deployment. Every call blocks."""

    def __init__(self, store: Store, settings: Settings, own: CacheSettings, sqs: Any) -> None:
        """Open the cache; reads its secret, but connects later.

        Raises:
            Unreadable: the secret cannot be read.
        """
        self._store, self._name, self._own, self._sqs = store, settings.name, own, sqs
        self._keys = layout.Layout(settings.prefix)
        login = _SecretLogin(own.login_secret) if own.login_secret else build_login(own.username, own.password)
        self._redis = Client(own.url, login, own.ca_file, cluster=own.is_cluster)
        self.failure = ""
        """Why it took no answers last, such as that its memory is full; empty while it takes them."""

        self._may_ring = bool(own.queue)
        """Whether the queue may have messages: at the start those that an earlier worker left."""

    def publish(self, job: Job, index: int) -> None:
        """Write the answers of a finished chunk, or record that they are missing."""
        if not self._try_fill(job, index):
            log.warning("chunk %d of %s is not in the cache yet: %s", index, job["id"], self.failure)
            note = {"job": job["id"], "chunk": index}
            self._store.write_json(self._keys.build(layout.UNCACHED, job["id"], index), note)
            if self._own.queue:
                self._may_ring = True
                self._tell(lambda queue: self._sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(note)))

    def _tell(self, call: Callable[[str], object]) -> bool:
        """Call SQS with the queue's URL; returns whether it answered. Else only the alarm is wrong."""
        try:
            call(self._sqs.get_queue_url(QueueName=self._own.queue)["QueueUrl"])
        except (BotoCoreError, ClientError) as error:
            log.warning("%s: %s", self._own.queue, error)
            return False
        return True

    def repair(self) -> int:
        """Write the answers of recorded chunks; returns the number of chunks."""
        repaired = 0
        for entry in list(self._store.list_objects(self._keys.build(layout.UNCACHED_FOLDER))):
            note = self._store.read_json(entry["key"])
            job = self._store.read_json(self._keys.build(layout.JOB, note.value["job"])) if note else None
            if note and job:
                if not self._try_fill(job.value, note.value["chunk"]):
                    return repaired
                repaired += 1
            self._store.delete(entry["key"])
        if self._may_ring:
            self._may_ring = not self._tell(lambda queue: self._sqs.purge_queue(QueueUrl=queue))
        return repaired

    def _try_fill(self, job: Job, index: int) -> bool:
        """Write the answers of a chunk; returns whether the cache took them."""
        try:
            self._fill(job, index)
        except redis.RedisError as error:
            # A pipeline's error begins with its command, which has the answer's text.
            self.failure = str(error).rpartition(" of pipeline caused error: ")[2]
            return False
        self.failure = ""
        return True

    def _fill(self, job: Job, index: int) -> None:
        head = self._store.read_json(self._keys.build(layout.HEAD, job["id"], index))
        for part in head.value["parts"] if head else ():
            if part["output"]:
                for lines in rows.group(self._store.read_lines(part["output"]), PIPELINE_ROWS):
                    self._write(job, [json.loads(line) for line in lines])

    def _write(self, job: Job, results: list[dict[str, Any]]) -> None:
        """Write answers, except to keys that a later job has written."""
        keys = [build_key(self._name, job["team"], result["custom_id"]) for result in results]
        present = self._redis.run([("GET", key) for key in keys])
        self._redis.run(
            [
                ("SET", key, build_value(job, result), "EX", round(self._own.ttl_s))
                for key, result, present_entry in zip(keys, results, present, strict=True)
                if (earlier := parse_value(present_entry)) is None or earlier.at <= job["created_at"]
            ]
        )


def build_value(job: Job, result: dict[str, Any]) -> bytes:
    body = result["response"]["body"]
    value = {
        "answer": rows.read_answer(body),
        "model": body.get("model"),
        "prompt_version": job["metadata"].get("prompt_version", ""),
        "batch": job["id"],
        "at": job["created_at"],
    }
    return rows.encode_json(value)
