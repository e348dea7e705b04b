"""Submits, lists and cancels jobs, and starts their executions, again if one is lost.

job.json is the source of truth. An execution only runs the steps of a job: if one is lost, for example with the machine
that interpreted it, the next one continues from S3.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

from botocore.exceptions import ClientError

from batch import layout, usage
from batch.chunk import read_chunk_lines
from batch.errors import classify
from batch.files import Upload
from batch.layout import Job, Layout, Submission
from batch.resources import Queues
from batch.settings import Settings
from batch.store import READERS, Conflict, Store, get_code

RUNNING = "RUNNING"
MAX_EXECUTIONS = 100
"""Maximum number of executions of a job, again after each resume: after so many lost ones something else is wrong."""

LIST_INTERVAL_S = 60.0
"""How often `reconcile` lists all jobs, for one of another Batch API, as during a rollout: S3 lists 1,000 at a time."""

_MAX_LISTED = 1000
"""Executions that Step Functions lists at once. Source: Step Functions API reference, ListExecutions, 2026-11."""

MAX_TEMPLATE_BYTES = 64 * 2**10
"""Largest template of a Parquet file's rows: each read of job.json reads it too."""


class BadSubmission(Exception):
    """A submission that cannot become a job; `field` is its part to blame."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class Jobs:
    """The jobs of one deployment. Every call blocks."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        stepfunctions: Any,
        state_machine: str,
        queues: Queues,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._settings = settings
        self._keys = Layout(settings.prefix)
        self._stepfunctions = stepfunctions
        self._state_machine = state_machine
        self._queues = queues
        self.now = now
        self._started_at = now()
        self._counts: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
        """For each unfinished job: ETag and counts of each chunk's head, by its key."""

        self._known: dict[str, Job] = {}
        """Each job as it was last read, without what is long: one that has ended stays so, unless this program resumes
        it."""

        self._listed_at = -math.inf

    def submit(self, submission: Submission) -> Job:
        """Create a job from an object; the same submission of the same content is the same job.

        Raises:
            BadSubmission: it cannot become a job.
        """
        complete = self._complete(submission)
        head, template = self.read_input(complete.bucket, complete.key, complete.template)
        complete = replace(complete, template=template)
        options = {name: getattr(complete, name) for name in ("endpoint", "model", "again")}
        options |= {"template": template} if template else {}
        job_id = layout.build_job_id(complete.team, f"{complete.bucket}/{complete.key}", head["etag"], options)
        source = {"bucket": complete.bucket, "key": complete.key, **head}
        if self._is_deleted_before(source, complete.deadline_s) and self.read(job_id) is None:
            source = self._copy_input(job_id, source)
        job = layout.build_job(job_id, complete, name=self._settings.name, source=source, now=self.now())
        try:
            self._store.write_json(self._keys.build(layout.JOB, job_id), job, new=True)
        except Conflict:
            job = self.read(job_id) or job
        self._known[job_id] = _shorten(job)
        self.ensure_execution(job)
        return job

    def _complete(self, submission: Submission) -> Submission:
        """Check a submission, and set its defaults, except the template's."""
        priority = self._choose_priority(submission.team, submission.priority)
        if submission.endpoint and submission.endpoint not in layout.ENDPOINTS:
            raise BadSubmission("endpoint", f"{submission.endpoint} is not one of {', '.join(layout.ENDPOINTS)}")
        if submission.bad_rows not in ("", "skip", "refuse"):
            raise BadSubmission("bad_rows", f"{submission.bad_rows} is neither skip nor refuse")
        return replace(
            submission,
            priority=priority,
            bucket=submission.bucket or self._settings.bucket,
            bad_rows=submission.bad_rows or self._settings.bad_rows,
            deadline_s=submission.deadline_s or self._settings.teams[submission.team].deadline_s,
        )

    def _is_deleted_before(self, source: Mapping[str, Any], deadline_s: float) -> bool:
        """Return whether S3 may delete an input before its job's deadline: the same content keeps its first object."""
        deleted_at = float(source["modified"]) + self._settings.max_deadline_s
        return source["bucket"] == self._settings.bucket and self.now() + deadline_s > deleted_at

    def _copy_input(self, job_id: str, source: Mapping[str, Any]) -> dict[str, Any]:
        """Copy an input, which S3 then keeps as long as what the job saves; returns the copy's place."""
        key = self._keys.build(layout.COPIED, job_id)
        with self._store.open_writer(key) as writer:
            writer.append_object(source["key"], source["bytes"])
        return {**source, "key": key, **(self._store.read_head(key) or {})}

    def _choose_priority(self, team: str, priority: str) -> str:
        if team not in self._settings.teams:
            raise BadSubmission("team", f"there is no team {team}: {' or '.join(self._settings.teams)}")
        priority = priority or self._settings.teams[team].priority
        if priority not in self._settings.priorities:
            raise BadSubmission("priority", f"{priority} is not one of {', '.join(self._settings.priorities)}")
        return priority

    def read_input(self, bucket: str, key: str, template: str) -> tuple[dict[str, Any], str]:
        """Read size and ETag of an input, and its template: of a Parquet file the one beside it if there is no other.

        Raises:
            BadSubmission: it is missing or empty, or the Batch API may not read it.
        """
        return self._read_input_head(bucket, key), template or self._read_template_beside(bucket, key)

    def _read_input_head(self, bucket: str, key: str) -> dict[str, Any]:
        try:
            head = Store(bucket, self._store.client).read_head(key)
        except ClientError as error:
            if get_code(error) in ("403", "AccessDenied"):
                text = f"s3://{bucket}/{key} may not be read; the blueprint's `inputs` names further places in S3"
                raise BadSubmission("input", text) from None
            raise
        if head is None:
            raise BadSubmission("input", f"there is no s3://{bucket}/{key}")
        if head["bytes"] == 0:
            raise BadSubmission("input", f"s3://{bucket}/{key} is empty")
        return head

    def _read_template_beside(self, bucket: str, key: str) -> str:
        """Read template.json of a Parquet file's folder, such as an inbox; empty if there is none.

        One that is no JSON is returned as it is: the job fails with the reason.
        """
        store, template_key = Store(bucket, self._store.client), key.rpartition("/")[0] + layout.TEMPLATE_FILE
        head = store.read_head(template_key) if key.endswith(".parquet") else None
        if head is None:
            return ""
        if head["bytes"] > MAX_TEMPLATE_BYTES:
            text = f"s3://{bucket}/{template_key} has {head['bytes']} bytes, and {MAX_TEMPLATE_BYTES} is the maximum"
            raise BadSubmission("template", text)
        text = store.read(template_key).decode(errors="replace")
        try:
            return json.dumps(json.loads(text))
        except (ValueError, RecursionError):
            return text

    def read(self, job_id: str) -> Job | None:
        if not job_id.startswith("batch_") or not job_id[6:].isalnum():
            return None
        stored = self._store.read_json(self._keys.build(layout.JOB, job_id))
        return cast(Job, stored.value) if stored else None

    def list_jobs(self, *, is_state_needed: bool = True) -> list[Job]:
        """List all jobs without what is long, the newest first; reads those that may have changed.

        Args:
            is_state_needed: whether what changes is asked for; if not, only new jobs are read.
        """
        known, self._listed_at = self._known, self.now()
        ids = list(self._store.list_folders(self._keys.build(layout.JOBS)))
        if is_state_needed:
            known = {job_id: job for job_id, job in list(known.items()) if not _is_open(job)}
        kept = {job_id: known[job_id] for job_id in ids if job_id in known}
        read = self.read_all((job_id for job_id in ids if job_id not in kept), _shorten)
        self._known = kept | {job["id"]: job for job in read}
        return sorted(self._known.values(), key=lambda job: -job["created_at"])

    def list_ids(self, team: str = "") -> list[str]:
        """List the ids of a team's jobs, or of all, the newest first: each page of a long list needs them."""
        return [job["id"] for job in self.list_jobs(is_state_needed=False) if team in ("", job["team"])]

    def read_all(self, job_ids: Iterable[str], keep: Callable[[Job], Job] = lambda job: job) -> list[Job]:
        """Read jobs, the newest first; those that are gone are left out.

        Args:
            keep: returns what to keep of each.
        """

        def read(job_id: str) -> Job | None:
            job = self.read(job_id)
            return job and keep(job)

        with ThreadPoolExecutor(READERS) as pool:
            jobs = pool.map(read, job_ids)
            return sorted((job for job in jobs if job), key=lambda job: -job["created_at"])

    def find_reader(self, file_id: str) -> str:
        """Find an unfinished job whose input is an uploaded file; returns its id, empty if there is none."""
        ids = [job["id"] for job in self.list_jobs(is_state_needed=False) if job["input"]["file"] == file_id]
        # Read anew: another Batch API, as during a rollout, may have resumed one of them.
        return next((job["id"] for job in self.read_all(ids) if _is_open(job)), "")

    def list_teams(self) -> list[dict[str, Any]]:
        """List the usage of each team's jobs, and its tokens of today."""
        date = usage.format_date(self.now())
        teams: dict[str, dict[str, Any]] = {
            name: {
                "team": name,
                "jobs": 0,
                "rows": 0,
                "tokens": {"input": 0, "output": 0},
                "endpoint_s": 0.0,
                "tokens_today": sum(count for _, count in usage.read_day(self._store, self._keys, name, date).values()),
                "tokens_per_day": team.tokens_per_day or 0,
            }
            for name, team in self._settings.teams.items()
        }
        for job in self.count_all(self.list_jobs()):
            if team := teams.get(job["team"]):
                team["jobs"] += 1
                team["rows"] += job["request_counts"]["completed"]
                team["endpoint_s"] += job.get("endpoint_s", 0.0)
                for name in team["tokens"]:
                    team["tokens"][name] += job["tokens"][name]
        return list(teams.values())

    def count(self, job: Job) -> Job:
        """Add the rows and tokens counted so far to a job; reads only heads that changed since the last call."""
        if job["state"] in layout.FINAL_STATES:
            self._counts.pop(job["id"], None)
            return job
        heads = self._store.list_objects(self._keys.build(layout.HEADS, job["id"]))
        etags = {entry["key"]: entry["etag"] for entry in heads}
        last_counts = self._counts.get(job["id"], {})
        by_chunk = self._store.read_changed(etags, last_counts, lambda head: layout.add_counts(head["parts"]))
        self._counts[job["id"]] = by_chunk
        counted = layout.add_counts(counts for _, counts in by_chunk.values())
        counts = {**job["request_counts"], "completed": counted["completed"], "failed": counted["failed"]}
        tokens = {"input": counted["input_tokens"], "output": counted["output_tokens"]}
        statistics = {name: counted[name] for name in ("endpoint_s", "failures")}
        return cast(Job, {**job, "request_counts": counts, "tokens": tokens, **statistics})

    def count_all(self, jobs: Iterable[Job]) -> list[Job]:
        """Add the rows and tokens counted so far to jobs, several at a time."""
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self.count, jobs))

    def cancel(self, job: Job) -> Job:
        """Cancel a job: rows that have not started fail as `batch_cancelled`."""
        return self._change(job["id"], lambda job: layout.advance(job, layout.CANCELLING, self.now()))

    def _change(self, job_id: str, change: Callable[[Job], Job | None]) -> Job:
        return cast(Job, self._store.change_json(self._keys.build(layout.JOB, job_id), change))

    def resume(self, job: Job) -> Job:
        """Continue a failed job once its cause is gone: saved rows keep their results.

        Raises:
            BadSubmission: it has not failed, or its team is gone.
        """
        job_id = job["id"]
        if job["state"] != layout.FAILED:
            raise BadSubmission("id", f"{job_id} has not failed: it is {job['state']}")
        self._choose_priority(job["team"], job["priority"])
        if any(error["code"] == layout.GIVEN_UP_CODE for error in job["errors"]):
            self._allow_attempts(job_id)
        resumed = self._change(job_id, layout.reopen)
        self._known[job_id] = _shorten(resumed)
        self.ensure_execution(resumed)  # if the failed one still reports its end, `reconcile` starts the next
        return resumed

    def _allow_attempts(self, job_id: str) -> None:
        """Let workers take the chunks of a job as often as those of a new job."""

        def reset(entry: Mapping[str, Any]) -> None:
            change = lambda head: {**head, "fruitless": 0} if head["fruitless"] else None  # noqa: E731
            self._store.change_json(entry["key"], change)

        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(reset, self._store.list_objects(self._keys.build(layout.HEADS, job_id))))

    def retry_errors(self, job: Job, upload: Upload, again: str = "") -> Job:
        """Create a job from the failed rows of a job that can run; `upload` becomes its input.

        Args:
            again: any text, to retry them again.

        Raises:
            BadSubmission: the job has not ended, or no row that failed can run.
        """
        if job["state"] not in layout.FINAL_STATES:
            raise BadSubmission("id", f"{job['id']} has not ended: it is {job['state']}")
        try:
            for row in self._read_failed_rows(job):
                upload.write(row + b"\n")
            if not upload.bytes:
                raise BadSubmission("id", f"no row of {job['id']} failed that can run again")
        except BaseException as error:
            upload.abort()
            if isinstance(error, ClientError) and classify(error)[2]:  # such as an input that is another by now
                raise BadSubmission("id", classify(error)[1]) from None
            raise
        entry = upload.finish(f"{job['id']}_retry.jsonl", self.now(), job["team"])
        return self.submit(
            Submission(
                self._keys.build(layout.FILE, entry["id"]),
                team=job["team"],
                file_id=entry["id"],
                priority=job["priority"],
                deadline_s=job["deadline_at"] - job["created_at"],
                endpoint=job["endpoint"],
                model=job["model"],
                bad_rows=job["bad_rows"],
                metadata=job["metadata"],
                again=again,
            )
        )

    def _read_failed_rows(self, job: Job) -> Iterator[bytes]:
        """Read the failed rows that can run, chunk by chunk; by line, because duplicate rows share their id."""
        chunks = self._store.read_json(self._keys.build(layout.CHUNKS, job["id"]))
        for chunk in chunks.value if chunks else ():
            head = self._store.read_json(self._keys.build(layout.HEAD, job["id"], chunk["index"]))
            plan = self._store.read_json(self._keys.build(layout.ROWS, job["id"], chunk["index"]))
            if head is None or plan is None:
                continue
            keys = [part["errors"] for part in head.value["parts"] if part["errors"]]
            failed = {json.loads(line)["error"]["line"] for key in keys for line in self._store.read_lines(key)}
            first_line = plan.value["first_line"]
            failed -= {fault["line"] for fault in plan.value["faults"]}
            failed -= {first_line + int(line) for line in plan.value["repeats"]}
            for row in read_chunk_lines(self._store, job, chunk) if failed else ():
                if first_line + row.number in failed and row.content:
                    yield row.content

    def list_workers(self) -> Iterator[dict[str, Any]]:
        """List the latest report of each worker."""
        for entry in self._store.list_objects(self._keys.build(layout.WORKERS)):
            if stored := self._store.read_json(entry["key"]):
                yield stored.value

    def reconcile(self) -> list[str]:
        """Start executions of unfinished jobs that have none; returns the ids of these jobs.

        It asks one by one only of those that the list lacks: Step Functions answers 10 to 15 such calls a second in an
        account. Source: Step Functions developer guide, "Quotas", API throttling, 2026-11.
        """
        running = self._list_running()
        if self.now() - self._listed_at >= LIST_INTERVAL_S:
            jobs = self.list_jobs()
        else:
            jobs = self.read_all([job["id"] for job in list(self._known.values()) if _is_open(job)])
        return [job["id"] for job in jobs if _is_open(job) and self.ensure_execution(job, running)]

    def ensure_execution(self, job: Job, running: Collection[str] = ()) -> bool:
        """Start an execution of a job unless one runs; returns whether it did.

        Args:
            running: names of executions of which this is known.
        """
        if not _is_open(job):
            return False
        # Without a queue the messages of its chunks are lost, for which an execution would wait two weeks.
        has_queue = (job["team"], job["priority"]) in self._queues.runs
        last = job["executions"][-1:]
        is_running = bool(last) and (last[0] in running or self._is_running(last[0]))
        if is_running and (has_queue or job["state"] == layout.FINALIZING):
            return False
        if not has_queue:
            # The team of a newer job may be known to the Batch API that a rollout is starting.
            if job["created_at"] < self._started_at:
                self._fail(job, "no_team", f"there is no team {job['team']} any more")
            return False
        name = f"{job['id']}-{len(job['executions']) + 1}"
        if len(job["executions"]) - job.get("resumed_after", 0) >= MAX_EXECUTIONS:
            text = f"{MAX_EXECUTIONS} executions ended before the job did; Step Functions shows why the last one did"
            self._fail(job, "workflow_failed", text)
            return False
        self._start(name, build_execution_input(job, self._keys, self._settings, self._queues))
        # After the start: if the name is not saved, the next call gets the same name, and starts nothing twice.
        self._change(
            job["id"],
            lambda job: None if name in job["executions"] else {**job, "executions": [*job["executions"], name]},
        )
        return True

    def _fail(self, job: Job, code: str, text: str) -> None:
        """Set an unfinished job's state to failed, and have an execution of its own tell its end."""

        def change(job: Job) -> Job | None:
            failed = layout.advance(job, layout.FAILED, self.now())
            error = {"code": code, "message": text, "line": None}
            return failed and cast(Job, {**failed, "errors": [error, *failed["errors"]]})

        job = self._change(job["id"], change)
        if job["state"] == layout.FAILED:
            payload = {"job": job["id"], "team": job["team"], "result": {"state": job["state"]}}
            self._start(f"{job['id']}-end-{len(job['executions'])}", payload)

    def _start(self, name: str, payload: dict[str, Any]) -> None:
        try:
            self._stepfunctions.start_execution(
                stateMachineArn=self._state_machine, name=name, input=json.dumps(payload)
            )
        except ClientError as error:
            if get_code(error) != "ExecutionAlreadyExists":
                raise

    def _list_running(self) -> set[str]:
        """List the names of executions that run; the latest may be missing."""
        pages = self._stepfunctions.get_paginator("list_executions").paginate(
            stateMachineArn=self._state_machine, statusFilter=RUNNING, PaginationConfig={"PageSize": _MAX_LISTED}
        )
        return {execution["name"] for page in pages for execution in page["executions"]}

    def _is_running(self, name: str) -> bool:
        arn = self._state_machine.replace(":stateMachine:", ":execution:") + f":{name}"
        try:
            return bool(self._stepfunctions.describe_execution(executionArn=arn)["status"] == RUNNING)
        except ClientError as error:
            if get_code(error) == "ExecutionDoesNotExist":
                return False
            raise


def _is_open(job: Job) -> bool:
    return job["state"] not in layout.FINAL_STATES


def _shorten(job: Job) -> Job:
    """Leave out what may be long: memory holds all jobs."""
    return cast(Job, {**job, "errors": [], "template": "", "metadata": {}})


def build_execution_input(job: Job, keys: Layout, settings: Settings, queues: Queues) -> dict[str, Any]:
    return {
        "job": job["id"],
        "team": job["team"],
        "bucket": settings.bucket,
        "chunks": keys.build(layout.CHUNKS, job["id"]),
        "queue": queues.runs[job["team"], job["priority"]],
        "failed_chunks_percent": 100 * settings.failed_chunks,
    }
