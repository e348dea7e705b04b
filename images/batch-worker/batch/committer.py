"""Saves the results of open chunks, and ends chunks whose rows all have one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from batch import layout
from batch.errors import classify
from batch.open_chunks import OpenChunk, OpenChunks
from batch.queue import Mailbox
from batch.repeat import wait_at_most
from batch.steps import StepRunner
from batch.store import Conflict

if TYPE_CHECKING:
    from batch.cache import ResultCache

log = logging.getLogger("batch-worker")

COMMIT_INTERVAL_S = 1.0
"""Interval of saving finished rows: the most that a killed worker loses, and that runs again. A chunk whose last row is
answered is saved at once."""


class Committer:
    """Saves the results of open chunks."""

    def __init__(
        self, chunks: OpenChunks, mailbox: Mailbox, step_runner: StepRunner, cache: ResultCache | None
    ) -> None:
        self._chunks, self._mailbox, self._step_runner, self._cache = chunks, mailbox, step_runner, cache
        self._committed_at = time.monotonic()

    async def commit_in_time(self) -> None:
        """Save finished rows of all chunks from time to time, and those of a chunk that has no more at once.

        To join its parts may take a chunk long at its end, in which the rows of the others are saved.
        """
        while True:
            left_s = COMMIT_INTERVAL_S - (time.monotonic() - self._committed_at)
            await wait_at_most(self._chunks.completed, max(0.0, left_s))
            self._chunks.completed.clear()
            is_due = time.monotonic() - self._committed_at >= COMMIT_INTERVAL_S
            if is_due:
                self._committed_at = time.monotonic()
            free = [chunk for chunk in self._chunks if not chunk.lock.locked()]
            commits = [asyncio.create_task(self._commit(chunk)) for chunk in free if is_due or chunk.is_complete]
            if commits:
                done, _ = await asyncio.wait(commits, timeout=COMMIT_INTERVAL_S)
                await asyncio.gather(*done)  # raises what nobody expected

    async def commit(self, chunks: Iterable[OpenChunk]) -> None:
        """Save finished rows, and finish chunks that have no more; what AWS refuses for now stays as it is."""
        await asyncio.gather(*(self._commit(chunk) for chunk in chunks))

    async def _commit(self, chunk: OpenChunk) -> None:
        async with chunk.lock:
            if chunk not in self._chunks:
                return
            try:
                await self._save(chunk)
                if not chunk.is_complete:
                    return
                await asyncio.to_thread(self._finish, chunk)
            except Conflict:
                log.info("lost %s chunk %d to another worker", chunk.job["id"], chunk.state.index)
                self._mailbox.release(chunk.message)
            except (BotoCoreError, ClientError) as error:
                if not classify(error)[2]:  # such as throttling
                    log.warning("%s chunk %d: %s: %s", chunk.job["id"], chunk.state.index, type(error).__name__, error)
                    return
                await asyncio.to_thread(self._step_runner.fail, chunk.message, error)
            self._chunks.remove(chunk)

    async def _save(self, chunk: OpenChunk) -> None:
        """Save all finished rows; results left by a failed save come first, unchanged."""
        while chunk.unsaved or chunk.state.unsaved_rows:
            chunk.unsaved = chunk.unsaved or chunk.state.collect()
            await asyncio.to_thread(chunk.state.commit, chunk.unsaved)
            chunk.unsaved = None

    def _finish(self, chunk: OpenChunk) -> None:
        """Finish a chunk whose rows all have results, and answer the state machine. Blocks."""
        if not chunk.is_abandoned:
            chunk.state.finish()
            if self._cache:
                self._cache.publish(chunk.job, chunk.state.index)
        counts = layout.add_counts(chunk.state.head["parts"])
        self._mailbox.succeed(chunk.message, counts)
        log.info("done %s chunk %d: %s", chunk.job["id"], chunk.state.index, counts)
