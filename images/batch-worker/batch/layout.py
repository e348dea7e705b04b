"""The layout of a batch in S3, and the records of jobs and chunks. Pure functions.

A chunk's head is its lock: a worker takes the chunk by raising the epoch with a conditional write. After that, S3
refuses every write of the head by the previous worker.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast

FILE = "files/{}"
"""An uploaded file; `.json` after it describes the file."""

INBOXES = "inbox/"
"""Files that become jobs, below it by their team's name."""

SCHEDULED = "scheduled/{}"
"""A file that a schedule turns into jobs."""

JOBS = "jobs/"
JOB = "jobs/{}/job.json"
"""The job and its state; changed only by conditional writes."""

CAUSES, CAUSE = "jobs/{}/causes/", "jobs/{}/causes/{:05d}.json"
"""Why the last attempt at a chunk failed, by chunk: of those of a map Step Functions tells the job nothing."""

UNPACKED = "jobs/{}/input/{:05d}.jsonl"
"""An unpacked chunk of a compressed input; a plain input is not copied."""

COPIED = "jobs/{}/input/copy"
"""Copy of an input that S3 would delete before the job's deadline."""

CHUNKS = "jobs/{}/chunks.json"
"""The list of chunks that the state machine maps over."""

ATTEMPTS = "jobs/{}/attempts/{}.json"
"""How often a step has begun."""

SCAN = "jobs/{}/chunks/{:05d}/scan.json"
"""The number of rows of a chunk, and the rows that cannot run."""

IDS = "jobs/{}/chunks/{:05d}/ids.bin"
"""Digests of a chunk's custom_ids, sorted."""

ROWS = "jobs/{}/chunks/{:05d}/rows.json"
"""A chunk's first line, and rows that do not run; written after all scans."""

HEADS = "jobs/{}/heads/"
"""The heads of all chunks, and nothing else, because counting rows lists it often."""

HEAD = "jobs/{}/heads/{:05d}.json"
"""A chunk's worker, and the parts that count; changed only by conditional writes."""

PART = "jobs/{}/chunks/{:05d}/parts/{:04d}-{:05d}-{}.jsonl"
"""Results since the previous part, by epoch, number and kind; a part counts if the head names it."""

OUTPUT, ERRORS = "jobs/{}/output.jsonl", "jobs/{}/errors.jsonl"
UNCACHED_FOLDER, UNCACHED = "uncached/", "uncached/{}-{:05d}.json"
"""Chunks whose answers are not in the cache yet."""

WORKERS, WORKER = "workers/", "workers/{}.json"
"""The latest report of each worker."""

USAGE = "usage/{}/{}/"
"""Tokens of a team on a day, YYYY-MM-DD (UTC), by worker."""

