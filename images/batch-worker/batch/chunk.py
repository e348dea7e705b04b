"""A chunk while a worker owns it: its remaining rows, and results that survive the worker.

Results go to S3 in parts. A part counts once the chunk's head names it, and the head is written only if it has not
changed. A worker that lost its chunk to another without knowing can therefore add nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from batch import layout, reader, rows
from batch.errors import Permanent
from batch.layout import COUNTS, Chunk, Head, Job, Layout
from batch.store import Conflict, Store, Writer

SIZES = {"output": "output_bytes", "errors": "error_bytes"}
"""Kinds of results, and their size's name in a part."""

MAX_FRUITLESS = 6
"""How often a chunk may end its worker until its next row, which was alone in flight by then, is what ends them."""

MAX_LOST = 5
"""Rows of a chunk that may be lost so: with another it is given up."""

ALONE, NEIGHBORS = 2, 4
"""Workers that a row ends alone in flight until it is lost, where a row before it was; rows after such a one that run
alone: what ends a worker is often in rows side by side, and each would be narrowed down anew."""

_JOINED = 10
"""How many parts of as many saves each become one: a chunk of slow rows is saved once a second for hours, and whoever
takes it over reads each part."""

_LONGEST_HELD_S = 11 * 3600
"""Age of its head at which a chunk did not end its worker: SQS passes a message on 12 hours after it was received,
however often a worker asks to keep it, as while its rows wait for those of a higher priority. Source: SQS API
reference, ChangeMessageVisibility, 2026-11."""

_NARROWING = 4
"""Bits by which each worker that ended narrows the rows that may have ended it."""


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A row that has yet to run."""

    line: int
    """Line in the file, from 1."""

    content: bytes


@dataclass(frozen=True)
class Outcome:
    """The result of a row."""

    line: bytes
    """Line of the output or of the errors file."""

    failure: str
    """Error code; empty for an answer."""

    input_tokens: int = 0
    """Tokens of all answered requests of the row."""

    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass
class Results:
    """Result lines that are not in S3 yet."""

    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failed rows, by code."""

    faults: bool = False
    saved: bool = False
    """Whether a commit has saved them; also true for a writer that waited for it."""

    @property
    def rows(self) -> float:
        return self.counts["completed"] + self.counts["failed"]


