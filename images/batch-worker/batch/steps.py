"""The steps of a job besides its rows: plan, scan, check, merge, fail. Each is idempotent.

A step's message names the job; what it decides is in S3, and its answer to the state machine is small.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import logging
import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from batch import layout, parquet_process, reader, rows
from batch.chunk import ChunkState, append_parts, read_chunk_lines
from batch.errors import CHANGED_FILE, Permanent, classify
from batch.layout import Chunk, Head, Job, Layout, RowFault
from batch.queue import Mailbox, Message
from batch.reader import CorruptFile
from batch.rows import RowError
from batch.settings import Settings
from batch.store import READERS, Conflict, Store

log = logging.getLogger("batch-worker")

MAX_ERRORS = 1000
"""Maximum number of errors in job.json; the errors file has all."""

_ID_RECORD = struct.Struct("<16sQ")
"""A digest and the line of its row in the chunk, as ids.bin holds them, in order of both."""

_MERGE_BYTES = 256 * 2**20
"""Memory for the digests of all chunks while they are compared: of each chunk a block, and the next one."""

MAX_FAULTS, MAX_REPEATS = 50_000, 200_000
"""Maximum invalid rows of a chunk, and duplicate ids of a job: a job with more fails before they fill the memory."""

MAX_BLANK_LINES = 1_000_000
"""Maximum blank lines of a chunk: a compressed file of some MB can hold thousands of millions."""

CHUNKS_AHEAD, MAX_CHUNKS_AT_ONCE = 2, 1000
"""Chunks of a job that wait in its queue for each worker, and the maximum in progress: those of other jobs of the same
team and priority wait behind them."""

MAP_FAILED = "States.ExceedToleratedFailureThreshold"
"""Error of a map with too many failed chunks, whose cause names none of them. Source: Step Functions developer guide,
"Handling errors in Step Functions workflows", 2026-11."""

MAX_ATTEMPTS = 10
"""How often a step may begin: of so many none came to its end, and the next worker would be ended too."""

_COUNTED = ("plan", "scan", "check", "merge")
"""Steps whose attempts are counted."""

_GROUP = 64
"""How many objects of a job's chunks are held at a time."""