VALIDATING, IN_PROGRESS, FINALIZING, COMPLETED, FAILED, EXPIRED, CANCELLING, CANCELLED = (
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
"""OpenAI's words for the state of a batch (https://platform.openai.com/docs/api-reference/batch/object)."""

FINAL_STATES = (COMPLETED, FAILED, EXPIRED, CANCELLED)

TIMES = tuple(f"{state}_at" for state in (IN_PROGRESS, FINALIZING, COMPLETED, FAILED, EXPIRED, CANCELLING, CANCELLED))
"""Names of the times in job.json at which a job entered a state."""

_NEXT_STATES: Mapping[str, tuple[str, ...]] = {
    VALIDATING: (IN_PROGRESS, CANCELLING, FINALIZING, FAILED, EXPIRED),
    IN_PROGRESS: (FINALIZING, CANCELLING, FAILED, EXPIRED),
    CANCELLING: (CANCELLED, FAILED),
    FINALIZING: (COMPLETED, CANCELLED, EXPIRED, FAILED),
}

WRITTEN = ("choices", "output")
"""Fields of answers whose tokens the model writes."""

ENDPOINTS = {
    "/v1/chat/completions": "choices",
    "/v1/completions": "choices",
    "/v1/responses": "output",
    "/v1/embeddings": "data",
    "/v1/rerank": "results",
    "/v1/score": "data",
    "/classify": "data",
}
"""Paths that a row may have in its `url`, and the field of an answer that has what was asked for. Sources: OpenAI API
reference, Batch, 2026-11; vLLM 0.32.0, entrypoints/pooling/*/api_router.py and protocol.py."""

TEMPLATE_FILE = "/template.json"
"""Name of the template beside a Parquet file, used if the submission has none."""

MAX_CHUNKS = 10_000
"""Chunks of a job: S3 joins at most 10,000 parts into one object (AWS, S3 multipart upload limits, 2026-11)."""

MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 64 * 2**10, 16 * 2**20
"""Smallest and usual largest chunk: a worker holds a few of them in memory, with their results."""


COUNTS = ("completed", "failed", "input_tokens", "output_tokens", "endpoint_s")
"""What is counted of each part: rows, tokens, and the endpoint's time, in seconds. `failures` has those of `failed` by
code."""

GIVEN_UP_CODE = "chunk_given_up"
"""Code of a job with a chunk that ended many workers in a row."""

LOST_CODE = "worker_lost"
"""Code of rows that end each worker that sends them."""

EXPIRED_CODE = "batch_expired"
"""Code of rows that ran out of time, as OpenAI names it."""


class Chunk(TypedDict):
    """An entry of chunks.json: the rows whose first byte lies in [start, end) of an object."""

    index: int
    key: str
    start: int
    end: int


class RowFault(TypedDict):
    """A row that cannot run."""

    line: int
    """Line in the file, from 1; during a scan, in the chunk."""

    offset: int
    """Offset of its first byte in the chunk's object."""

    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True)
class Submission:
    """What a team submits: an object with rows, and how they run. Empty fields take defaults."""

    key: str
    team: str
    bucket: str = ""
    """Default is the deployment's, as that of `bad_rows`."""

    file_id: str | None = None
    """Id of the object if it is an uploaded file."""

    priority: str = ""
    """Default is the team's, as that of `deadline_s`."""

    deadline_s: float = 0.0
    endpoint: str = ""
    model: str = ""
    bad_rows: str = ""
    template: str = ""
    """As in the job; default is template.json of a Parquet file's folder."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    again: str = ""
    """Any text, to run the same object again."""


class Job(TypedDict, total=False):
    """job.json. Times are seconds since 1970; null if it has not happened."""

    id: str
    name: str
    """Name of the deployment."""

    team: str
    priority: str
    endpoint: str
    """Path of every row, such as /v1/chat/completions; empty if each row has its own."""

    model: str
    """Replaces `model` of every row; empty to keep theirs."""

    bad_rows: Literal["skip", "refuse"]
    """`skip`: invalid rows fail; `refuse`: they fail the whole job."""

    template: str
    """JSON of the template for the records of a Parquet file; empty for a file of rows."""

    input: dict[str, Any]
    """bucket, key, bytes, etag, and `file`: the id of the uploaded file, or null."""

    metadata: dict[str, str]
    state: str
    request_counts: dict[str, int]
    """Number of rows: total, completed, failed; final once the state is final."""

    tokens: dict[str, int]
    """Tokens of all answers: input, output."""

    endpoint_s: float
    """The endpoint's time for its rows in seconds, divided among jobs by requests in flight; missing in jobs of earlier
    versions."""

    failures: dict[str, int]
    """Number of failed rows, by code; missing in jobs of earlier versions."""

    errors: list[dict[str, Any]]
    """Why the job failed, or the first rows that cannot run: code, message, line."""

    executions: list[str]
    """Names of its executions, the newest last."""

    resumed_after: int
    """Number of executions before it was last resumed; missing in jobs that were not."""

    output_key: str
    error_key: str
    created_at: float
    deadline_at: float
    in_progress_at: float | None
    finalizing_at: float | None
    completed_at: float | None
    failed_at: float | None
    expired_at: float | None
    cancelling_at: float | None
    cancelled_at: float | None


class Head(TypedDict):
    """Head of a chunk."""

    epoch: int
    """Number that each worker raises when it takes the chunk."""

    worker: str
    parts: list[dict[str, Any]]
    """Results that count, in order: `output` and `errors` (keys, empty for none), `output_bytes`, `error_bytes`,
    COUNTS, `failures`; `faults`: whether it has the rows that never run; `saves`: of how many saves it was joined."""

    done: bool
    fruitless: int
    """How many workers it ended in a row: those rows that may have done it run in ever smaller groups, until one does
    alone. A part lowers it: to 0 once it has the last of these rows."""


class Layout:
    """Keys below a prefix, such as `batch/mine`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.strip("/")

    def build(self, pattern: str, *values: str | int) -> str:
        return f"{self.prefix}/{pattern.format(*values)}"