class ChunkState:
    """A chunk that this worker has taken."""

    def __init__(self, store: Store, keys: Layout, job: Job, chunk: Chunk, head: Head, etag: str) -> None:
        self.job = job
        self.index = chunk["index"]
        self.head = head
        self.pending: deque[PendingRow] = deque()
        self.suspects = 0
        """Of the next rows, one ended the last worker: they run before all others, `window` at a time."""

        self.window = 0
        """Of suspects, the most that are in flight or without a saved result."""

        self._store = store
        self._keys = keys
        self._etag = etag
        self._results = Results()
        self._writing = threading.Lock()
        self._next_number = 0
        """Of a part: each has its own, because the head may still name those that one is joined from. A save that is
        repeated has the same."""

    @classmethod
    def open(cls, store: Store, keys: Layout, job: Job, chunk: Chunk, worker: str, in_flight: int = 0) -> ChunkState:
        """Take a chunk over: read the results of earlier workers and the remaining rows.

        Args:
            in_flight: how many rows the worker runs at a time, at most; 0 if it runs none.

        Raises:
            Conflict: another worker is taking it.
            Permanent: it ended too many workers.
        """
        head_key = keys.build(layout.HEAD, job["id"], chunk["index"])
        stored = store.read_json(head_key)
        if stored and stored.value["done"]:
            return cls(store, keys, job, chunk, stored.value, stored.etag)
        head = Head(epoch=1, worker=worker, parts=[], done=False, fruitless=0)
        if stored:
            before: Head = stored.value
            if in_flight:
                _check_hopeless(before, chunk)
            has_ended = time.time() - stored.modified < _LONGEST_HELD_S
            head |= {"epoch": before["epoch"] + 1, "parts": before["parts"]}
            head["fruitless"] = before["fruitless"] + has_ended
        etag = store.write_json(head_key, head, etag=stored.etag if stored else None, new=stored is None)
        state = cls(store, keys, job, chunk, head, etag)
        try:
            state._read_rows(chunk)
        except Exception:  # such as throttling, which ends no worker
            with contextlib.suppress(BotoCoreError, ClientError, Conflict):
                state.hand_back()
            raise
        if in_flight:
            state._find_suspects(in_flight)
        return state

    @property
    def runs_alone(self) -> bool:
        """Whether each of the next rows runs alone in its worker: what ends it then is known."""
        return self.suspects > 0 and self.window == 1

    @property
    def unsaved_rows(self) -> float:
        """Rows whose results are not in S3 yet."""
        return self._results.rows

    def add(self, outcome: Outcome) -> None:
        results = self._results
        if outcome.failure:
            results.errors += outcome.line
            results.counts["failed"] += 1
            results.failures[outcome.failure] += 1
        else:
            results.output += outcome.line
            results.counts["completed"] += 1
        results.counts["input_tokens"] += outcome.input_tokens
        results.counts["output_tokens"] += outcome.output_tokens

    def add_time(self, seconds: float) -> None:
        """Add the endpoint's time for the chunk's rows, in seconds; it is saved with the next row."""
        self._results.counts["endpoint_s"] += seconds

    def fail_rest(self, code: str, message: str) -> None:
        while self.pending:
            self._fail_next(code, message)

    def _fail_next(self, code: str, message: str) -> None:
        row = self.pending.popleft()
        custom_id = json.loads(row.content)["custom_id"]
        self.add(Outcome(rows.format_error(custom_id, code, message, line=row.line), code))

    def collect(self) -> Results:
        """Take the results that are not in S3 yet."""
        results, self._results = self._results, Results()
        return results

    def commit(self, results: Results) -> None:
        """Write results to S3 and into the head.

        Call it again with the same results after an error, or an interruption while it ran: they count once.

        Raises:
            Conflict: another worker has the chunk; nothing of these results counts.
        """
        with self._writing:
            if not results.saved and results.rows:
                self._write_part(results)
            results.saved = True

    def _write_part(self, results: Results) -> None:
        numbers = itertools.count(self._next_number)
        number = next(numbers)
        part: dict[str, Any] = {"output": "", "errors": "", "faults": results.faults, "saves": 1, **results.counts}
        part["failures"] = results.failures
        for kind, body in (("output", results.output), ("errors", results.errors)):
            part[SIZES[kind]] = len(body)
            if body:
                part[kind] = self._get_part_key(number, kind)
                self._store.write(part[kind], bytes(body))
        suspects = max(0, self.suspects - int(results.rows))  # no other rows are sent before their results are saved
        fruitless = min(self.head["fruitless"], MAX_FRUITLESS - ALONE) if suspects else 0
        parts = [*self.head["parts"], part]
        while len(parts) >= _JOINED and len({_count_saves(entry) for entry in parts[-_JOINED:]}) == 1:
            parts[-_JOINED:] = [self._join(parts[-_JOINED:], next(numbers))]
        self._write_head(Head(**{**self.head, "parts": parts, "fruitless": fruitless}))
        self.suspects, self._next_number = suspects, next(numbers)

    def _join(self, parts: list[dict[str, Any]], number: int) -> dict[str, Any]:
        saves = sum(map(_count_saves, parts))
        joined = {"output": "", "errors": "", "faults": False, "saves": saves, **layout.add_counts(parts)}
        for kind, size in SIZES.items():
            joined[size] = sum(part[size] for part in parts)
            if joined[size]:
                joined[kind] = self._get_part_key(number, kind)
                with self._store.open_writer(joined[kind]) as writer:
                    append_parts(writer, parts, kind)
        return joined

    def finish(self) -> None:
        """Join the parts into one, and mark the chunk as done.

        Raises:
            Conflict: another worker has the chunk.
        """
        if self.head["done"]:
            return
        parts = self.head["parts"]
        joined = [self._join(parts, self._next_number)] if len(parts) > 1 else parts
        self._write_head(Head(**{**self.head, "parts": joined, "done": True}))

    def hand_back(self) -> None:
        """Note that the chunk did not end the worker, which stops by itself or cannot read the rows.

        Raises:
            Conflict: another worker has the chunk.
        """
        with self._writing:
            if self.head["fruitless"] and not self.head["done"]:
                self._write_head(Head(**{**self.head, "fruitless": 0}))

    def _get_part_key(self, number: int, kind: str) -> str:
        return self._keys.build(layout.PART, self.job["id"], self.index, self.head["epoch"], number, kind)

    def _write_head(self, head: Head) -> None:
        key = self._keys.build(layout.HEAD, self.job["id"], self.index)
        try:
            self._etag = self._store.write_json(key, head, etag=self._etag)
        except Conflict:
            # If the answer to a write was lost, the retry finds its own write.
            stored = self._store.read_json(key)
            if stored is None or stored.value != head:
                raise
            self._etag = stored.etag
        self.head = head

    def _read_rows(self, chunk: Chunk) -> None:
        """Read the remaining rows; rows that cannot run get their error lines, once."""
        stored = self._store.read_json(self._keys.build(layout.ROWS, self.job["id"], self.index))
        plan: dict[str, Any] = stored.value if stored else {"first_line": 0, "faults": [], "repeats": {}}
        first_line: int = plan["first_line"]
        faults = {fault["line"] - first_line: fault for fault in plan["faults"]}
        repeats: dict[str, int] = plan["repeats"]
        done_ids = set(self._read_done_ids())
        is_first = not any(part["faults"] for part in self.head["parts"])
        for line in read_chunk_lines(self._store, self.job, chunk):
            number = first_line + line.number
            if line.is_blank:
                continue
            if line.number in faults:
                fault = faults[line.number]
                if is_first:
                    self._add_fault(fault["custom_id"], fault["code"], fault["message"], number)
            elif str(line.number) in repeats:
                if is_first:
                    custom_id = rows.parse(line.content).custom_id
                    message = rows.describe_repeat(repeats[str(line.number)])
                    self._add_fault(custom_id, rows.REPEATED, message, number)
            elif line.content and not (done_ids and rows.parse(line.content).custom_id in done_ids):
                self.pending.append(PendingRow(number, line.content))
        if self._results.rows:
            self.commit(self.collect())

    def _find_suspects(self, in_flight: int) -> None:
        """Find which of the next rows may have ended the last worker; one that was alone several times did."""
        fruitless = self.head["fruitless"]
        if fruitless >= MAX_FRUITLESS and self.pending:
            self.suspects, self.window = min(len(self.pending), 1 + NEIGHBORS), 1
            text = f"workers ended {fruitless} times in a row, at last with this row alone in flight"
            self._fail_next(layout.LOST_CODE, text)
            self.commit(self.collect())
        elif fruitless:
            self.suspects = min(len(self.pending), _count_suspects(in_flight, fruitless - 1))
            self.window = _count_suspects(in_flight, fruitless)

    def _add_fault(self, custom_id: str | None, code: str, message: str, line: int) -> None:
        self._results.faults = True
        self.add(Outcome(rows.format_error(custom_id, code, message, line=line), code))

    def _read_done_ids(self) -> Iterator[str]:
        for part in self.head["parts"]:
            for kind in ("output", "errors"):
                if part[kind] and not part["faults"]:
                    for line in self._store.read_lines(part[kind]):
                        yield json.loads(line)["custom_id"]