class Steps:
    """The steps of the jobs of one deployment."""

    def __init__(self, store: Store, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._settings = settings
        self._keys = Layout(settings.prefix)
        self._now = now

    def run(self, task: str, message: dict[str, Any]) -> dict[str, Any]:
        """Run the step of a message; returns its answer.

        Raises:
            Permanent: the job cannot continue.
        """
        job_id = str(message["job"])
        if task == "fail":
            return self.fail(job_id, message.get("error"))
        with self._count_attempt(job_id, task, message):
            if task == "scan":
                return self.scan(job_id, int(message["chunk"]))
            return {"plan": self.plan, "check": self.check, "merge": self.merge}[task](job_id)

    @contextlib.contextmanager
    def _count_attempt(self, job_id: str, task: str, message: dict[str, Any]) -> Iterator[None]:
        """Count an attempt before its work, which may end the worker; one that comes to its end does not count."""
        key = self._build_attempts_key(job_id, task, message)
        stored = self._store.read_json(key)
        attempts = (stored.value if stored else 0) + 1
        if attempts > MAX_ATTEMPTS:
            self._store.write_json(key, 0)  # the job may be resumed, on workers with more memory
            raise Permanent("too_many_attempts", f"{task} ended {MAX_ATTEMPTS} workers in a row")
        self._store.write_json(key, attempts)
        try:
            yield
        except Exception:
            self._store.write_json(key, 0)
            raise
        self._store.write_json(key, 0)

    def forget_attempts(self, task: str, message: dict[str, Any]) -> None:
        """Note that a worker stops by itself: the step of a message did not end it."""
        if task in _COUNTED:
            self._store.write_json(self._build_attempts_key(str(message["job"]), task, message), 0)

    def _build_attempts_key(self, job_id: str, task: str, message: dict[str, Any]) -> str:
        return self._keys.build(layout.ATTEMPTS, job_id, f"{task}-{message.get('chunk', 0)}")

    def plan(self, job_id: str) -> dict[str, Any]:
        """Split the input into ranges, or unpack it into chunks; writes chunks.json, once for a job."""
        job = self._read_job(job_id)
        source = job["input"]
        store = Store(source["bucket"], self._store.client)
        head = store.read_head(source["key"])
        if head is None:
            raise Permanent("missing_file", f"there is no s3://{source['bucket']}/{source['key']}")
        if head["etag"] != source["etag"]:
            raise Permanent(*CHANGED_FILE)
        # Results belong to these ranges. Other settings, as of a later deploy, would draw others.
        if planned := self._store.read_json(self._keys.build(layout.CHUNKS, job_id)):
            return {"chunks": len(planned.value)}
        size = head["bytes"]
        first_bytes = b"".join(store.read_range(source["key"], 0, min(4, size)))
        blocks = self._open_packed(job, store, first_bytes, size)
        if blocks is not None:
            chunks = self._unpack(job_id, blocks, size)
        else:
            chunk_bytes = layout.compute_chunk_bytes(size, self._settings.workers, self._settings.chunk_bytes)
            chunks = [
                Chunk(index=index, key=source["key"], start=start, end=end)
                for index, (start, end) in enumerate(layout.split_ranges(size, chunk_bytes))
            ]
        self._store.write_json(self._keys.build(layout.CHUNKS, job_id), chunks)
        return {"chunks": len(chunks)}

    def _open_packed(self, job: Job, store: Store, first_bytes: bytes, size: int) -> Iterator[bytes] | None:
        """Read the lines of a compressed or Parquet input in blocks; None for a plain input."""
        # A file that is overwritten meanwhile must not give the rows of both.
        read = partial(store.read_range, job["input"]["key"], etag=job["input"]["etag"])
        if compression := reader.detect_compression(first_bytes):
            return reader.unpack(read(0, size), compression)
        if first_bytes == reader.PARQUET:
            return _read_parquet(read, size, job["template"])
        if job["template"]:
            raise Permanent("bad_template", "the job has a template, and its input is not a Parquet file")
        return None

    def _unpack(self, job_id: str, unpacked: Iterator[bytes], size: int) -> list[Chunk]:
        """Unpack an input in one process, in constant memory: a compressed file can only be read from its beginning."""
        # Texts shrink to about a fifth. If one shrank more, later chunks are larger, rather than too many.
        usual = layout.compute_chunk_bytes(5 * size, self._settings.workers, self._settings.chunk_bytes)
        chunks: list[Chunk] = []
        try:
            for index, blocks in enumerate(reader.split_blocks(unpacked, lambda index: _grow_chunk(usual, index))):
                unpacked_key = self._keys.build(layout.UNPACKED, job_id, index)
                length = 0
                with self._store.open_writer(unpacked_key) as writer:
                    for block in blocks:
                        writer.write(block)
                        length += len(block)
                chunks.append(Chunk(index=index, key=unpacked_key, start=0, end=length))
        except CorruptFile as error:
            raise Permanent("corrupt_file", str(error)) from None
        except reader.BadTemplate as error:
            raise Permanent("bad_template", str(error)) from None
        if not chunks:
            raise Permanent("empty_file", "the input is empty")
        return chunks

    def scan(self, job_id: str, index: int) -> dict[str, Any]:
        """Read a chunk: writes scan.json with its rows and faults, and ids.bin with the digests of its ids."""
        job = self._read_job(job_id)
        chunk = self._read_chunks(job_id)[index]
        lines = count = blank = 0
        faults: list[RowFault] = []
        records: list[bytes] = []
        for line in read_chunk_lines(self._store, job, chunk):
            lines += 1
            if line.is_blank:
                blank += 1
                if blank > MAX_BLANK_LINES:
                    text = f"more than {MAX_BLANK_LINES:,} lines of {chunk['key']} are blank"
                    raise Permanent("too_many_bad_rows", text)
                continue
            count += 1
            try:
                row = rows.parse(line.content, job["endpoint"])
            except RowError as error:
                fault: Any = {"custom_id": error.custom_id, "code": error.code, "message": error.message}
                faults.append(cast(RowFault, {"line": line.number, "offset": line.offset, **fault}))
                if len(faults) > MAX_FAULTS:
                    raise Permanent(
                        "too_many_bad_rows",
                        f"more than {MAX_FAULTS:,} rows of {chunk['key']}, bytes {chunk['start']} to {chunk['end']}, "
                        f"cannot run; the last: {error.message}",
                    ) from None
            else:
                records.append(_ID_RECORD.pack(rows.digest_id(row.custom_id), line.number))
        records.sort(key=lambda record: record[:16])  # by digest; of each the first line stays first
        self._store.write(self._keys.build(layout.IDS, job_id, index), b"".join(records))
        summary = {"lines": lines, "rows": count, "faults": faults}
        self._store.write_json(self._keys.build(layout.SCAN, job_id, index), summary)
        return {"rows": count, "faults": len(faults)}

    def check(self, job_id: str) -> dict[str, Any]:
        """Set line numbers over all chunks and find duplicate ids; writes rows.json of each chunk.

        Raises:
            Permanent: there is no row, or an invalid row and the job refuses these.
        """
        job = self._read_job(job_id)
        chunks = self._read_chunks(job_id)
        with ThreadPoolExecutor(READERS) as pool:
            sizes = list(pool.map(lambda chunk: self._read_counts(job_id, chunk["index"]), chunks))
            first_lines = list(itertools.accumulate((lines for lines, _, _ in sizes), initial=0))[:-1]
            id_counts = [ids for _, _, ids in sizes]
            doubled = self._find_doubled(job_id, chunks, first_lines, id_counts, pool)
            total = sum(count for _, count, _ in sizes)
            errors: list[dict[str, Any]] = []
            fault_count = 0

            def write(chunk: Chunk, first_line: int) -> tuple[int, list[dict[str, Any]]]:
                return self._write_plan(job_id, chunk["index"], first_line, doubled.get(chunk["index"], {}))

            for count, chunk_errors in pool.map(write, chunks, first_lines):
                fault_count += count
                errors += chunk_errors[: MAX_ERRORS - len(errors)]
        self._change_job(job_id, lambda job: {**job, "errors": errors})
        if total == 0:
            raise Permanent("empty_file", "the input has no row")
        if fault_count and job["bad_rows"] == "refuse":
            raise Permanent("bad_rows", f"{fault_count} of {total} rows cannot run, and the job refuses bad rows")
        counts = {"total": total, "completed": 0, "failed": 0}

        def begin(job: Job) -> Any:
            return {**(layout.advance(job, layout.IN_PROGRESS, self._now()) or job), "request_counts": counts}

        self._change_job(job_id, begin)
        return {"rows": total, "faults": fault_count, "chunks_at_once": self._count_chunks_at_once(len(chunks), total)}

    def _count_chunks_at_once(self, chunks: int, row_count: int) -> int:
        """Count the chunks that may be in progress: enough for the requests in flight of all workers, and some more."""
        each = CHUNKS_AHEAD + math.ceil(self._settings.max_concurrency * chunks / row_count)
        return min(chunks, self._settings.workers * each, MAX_CHUNKS_AT_ONCE)

    def _read_counts(self, job_id: str, index: int) -> tuple[int, int, int]:
        """Read the number of lines, rows and ids of a chunk from its scan."""
        summary = self._read_existing(self._keys.build(layout.SCAN, job_id, index))
        return summary["lines"], summary["rows"], summary["rows"] - len(summary["faults"])

    def _write_plan(
        self, job_id: str, index: int, first_line: int, repeats: dict[str, int]
    ) -> tuple[int, list[dict[str, Any]]]:
        """Write rows.json of a chunk; returns the number of invalid rows, and the first of them."""
        summary = self._read_existing(self._keys.build(layout.SCAN, job_id, index))
        faults = [{**fault, "line": first_line + fault["line"]} for fault in summary["faults"]]
        self._store.write_json(
            self._keys.build(layout.ROWS, job_id, index),
            {"first_line": first_line, "rows": summary["rows"], "faults": faults, "repeats": repeats},
        )
        errors = [{key: fault[key] for key in ("code", "message", "line")} for fault in faults]
        errors += [
            {"code": rows.REPEATED, "message": rows.describe_repeat(earlier_line), "line": first_line + int(line)}
            for line, earlier_line in repeats.items()
        ]
        errors.sort(key=lambda error: error["line"])
        return len(errors), errors[:MAX_ERRORS]

    def merge(self, job_id: str) -> dict[str, Any]:
        """Join the results of all chunks; the job gets its final state.

        Raises:
            Permanent: a row has no result, or more than one.
        """
        job = self._read_job(job_id)
        if job["state"] in layout.FINAL_STATES:
            return {"state": job["state"]}
        job = self._change_job(job_id, lambda job: layout.advance(job, layout.FINALIZING, self._now()))
        counted = layout.add_counts(())
        keys: list[str] = []
        chunks = self._read_chunks(job_id)
        with (
            self._store.open_writer(self._keys.build(layout.OUTPUT, job_id), len(chunks)) as outputs,
            self._store.open_writer(self._keys.build(layout.ERRORS, job_id), len(chunks)) as errors,
        ):
            for head in self._read_heads(job, chunks):
                counted = layout.add_counts((counted, *head["parts"]))
                keys += append_parts(outputs, head["parts"], "output")
                keys += append_parts(errors, head["parts"], "errors")
        total = counted["completed"] + counted["failed"]
        if total != job["request_counts"]["total"]:
            text = f"{total} rows have a result, and the input has {job['request_counts']['total']}"
            raise Permanent("wrong_results", text)
        if self._settings.has_parquet:
            self._write_parquet(job, keys)
        result: dict[str, Any] = {
            "request_counts": {"total": total, **{name: counted[name] for name in ("completed", "failed")}},
            "tokens": {"input": counted["input_tokens"], "output": counted["output_tokens"]},
            "endpoint_s": counted["endpoint_s"],
            "failures": counted["failures"],
            "output_key": self._keys.build(layout.OUTPUT, job_id),
            "error_key": self._keys.build(layout.ERRORS, job_id),
        }
        job = self._change_job(job_id, lambda job: self._finish(job, result))
        return {"state": job["state"], **result["request_counts"]}

    def _read_heads(self, job: Job, chunks: list[Chunk]) -> Iterator[Head]:
        """Read the heads of all chunks, in order; chunks without saved results are given up."""
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(chunks), _GROUP):
                group = chunks[start : start + _GROUP]
                keys = [self._keys.build(layout.HEAD, job["id"], chunk["index"]) for chunk in group]
                for chunk, stored in zip(group, pool.map(self._store.read_json, keys), strict=True):
                    yield stored.value if stored and stored.value["done"] else self._give_up(job, chunk)

    def _write_parquet(self, job: Job, keys: list[str]) -> None:
        from batch import parquet  # pyarrow takes seconds to import, and memory

        lines = (line for key in keys for line in self._store.read_lines(key))
        prefix = parquet.get_result_prefix(self._settings.prefix, job["team"], job["id"], job["created_at"])
        parquet.write_results(
            job["id"], lines, lambda number: self._store.open_writer(f"{prefix}part-{number:05d}.parquet")
        )

    def note_cause(self, message: dict[str, Any], cause: dict[str, Any], *, is_final: bool) -> None:
        """Note why the step of a message failed: in the job if it is not repeated, and for its chunk."""
        job_id = str(message.get("job"))
        if "chunk" in message:
            self._store.write_json(self._keys.build(layout.CAUSE, job_id, int(message["chunk"])), cause)
        if is_final:
            self.note_error(job_id, cause)

    def note_error(self, job_id: str, error: dict[str, Any]) -> None:
        """Put the reason of the job's failure before its other errors."""

        def change(job: Job) -> Any:
            first = job["errors"][:1]
            if first and first[0]["code"] == error["code"]:
                return None
            return {**job, "errors": [{"line": None, **error}, *job["errors"]][:MAX_ERRORS]}

        self._change_job(job_id, change)

    def fail(self, job_id: str, cause: Any) -> dict[str, Any]:
        """Set the job's state to failed, or to cancelled where somebody wanted that.

        The step that failed has recorded the reason, unless it was repeated in vain, or it was a time limit.
        """
        error = _describe_cause(cause)
        self.note_error(job_id, self._find_chunk_error(job_id) or error if error["code"] == MAP_FAILED else error)

        def change(job: Job) -> Any:
            state = layout.CANCELLED if job["state"] == layout.CANCELLING else layout.FAILED
            return layout.advance(job, state, self._now())

        return {"state": self._change_job(job_id, change)["state"]}

    def _find_chunk_error(self, job_id: str) -> dict[str, Any] | None:
        """Find why a chunk of a failed map failed: what its step recorded in the job, or else the last cause."""
        if reason := next((error for error in self._read_job(job_id)["errors"] if error["line"] is None), None):
            return reason
        causes = self._store.list_objects(self._keys.build(layout.CAUSES, job_id))
        last = max(causes, key=lambda entry: entry["modified"], default=None)
        stored = self._store.read_json(last["key"]) if last else None
        return stored.value if stored else None

    def _finish(self, job: Job, result: dict[str, Any]) -> Any:
        now = self._now()
        if job["state"] == layout.CANCELLING:
            state = layout.CANCELLED
        elif result["failures"].get(layout.EXPIRED_CODE):
            state = layout.EXPIRED
        else:
            state = layout.COMPLETED
        finished = layout.advance(job, state, now)
        return {**finished, **result} if finished else None

    def _give_up(self, job: Job, chunk: Chunk) -> Head:
        """Write error lines for the rows of a chunk that ended every worker, if the job tolerates it."""
        state = ChunkState.open(self._store, self._keys, job, chunk, "merge")
        cause = self._store.read_json(self._keys.build(layout.CAUSE, job["id"], chunk["index"]))
        reason = cause.value["message"] if cause else "each attempt ended the worker"
        state.fail_rest(layout.LOST_CODE, f"this row's chunk was given up: {reason}")
        state.commit(state.collect())
        state.finish()
        return state.head

    def _find_doubled(
        self, job_id: str, chunks: list[Chunk], first_lines: list[int], id_counts: list[int], pool: Executor
    ) -> dict[int, dict[str, int]]:
        """Find lines with the id of an earlier line: by chunk and line in it, with the first line in the file."""
        step = _ID_RECORD.size * max(256, _MERGE_BYTES // (2 * _ID_RECORD.size * len(chunks)))
        streams = []
        for chunk, first, ids in zip(chunks, first_lines, id_counts, strict=True):
            key = self._keys.build(layout.IDS, job_id, chunk["index"])
            blocks = self._read_ahead(key, _ID_RECORD.size * ids, step, pool)
            streams.append(_unpack_records(blocks, chunk["index"], first))
        doubled: dict[int, dict[str, int]] = {}
        digest, first_line, count = b"", 0, 0
        for record in heapq.merge(*streams):
            if record[0] != digest:
                digest, first_line = record[0], record[1]
                continue
            doubled.setdefault(record[2], {})[str(record[3])] = first_line
            count += 1
            if count > MAX_REPEATS:
                text = f"more than {MAX_REPEATS:,} rows have the custom_id of an earlier row; one is line {record[1]}"
                raise Permanent("too_many_bad_rows", text)
        return doubled

    def _read_ahead(self, key: str, size: int, step: int, pool: Executor) -> Iterator[bytes]:
        """Read an object in blocks, each while the one before it is used: S3 answers several requests at a time."""

        def submit(start: int) -> Future[bytes]:
            return pool.submit(lambda: b"".join(self._store.read_range(key, start, min(size, start + step))))

        def read(block: Future[bytes]) -> Iterator[bytes]:
            for start in range(step, size, step):
                following = submit(start)
                yield block.result()
                block = following
            yield block.result()

        return read(submit(0))

    def _read_job(self, job_id: str) -> Job:
        return cast(Job, self._read_existing(self._keys.build(layout.JOB, job_id)))

    def _read_chunks(self, job_id: str) -> list[Chunk]:
        return cast(list[Chunk], self._read_existing(self._keys.build(layout.CHUNKS, job_id)))

    def _read_existing(self, key: str) -> Any:
        stored = self._store.read_json(key)
        if stored is None:
            raise Permanent("missing_object", f"there is no s3://{self._settings.bucket}/{key}")
        return stored.value

    def _change_job(self, job_id: str, change: Callable[[Job], Any]) -> Job:
        return cast(Job, self._store.change_json(self._keys.build(layout.JOB, job_id), change))


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

    def hand_back(self, message: Message) -> None:
        """Give a step to another worker, because this one stops by itself."""
        with contextlib.suppress(BotoCoreError, ClientError):
            self._steps.forget_attempts(message.task, message.body)
        self._mailbox.hand_back(message)


def _unpack_records(blocks: Iterable[bytes], index: int, first: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield digest, line in the file, chunk, and line in the chunk."""
    for block in blocks:
        for digest, line in _ID_RECORD.iter_unpack(block):
            yield digest, first + line, index, line


def _read_parquet(read: reader.ReadRange, size: int, template: str) -> Iterator[bytes]:
    with parquet_process.open_rows(read, size, template) as file_rows:
        yield from file_rows.read()


def _grow_chunk(usual: int, index: int) -> int:
    """Compute the bytes of a chunk if the number of chunks is unknown: double for each further thousand."""
    half = layout.MAX_CHUNKS // 2
    return usual if index < half else usual * 2 ** (1 + (index - half) // 1000)


def _describe_cause(cause: Any) -> dict[str, Any]:
    fields = cause if isinstance(cause, dict) else {}
    text = str(fields.get("Cause") or fields.get("Error") or "unknown")
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict) and "code" in inner:
        return {"code": str(inner["code"]), "message": str(inner.get("message", "")), "line": None}
    return {"code": str(fields.get("Error") or "workflow_failed"), "message": text[:1000], "line": None}
