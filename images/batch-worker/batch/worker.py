"""The worker: takes steps of jobs from the queues, and sends the rows of chunks to the endpoint.

One event loop sends the rows; blocking calls (S3, SQS, Step Functions) run in threads. A worker may be killed at any
time: its messages become visible to others after the takeover time, and only rows without a saved result run again.
SIGTERM hands everything back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from batch import layout
from batch.committer import Committer
from batch.concurrency import ConcurrencyLimit
from batch.dispatcher import Dispatcher
from batch.endpoint import FIELDS, Endpoint
from batch.open_chunks import OpenChunks
from batch.poller import Poller
from batch.queue import Mailbox
from batch.repeat import repeat
from batch.resources import Queues, find_queues
from batch.row_runner import RowRunner
from batch.secrets import ApiKey
from batch.settings import Settings
from batch.steps import StepRunner, Steps
from batch.store import Conflict, Store, create_client
from batch.usage import Usage

if TYPE_CHECKING:
    from batch.cache import ResultCache

log = logging.getLogger("batch-worker")

WATCH_INTERVAL_S = 2.0
REPORT_INTERVAL_S = 5.0
REPAIR_INTERVAL_S = 20.0
RESTART_INTERVAL_S = 0.3
QUEUE_INTERVAL_S = 1.0


class Worker:
    """One worker process."""

    def __init__(self, settings: Settings, clock: Callable[[], float] | None = None) -> None:
        """Open the store, and read the secrets.

        Raises:
            Unreadable: a secret that it logs in with cannot be read.
        """
        if settings.ready_file:
            Path(settings.ready_file).unlink(missing_ok=True)  # left over from an earlier process
        self._settings, self._clock = settings, clock or start_clock()
        self._keys, self._store = layout.Layout(settings.prefix), Store(settings.bucket)
        self._sqs, stepfunctions = create_client("sqs"), create_client("stepfunctions")
        self._api_key, self._cache = ApiKey(settings), _open_cache(self._store, settings, self._sqs)
        self.mailbox = Mailbox(self._sqs, stepfunctions, settings)
        self.chunks = OpenChunks()
        self._stopping = asyncio.Event()
        self._was_busy = True  # the first report announces the worker

    async def run(self) -> None:
        """Work until SIGTERM."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(16 + 6 * len(self._settings.teams), thread_name_prefix="aws"))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stopping.set)
        self.open()
        queues = await self._wait_for_queues()
        if queues is None:
            return
        tasks = self._start_tasks(queues)
        if self._settings.ready_file:
            Path(self._settings.ready_file).touch()
        log.info("ready: %d queues, endpoint %s", 1 + len(queues.runs), self._settings.endpoint)
        await self._stopping.wait()
        await self.shut_down(tasks)

    def open(self) -> None:
        """Open the endpoint and the parts that work; within an event loop."""
        settings, chunks = self._settings, self.chunks
        limit = ConcurrencyLimit(settings.min_concurrency, settings.max_concurrency, is_shared=settings.is_shared)
        step_runner = self._step_runner = StepRunner(Steps(self._store, settings, self._clock), self.mailbox)
        self.usage = Usage(self._store, settings, self._clock)
        self._endpoint = Endpoint(
            settings.endpoint, self._api_key, settings.request_timeout_s, settings.metrics_urls, settings.headers
        )
        runner = RowRunner(self._endpoint, settings, self._clock)
        self._limit = limit
        self.poller = Poller(settings, self._store, self.mailbox, step_runner, chunks, limit, self.usage, self._clock)
        self.committer = Committer(chunks, self.mailbox, step_runner, self._cache)
        self.dispatcher = Dispatcher(settings, chunks, limit, self.usage, self._endpoint, runner)

    def _start_tasks(self, queues: Queues) -> list[asyncio.Task[None]]:
        poller = self.poller
        work = [
            repeat(self._watch_jobs, WATCH_INTERVAL_S),
            repeat(self._report, REPORT_INTERVAL_S),
            repeat(self._keep_messages, self._settings.takeover_s / 4),
            repeat(self._repair_cache, REPAIR_INTERVAL_S),
            repeat(self.dispatcher.send_rows, RESTART_INTERVAL_S),
            repeat(self.dispatcher.follow_endpoint, RESTART_INTERVAL_S),
            repeat(self.committer.commit_in_time, RESTART_INTERVAL_S),
            repeat(poller.poll_control, RESTART_INTERVAL_S, queues.control),
        ]
        work += [repeat(poller.poll_chunks, RESTART_INTERVAL_S, *key, url) for key, url in queues.runs.items()]
        return [asyncio.create_task(coroutine) for coroutine in work]

    async def shut_down(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for rows in flight for a while, save the results, and hand the rest back."""
        requests = self.dispatcher.requests
        log.info("stopping: %d rows in flight", len(requests))
        self.mailbox.close()
        for task in tasks:
            task.cancel()
        await self._drain()
        for request in requests:
            request.cancel()
        await asyncio.gather(*tasks, *requests, return_exceptions=True)
        await self.committer.commit(self.chunks)  # results of an interrupted save count once
        for chunk in self.chunks:
            with contextlib.suppress(BotoCoreError, ClientError, Conflict):
                await asyncio.to_thread(chunk.state.hand_back)
        for message in list(self.mailbox.held):
            await asyncio.to_thread(self._step_runner.hand_back, message)
        await self._endpoint.close()
        log.info("stopped: everything is handed back")

    async def _drain(self) -> None:
        """Wait for rows in flight, save those that finish, and keep their chunks, which others would take otherwise."""
        requests, end = self.dispatcher.requests, time.monotonic() + self._settings.drain_s
        while requests and (left_s := end - time.monotonic()) > 0:
            await asyncio.wait(requests, timeout=min(left_s, self._settings.takeover_s / 4))
            if requests:
                saved = self.committer.commit(self.chunks)
                for result in await asyncio.gather(self._keep_messages(), saved, return_exceptions=True):
                    if isinstance(result, Exception):
                        log.warning("stopping: %s: %s", type(result).__name__, result)

    async def _wait_for_queues(self) -> Queues | None:
        while not self._stopping.is_set():
            try:
                if queues := await asyncio.to_thread(find_queues, self._sqs, self._settings):
                    return queues
            except (BotoCoreError, ClientError) as error:
                log.warning("queues: %s", error)
            await asyncio.sleep(QUEUE_INTERVAL_S)
        return None

    async def _keep_messages(self) -> None:
        """Extend the visibility timeout of every message in progress."""
        held = list(self.mailbox.held)
        await asyncio.gather(*(asyncio.to_thread(self.mailbox.keep, message) for message in held))

    async def _watch_jobs(self) -> None:
        """Check for cancelled and failed jobs, and exchange the teams' counts."""
        await asyncio.to_thread(self.usage.exchange, is_needed=bool(self.chunks))
        for job_id in {chunk.job["id"] for chunk in self.chunks}:
            stored = await asyncio.to_thread(self._store.read_json, self._keys.build(layout.JOB, job_id))
            for chunk in self.chunks:
                if stored and chunk.job["id"] == job_id:
                    chunk.apply_job(stored.value, self._clock())

    async def _repair_cache(self) -> None:
        """Write the answers that the cache missed while it was down."""
        if self._cache and (chunks := await asyncio.to_thread(self._cache.repair)):
            log.info("cache: %d chunks repaired", chunks)

    async def _report(self) -> None:
        """Write the state to the log and to this worker's report; while idle, once."""
        requests = self.dispatcher.requests
        was_busy, self._was_busy = self._was_busy, bool(requests or self.chunks)
        if not (was_busy or self._was_busy):
            return
        state = {
            "worker": self._settings.worker,
            "at": self._clock(),
            "pid": os.getpid(),
            "concurrency": self._limit.value,
            "burn": round(self.dispatcher.burn.budget, 2),
            "in_flight": len(requests),
            "chunks": len(self.chunks),
            "cache": self._cache.failure if self._cache else "",
            **asdict(self.dispatcher.counters),
        }
        log.info("%s", json.dumps(state), extra={FIELDS: {"message": "report", **state}})
        await asyncio.to_thread(self._store.write_json, self._keys.build(layout.WORKER, self._settings.worker), state)
        self.chunks.busy_workers = await asyncio.to_thread(self._count_busy_workers)

    def _count_busy_workers(self) -> int:
        """Count the workers with a recent report, including this one; by S3's clock."""
        written = {
            entry["key"]: entry["modified"] for entry in self._store.list_objects(self._keys.build(layout.WORKERS))
        }
        own = written.get(self._keys.build(layout.WORKER, self._settings.worker))
        busy = [key for key, moment in written.items() if own is not None and own - moment <= 3 * REPORT_INTERVAL_S]
        return max(1, len(busy))


def start_clock() -> Callable[[], float]:
    """Start a monotonic clock of seconds since 1970: later jumps of the machine's clock move no deadline."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


def _open_cache(store: Store, settings: Settings, sqs: Any) -> ResultCache | None:
    """Open the results cache; None without one, which saves the memory of its client."""
    if settings.cache is None:
        return None
    from batch.cache import ResultCache

    return ResultCache(store, settings, settings.cache, sqs)