def _count_saves(part: Mapping[str, Any]) -> int:
    """Count the saves of a part; none of rows that never run, which `_read_done_ids` must tell from others."""
    return 0 if part["faults"] else int(part.get("saves", 1))  # a part of an earlier version is of one


def _check_hopeless(before: Head, chunk: Chunk) -> None:
    """Refuse a chunk that ends its workers while they read it, or one of whose rows too many did."""
    has_lost = layout.add_counts(before["parts"])["failures"][layout.LOST_CODE] >= MAX_LOST
    if before["fruitless"] + has_lost >= MAX_FRUITLESS:
        text = f"chunk {chunk['index']} ended {before['fruitless'] + 1} workers in a row"
        raise Permanent(layout.GIVEN_UP_CODE, text)


def _count_suspects(in_flight: int, fruitless: int) -> int:
    """Count the rows of a chunk that may run without a saved result, after it ended so many workers.

    At first more than are in flight at a time: the answered ones of the last second are not saved either.
    """
    return max(1, in_flight << _NARROWING >> _NARROWING * fruitless)


def append_parts(writer: Writer, parts: Iterable[Mapping[str, Any]], kind: str) -> list[str]:
    """Append the results of one kind of several parts; returns their keys."""
    stored_parts = [part for part in parts if part[kind]]
    for part in stored_parts:
        writer.append_object(part[kind], part[SIZES[kind]])
    return [part[kind] for part in stored_parts]


def take_chunk(
    store: Store, keys: Layout, job_id: str, index: int, worker: str, in_flight: int
) -> tuple[ChunkState, Job]:
    """Take a chunk of a job over; see `ChunkState.open`.

    Raises:
        Conflict: another worker is taking it.
        Permanent: there is no such job, or the chunk ended too many workers.
    """
    job, chunks = store.read_json(keys.build(layout.JOB, job_id)), store.read_json(keys.build(layout.CHUNKS, job_id))
    if job is None or chunks is None:
        raise Permanent("missing_object", f"there is no job {job_id}")
    return ChunkState.open(store, keys, job.value, chunks.value[index], worker, in_flight), job.value


def read_chunk_lines(store: Store, job: Job, chunk: Chunk) -> Iterator[rows.Line]:
    source = job["input"]
    if chunk["key"] != source["key"]:
        read, size = partial(store.read_range, chunk["key"]), chunk["end"]
    else:
        source_store, size = Store(source["bucket"], store.client), int(source["bytes"])
        read = partial(source_store.read_range, source["key"], etag=source["etag"])
    return reader.read_range_lines(read, chunk["start"], chunk["end"], size)
