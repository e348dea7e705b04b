"""Takes messages from the queues: steps, and chunks while there is room for their rows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from batch.chunk import take_chunk
from batch.concurrency import ConcurrencyLimit
from batch.layout import Layout
from batch.open_chunks import OpenChunk, OpenChunks
from batch.queue import Mailbox, Message
from batch.settings import Settings
from batch.steps import StepRunner
from batch.store import Conflict, Store
from batch.usage import Usage

log = logging.getLogger("batch-worker")

POLL_INTERVAL_S, ERROR_INTERVAL_S = 0.3, 1.0

MAX_PENDING_BYTES = 256 * 2**20
"""Bytes of rows that wait for their turn from which on a queue gives a chunk only if no row of it waits."""

CONTROL_STEPS = 4
"""Plans, checks and merges that a worker does at a time, each in constant memory."""


@dataclass
class Poller:
    """Takes messages until it is cancelled."""

    _settings: Settings
    _store: Store
    _mailbox: Mailbox
    _step_runner: StepRunner
    _chunks: OpenChunks
    _limit: ConcurrencyLimit
    _usage: Usage
    _clock: Callable[[], float]

    async def poll_control(self, queue: str) -> None:
        """Do plans, checks and merges, several at a time: a long one must not delay an urgent job."""
        room = asyncio.Semaphore(CONTROL_STEPS)

        async def do_step(message: Message) -> None:
            try:
                await asyncio.to_thread(self._step_runner.run, message)
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                if message := await self._receive(queue):
                    group.create_task(do_step(message))
                else:
                    room.release()

    async def poll_chunks(self, team: str, priority: str, queue: str) -> None:
        """Take chunks of a team and priority while there is room for their rows."""
        while True:
            if not self.wants(team, priority):
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            message = await self._receive(queue)
            if message and message.task == "run":
                await self.open_chunk(message)
            elif message:
                await asyncio.to_thread(self._step_runner.run, message)

    def wants(self, team: str, priority: str) -> bool:
        """Return whether another chunk of this queue would run soon: few rows of its own or higher priority remain.

        A team without tokens left gets a few too: its jobs may be cancelled or expire while their rows wait.
        """
        if self._runs_one_alone():
            return False
        priorities = self._settings.priorities
        rank = priorities.index(priority)
        own = higher = 0
        pending_bytes = 0.0
        for chunk in self._chunks:
            chunk_rank = priorities.index(chunk.job["priority"])
            count = len(chunk.state.pending)
            pending_bytes += chunk.pending_bytes
            own += count if chunk_rank == rank and chunk.job["team"] == team else 0
            higher += count if chunk_rank < rank and not self._usage.is_spent(chunk.job["team"]) else 0
        return max(own, higher) <= (self._limit.value if pending_bytes < MAX_PENDING_BYTES else 0)

    def _runs_one_alone(self) -> bool:
        """Return whether a chunk's rows run alone: no other may be open that they end with the worker."""
        return any(chunk.state.runs_alone and not self._usage.is_spent(chunk.job["team"]) for chunk in self._chunks)

    async def _receive(self, queue: str) -> Message | None:
        try:
            return await asyncio.to_thread(self._mailbox.receive, queue)
        except (BotoCoreError, ClientError) as error:
            log.warning("receive: %s", error)
            await asyncio.sleep(ERROR_INTERVAL_S)
            return None

    async def open_chunk(self, message: Message) -> None:
        """Take the chunk of a message over, unless it ends every worker.

        Of two whose rows run alone, one goes back: the other may end this worker again.
        """
        job_id, index, settings = str(message.body["job"]), int(message.body["chunk"]), self._settings
        try:
            state, job = await asyncio.to_thread(
                take_chunk,
                self._store,
                Layout(settings.prefix),
                job_id,
                index,
                settings.worker,
                settings.max_concurrency,
            )
            if state.runs_alone and self._runs_one_alone():
                await asyncio.to_thread(state.hand_back)
                raise Conflict(index)
        except Conflict:
            self._mailbox.release(message)  # another worker is taking it; the message becomes visible later
            return
        except Exception as error:  # noqa: BLE001 - goes to the state machine
            await asyncio.to_thread(self._step_runner.fail, message, error)
            return
        log.info("run %s chunk %d: %d rows left, epoch %d", job_id, index, len(state.pending), state.head["epoch"])
        chunk = OpenChunk(state, message, job)
        chunk.apply_job(job, self._clock())
        self._chunks.add(chunk)