def build_job_id(team: str, key: str, etag: str, options: Mapping[str, str]) -> str:
    """Build the id of a job: the same submission of the same content is the same job.

    Args:
        options: other values that make it a different job, such as the model.
    """
    words = [team, key, etag.strip('"'), *(f"{name}={options[name]}" for name in sorted(options))]
    return f"batch_{hashlib.sha256(chr(10).join(words).encode()).hexdigest()[:24]}"


def build_job(job_id: str, submission: Submission, *, name: str, source: Mapping[str, Any], now: float) -> Job:
    """Build a new job.

    Args:
        submission: has each field that has no default here.
        name: of the deployment.
        source: the input, without `file`.
        now: seconds since 1970.
    """
    same = ("team", "priority", "endpoint", "model", "bad_rows", "template")
    job: dict[str, Any] = {
        "id": job_id, "name": name, **{key: getattr(submission, key) for key in same},
        "input": {**source, "file": submission.file_id}, "metadata": dict(submission.metadata),
        "state": VALIDATING, "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "tokens": {"input": 0, "output": 0}, "endpoint_s": 0.0, "errors": [], "executions": [],
        "output_key": "", "error_key": "", "created_at": now, "deadline_at": now + submission.deadline_s,
        **dict.fromkeys(TIMES),
    }  # fmt: skip
    return cast(Job, job)


def advance(job: Job, new_state: str, now: float) -> Job | None:
    """Return the job in another state, with its time; None if that is not allowed, as from a final state."""
    if new_state not in _NEXT_STATES.get(job["state"], ()):
        return None
    changes: dict[str, Any] = {"state": new_state, f"{new_state}_at": now}
    return Job(**{**job, **changes})  # type: ignore[typeddict-item]


def reopen(job: Job) -> Job | None:
    """Return a failed job as it was before its first step, or cancelled since; None for any other job."""
    if job["state"] != FAILED:
        return None
    state = CANCELLING if job["cancelling_at"] else VALIDATING
    times = dict.fromkeys(("in_progress_at", "finalizing_at", "failed_at"))
    return Job(**{**job, **times, "state": state, "errors": [], "resumed_after": len(job["executions"])})  # type: ignore[typeddict-item]


def add_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum COUNTS and failures; parts of an earlier version lack some."""
    total: dict[str, Any] = {**dict.fromkeys(COUNTS, 0), "failures": Counter()}
    for row_counts in counts:
        total["failures"].update(row_counts.get("failures", {}))
        for name in COUNTS:
            total[name] += row_counts.get(name, 0)
    return total


def compute_chunk_bytes(size: int, workers: int, largest: int = MAX_CHUNK_BYTES) -> int:
    """Compute the bytes of a chunk: enough chunks to keep all workers busy, at most MAX_CHUNKS."""
    usual = min(largest, max(MIN_CHUNK_BYTES, size // (8 * max(1, workers))))
    return max(usual, -(-size // MAX_CHUNKS))


def split_ranges(size: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """Split an object of `size` bytes into ranges. A row belongs to the range of its first byte."""
    return [(start, min(start + chunk_bytes, size)) for start in range(0, size, chunk_bytes)]
