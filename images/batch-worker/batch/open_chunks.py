"""The chunks that a worker runs, and the events about them that its parts wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from batch import layout
from batch.chunk import ChunkState, Results
from batch.layout import Job
from batch.queue import Message
from batch.row_runner import CANCELLED, EXPIRED


@dataclass(eq=False)
class OpenChunk:
    """A chunk that this worker runs."""

    state: ChunkState
    message: Message
    job: Job
    in_flight: int = 0
    is_abandoned: bool = False
    """Whether its job failed: it ends without its remaining rows, which run if the job is resumed."""

    unsaved: Results | None = None
    """Results of a save that failed."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        rows = self.state.pending
        self._row_bytes = sum(len(row.content) for row in rows) / max(1, len(rows))

    @property
    def pending_bytes(self) -> float:
        """Bytes of its rows that have yet to run, by their mean."""
        return self._row_bytes * len(self.state.pending)

    @property
    def is_complete(self) -> bool:
        """Whether every row has a result."""
        return not self.state.pending and not self.in_flight

    @property
    def has_next(self) -> bool:
        """Whether its next row may run: of rows that may have ended a worker, some at a time."""
        if not self.state.suspects:
            return bool(self.state.pending)
        return bool(self.state.pending) and self.unsaved_rows < min(self.state.suspects, self.state.window)

    @property
    def unsaved_rows(self) -> float:
        """Rows that were sent and have no saved result."""
        return self.in_flight + self.state.unsaved_rows + (self.unsaved.rows if self.unsaved else 0)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for its rows any more."""
        return self.job["state"] in (layout.CANCELLING, layout.CANCELLED)

    def apply_job(self, job: Job, now: float) -> None:
        """End the rows of a job that failed, was cancelled, or is out of time."""
        self.job = job
        if job["state"] == layout.FAILED or self.is_abandoned:
            self.is_abandoned = True
            self.state.pending.clear()
        elif self.is_cancelled:
            self.state.fail_rest(*CANCELLED)
        elif now > job["deadline_at"]:
            self.state.fail_rest(*EXPIRED)


class OpenChunks:
    """The chunks that this worker runs."""

    def __init__(self) -> None:
        self._chunks: list[OpenChunk] = []
        self._shared_at = time.monotonic()
        self.busy_workers = 1
        """Workers that share the endpoint, including this one."""

        self.changed = asyncio.Event()
        """Set when another row may run."""

        self.completed = asyncio.Event()
        """Set when every row of a chunk has a result."""

    def __iter__(self) -> Iterator[OpenChunk]:
        return iter(list(self._chunks))

    def __contains__(self, chunk: OpenChunk) -> bool:
        return chunk in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: OpenChunk) -> None:
        self._chunks.append(chunk)
        self.note_end(chunk)

    def remove(self, chunk: OpenChunk) -> None:
        """Remove a chunk that has ended, or is another worker's."""
        self._chunks.remove(chunk)
        self.changed.set()

    def note_end(self, chunk: OpenChunk) -> None:
        """Tell the other parts that a row of a chunk has ended."""
        if chunk.is_complete:
            self.completed.set()
        self.changed.set()

    def share_time(self) -> None:
        """Divide this worker's share of the endpoint's time since the last call among chunks, by requests in flight."""
        now = time.monotonic()
        seconds, self._shared_at = (now - self._shared_at) / self.busy_workers, now
        requests = sum(chunk.in_flight for chunk in self._chunks)
        for chunk in self._chunks:
            if chunk.in_flight:
                chunk.state.add_time(seconds * chunk.in_flight / requests)
