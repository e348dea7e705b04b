"""The worker: takes steps of jobs from the queues, and sends the rows of chunks to the endpoint.

One event loop sends the rows; blocking calls (S3, SQS, Step Functions) run in threads. A worker may be killed at any
time: its messages become visible to others after the takeover time, and only rows without a saved result run again.
SIGTERM hands everything back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from batch import layout
from batch.burn import Burn, BurnMeter, parse_histograms
from batch.chunk import ChunkState, PendingRow, Results
from batch.concurrency import ConcurrencyLimit, Window
from batch.dispatch import Candidate, FairShare
from batch.endpoint import Endpoint, sum_load
from batch.layout import Job
from batch.queue import Mailbox, Message
from batch.resources import Queues, find_queues
from batch.row_runner import EXPIRED, Outcome, RowRunner
from batch.secrets import ApiKey
from batch.settings import Settings, WorkerSettings
from batch.steps import CHANGED_FILE, MISSING_FILE, Permanent, Steps
from batch.store import Conflict, Store, create_client
from batch.usage import Usage

log = logging.getLogger("batch-worker")

COMMIT_INTERVAL_S = 1.0
"""Interval of saving finished rows: the most that a killed worker loses, and that runs again. A chunk whose last row is
answered is saved at once."""

ADAPT_INTERVAL_S, GROWTH_INTERVAL_S = 1.0, 0.5
"""Between two steps of the concurrency limit; the second while it doubles: an endpoint with room is idle until then."""

WATCH_INTERVAL_S = 2.0
REPORT_INTERVAL_S = 5.0
REPAIR_INTERVAL_S = 20.0
POLL_INTERVAL_S = 0.3
QUEUE_INTERVAL_S = 1.0

CONTROL_STEPS = 4
"""Plans, checks and merges that a worker does at a time, each in constant memory."""

MAX_FRUITLESS = 10
"""How often a chunk may be taken without a saved row before it is given up: it must be what ends the workers."""

DRAIN_S = float(os.environ.get("BATCH_DRAIN_S", "12"))
"""How long rows in flight may finish after SIGTERM."""

DENIED_CODES = ("AccessDenied", "403", "AllAccessDisabled", "InvalidBucketName", "NoSuchBucket")
"""Codes of S3 and KMS for which a retry is useless. A HEAD request has the status instead of a code."""

FIRST_TOKENS = 256.0
"""Assumed tokens of a row until the first answers."""


@dataclass
class OpenChunk:
    """A chunk that this worker runs."""

    state: ChunkState
    message: Message
    job: Job
    in_flight: int = 0
    is_lost: bool = False
    is_abandoned: bool = False
    """Whether its job failed: it ends without its remaining rows, which run if the job is resumed."""

    unsaved: Results | None = None
    """Results that are not in S3 yet."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_complete(self) -> bool:
        """Whether every row has a result."""
        return not self.state.pending and not self.in_flight


@dataclass
class Counters:
    """Counters since the worker started."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Worker:
    """One worker process."""

    def __init__(self, settings: Settings, own: WorkerSettings, clock: Callable[[], float] | None = None) -> None:
        """Open queues, store, endpoint and cache.

        Raises:
            Unreadable: a secret that it logs in with cannot be read.
        """
        self._settings, self._own, self._clock = settings, own, clock or start_clock()
        if own.ready_file:
            Path(own.ready_file).unlink(missing_ok=True)  # left over from an earlier process
        self._keys = layout.Layout(settings.prefix)
        self._store = Store(settings.bucket)
        self._steps = Steps(self._store, settings, self._clock, max_concurrency=own.max_concurrency)
        self._sqs, self._stepfunctions = create_client("sqs"), create_client("stepfunctions")
        self._mailbox = Mailbox(self._sqs, self._stepfunctions, settings.takeover_s)
        self._limit = ConcurrencyLimit(own.min_concurrency, own.max_concurrency, is_shared=own.is_shared)
        self._burn_meter, self._burn = BurnMeter(own.objectives), Burn()
        self._share = FairShare({name: team.weight for name, team in settings.teams.items()})
        quotas = {name: team.tokens_per_day for name, team in settings.teams.items()}
        self._usage = Usage(self._store, self._keys, own.worker, quotas, self._clock)
        self._api_key = ApiKey(settings)
        self._cache = _open_cache(self._store, settings, own)
        self._chunks: list[OpenChunk] = []
        self._held: set[Message] = set()
        self._requests: set[asyncio.Task[None]] = set()
        self._counters = Counters()
        self._row_tokens = FIRST_TOKENS
        self._wake, self._chunk_ended = asyncio.Event(), asyncio.Event()
        self._committed_at = time.monotonic()
        self._stopping = asyncio.Event()
        self._last_answers = self._last_tokens = self._last_refusals = 0
        self._last_preemptions, self._last_time = -1.0, time.monotonic()
        self._shared_at = time.monotonic()
        self._is_busy, self._busy_workers = True, 1  # the first report announces the worker
        self._threads = ThreadPoolExecutor(16 + 3 * len(settings.teams) * 2, thread_name_prefix="aws")

    async def run(self) -> None:
        """Work until SIGTERM."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop)
        self._endpoint = Endpoint(
            self._settings.endpoint, self._api_key, self._own.request_timeout_s, self._own.metrics
        )
        self._runner = RowRunner(self._endpoint, self._own, self._clock)
        queues = await self._wait_for_queues()
        if queues is None:
            return
        tasks = [
            asyncio.create_task(self._repeat(work, interval))
            for work, interval in (
                (self._watch_jobs, WATCH_INTERVAL_S),
                (self._report, REPORT_INTERVAL_S),
                (self._keep_messages, self._settings.takeover_s / 4),
                (self._repair_cache, REPAIR_INTERVAL_S),
            )
        ]
        endless: list[Callable[[], Any]] = [
            self._dispatch,
            self._follow_endpoint,
            self._commit_in_time,
            functools.partial(self._poll_control, queues.control),
        ]
        endless += [functools.partial(self._poll_runs, key, url) for key, url in queues.runs.items()]
        tasks += [asyncio.create_task(self._repeat(work, POLL_INTERVAL_S)) for work in endless]
        if self._own.ready_file:
            Path(self._own.ready_file).touch()
        log.info("ready: %d queues, endpoint %s", 1 + len(queues.runs), self._settings.endpoint)
        await self._stopping.wait()
        await self._shut_down(tasks)

    def _stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    async def _shut_down(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for rows in flight for a while, save the results, and hand the rest back."""
        log.info("stopping: %d rows in flight", len(self._requests))
        for task in tasks:
            task.cancel()
        await self._drain()
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*tasks, *self._requests, return_exceptions=True)
        await self._commit_all()  # results of an interrupted save count once
        for chunk in self._chunks:
            with contextlib.suppress(BotoCoreError, ClientError, Conflict):
                await self._call(chunk.state.hand_back)
        for message in list(self._held):
            await self._call(self._mailbox.hand_back, message)
        await self._endpoint.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        log.info("stopped: everything is handed back")

    async def _drain(self) -> None:
        """Wait for rows in flight, save those that finish, and keep their chunks, which others would take otherwise."""
        end = time.monotonic() + DRAIN_S
        while self._requests and (left_s := end - time.monotonic()) > 0:
            await asyncio.wait(self._requests, timeout=min(left_s, self._settings.takeover_s / 4))
            if self._requests:
                for result in await asyncio.gather(self._keep_messages(), self._commit_all(), return_exceptions=True):
                    if isinstance(result, Exception):
                        log.warning("stopping: %s: %s", type(result).__name__, result)

    async def _wait_for_queues(self) -> Queues | None:
        while not self._stopping.is_set():
            try:
                queues: Queues | None = await self._call(find_queues, self._sqs, self._settings)
            except (BotoCoreError, ClientError) as error:
                log.warning("queues: %s", error)
                queues = None
            if queues:
                return queues
            await asyncio.sleep(QUEUE_INTERVAL_S)
        return None

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a blocking function in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(function, *arguments))

    async def _repeat(self, work: Callable[[], Any], interval_s: float) -> None:
        """Run a task at an interval, also after errors."""
        while not self._stopping.is_set():
            try:
                await work()
            except Exception as error:
                name = getattr(work, "func", work).__name__
                log.warning("%s: %s: %s", name, type(error).__name__, error, exc_info=not _is_aws(error))
            await asyncio.sleep(interval_s)

    # Messages

    async def _poll_control(self, queue: str) -> None:
        """Do plans, checks and merges, several at a time: a long one must not delay an urgent job."""
        room = asyncio.Semaphore(CONTROL_STEPS)

        async def do_step(message: Message) -> None:
            try:
                await self._do_step(message)
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            while not self._stopping.is_set():
                await room.acquire()
                if message := await self._receive(queue):
                    group.create_task(do_step(message))
                else:
                    room.release()

    async def _poll_runs(self, key: tuple[str, str], queue: str) -> None:
        """Take chunks of a team and priority while there is room for their rows."""
        while not self._stopping.is_set():
            if not self._wants(key):
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            message = await self._receive(queue)
            if message and message.task == "run":
                await self._open_chunk(message)
            elif message:
                await self._do_step(message)

    def _wants(self, key: tuple[str, str]) -> bool:
        """Return whether another chunk of this queue would run soon: few rows of its own or higher priority remain.

        A team without tokens left gets a few too: its jobs may be cancelled or expire while their rows wait.
        """
        team, priority = key
        rank = layout.PRIORITIES.index(priority)
        own = higher = 0
        for chunk in self._chunks:
            other = layout.PRIORITIES.index(chunk.job["priority"])
            count = len(chunk.state.pending)
            own += count if other == rank and chunk.job["team"] == team else 0
            higher += count if other < rank and not self._usage.is_spent(chunk.job["team"]) else 0
        return max(own, higher) <= self._limit.value

    async def _receive(self, queue: str) -> Message | None:
        try:
            message: Message | None = await self._call(self._take, queue)
        except (BotoCoreError, ClientError) as error:
            log.warning("receive: %s", error)
            await asyncio.sleep(QUEUE_INTERVAL_S)
            return None
        return message

    def _take(self, queue: str) -> Message | None:
        """Receive a message; in a thread, which may end after the worker has handed back what it held."""
        message = self._mailbox.receive(queue, self._settings.queue_wait_s)
        if message and self._stopping.is_set():
            self._mailbox.hand_back(message)
            return None
        if message:
            self._held.add(message)
        return message

    async def _do_step(self, message: Message) -> None:
        """Run a step, and answer the state machine."""
        start = time.monotonic()
        try:
            output = await self._call(self._steps.run, message.task, message.body)
            await self._call(self._mailbox.succeed, message, output)
            log.info("%s of %s: %s in %.1f s", message.task, message.body["job"], output, time.monotonic() - start)
            self._held.discard(message)
        except Exception as error:  # noqa: BLE001 - every failure of a step goes to the state machine
            await self._fail_step(message, error)

    async def _fail_step(self, message: Message, error: Exception) -> None:
        """Tell the state machine that a step failed, and whether to repeat it."""
        code, text, is_final = _classify(error)
        log.warning("%s of %s: %s: %s", message.task, message.body.get("job"), code, text)
        cause = {"code": code, "message": text}
        if is_final:
            try:
                await self._call(self._steps.note_error, str(message.body.get("job")), cause)
            except (BotoCoreError, ClientError, Conflict, KeyError) as failure:  # maybe the bucket is denied
                log.warning("job.json: %s", failure)
        try:
            await self._call(self._mailbox.fail, message, code if is_final else "Transient", cause)
        except (BotoCoreError, ClientError) as failure:
            log.warning("answer: %s", failure)  # the message becomes visible again
        self._held.discard(message)

    async def _keep_messages(self) -> None:
        """Extend the visibility timeout of every message in progress."""
        await asyncio.gather(*(self._call(self._mailbox.keep, message) for message in list(self._held)))

    # Chunks

    async def _open_chunk(self, message: Message) -> None:
        job_id, index = str(message.body["job"]), int(message.body["chunk"])
        try:
            chunk = await self._call(self._read_chunk, job_id, index)
        except Conflict:
            self._held.discard(message)  # another worker is taking it; the message becomes visible later
            return
        except Exception as error:  # noqa: BLE001 - goes to the state machine
            await self._fail_step(message, error)
            return
        state, job = chunk
        if state.head["fruitless"] >= MAX_FRUITLESS:
            text = f"chunk {index} ended {MAX_FRUITLESS} workers in a row"
            await self._fail_step(message, Permanent(layout.GIVEN_UP_CODE, text))
            return
        log.info("run %s chunk %d: %d rows left, epoch %d", job_id, index, len(state.pending), state.head["epoch"])
        opened = OpenChunk(state, message, job)
        self._apply_job(opened, job)
        self._chunks.append(opened)
        self._wake.set()
        if opened.is_complete:
            self._chunk_ended.set()

    def _read_chunk(self, job_id: str, index: int) -> tuple[ChunkState, Job]:
        stored = self._store.read_json(self._keys.get_job_key(job_id))
        chunks = self._store.read_json(self._keys.get_chunks_key(job_id))
        if stored is None or chunks is None:
            raise Permanent("missing_object", f"there is no job {job_id}")
        job: Job = stored.value
        return ChunkState.open(self._store, self._keys, job, chunks.value[index], self._own.worker), job

    async def _commit_in_time(self) -> None:
        """Save finished rows of all chunks from time to time, and those of a chunk that has no more at once."""
        while not self._stopping.is_set():
            left_s = COMMIT_INTERVAL_S - (time.monotonic() - self._committed_at)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._chunk_ended.wait(), max(0.0, left_s))
            self._chunk_ended.clear()
            if time.monotonic() - self._committed_at >= COMMIT_INTERVAL_S:
                self._committed_at = time.monotonic()
                await self._commit_all()
            else:
                await self._commit_each(chunk for chunk in self._chunks if chunk.is_complete)

    async def _commit_all(self) -> None:
        await self._commit_each(self._chunks)

    async def _commit_each(self, chunks: Iterable[OpenChunk]) -> None:
        """Save finished rows, and finish chunks that have no more."""
        await asyncio.gather(*(self._commit(chunk) for chunk in list(chunks)))

    async def _commit(self, chunk: OpenChunk) -> None:
        async with chunk.lock:
            if chunk.is_lost or chunk not in self._chunks:
                return
            is_complete = chunk.is_complete
            try:
                await self._save(chunk)
                if not is_complete:
                    return
                if not chunk.is_abandoned:
                    await self._call(chunk.state.finish)
                    if self._cache:
                        await self._call(self._cache.publish, chunk.job, chunk.state.index)
                counts = layout.count_rows([chunk.state.head])
                await self._call(self._mailbox.succeed, chunk.message, counts)
                log.info("done %s chunk %d: %s", chunk.job["id"], chunk.state.index, counts)
            except Conflict:
                log.info("lost %s chunk %d to another worker", chunk.job["id"], chunk.state.index)
                chunk.is_lost = True
            except ClientError as error:
                if not _classify(error)[2]:
                    raise
                await self._fail_step(chunk.message, error)
            self._held.discard(chunk.message)
            self._chunks.remove(chunk)
            self._wake.set()

    async def _save(self, chunk: OpenChunk) -> None:
        """Save all finished rows; results left by a failed save come first, unchanged."""
        while chunk.unsaved or chunk.state.unsaved_rows:
            chunk.unsaved = chunk.unsaved or chunk.state.collect()
            await self._call(chunk.state.commit, chunk.unsaved)
            chunk.unsaved = None

    async def _watch_jobs(self) -> None:
        """Check for cancelled and failed jobs, and exchange the teams' counts."""
        await self._call(self._usage.exchange)
        for job_id in {chunk.job["id"] for chunk in self._chunks}:
            stored = await self._call(self._store.read_json, self._keys.get_job_key(job_id))
            for chunk in self._chunks:
                if stored and chunk.job["id"] == job_id:
                    self._apply_job(chunk, stored.value)

    def _apply_job(self, chunk: OpenChunk, job: Job) -> None:
        chunk.job = job
        if job["state"] == layout.FAILED or chunk.is_abandoned:
            chunk.is_abandoned = True
            chunk.state.pending.clear()
        elif job["state"] in (layout.CANCELLING, layout.CANCELLED):
            chunk.state.fail_rest("batch_cancelled", "the batch was cancelled before this row ran")
        elif self._clock() > job["deadline_at"]:
            chunk.state.fail_rest(*EXPIRED)

    # Rows

    async def _dispatch(self) -> None:
        """Send rows while there are any and the endpoint accepts more."""
        while not self._stopping.is_set():
            chunk = self._choose() if len(self._requests) < self._limit.value and not self._runner.is_suspect else None
            if chunk is None:
                self._wake.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), POLL_INTERVAL_S)
                if self._runner.is_suspect:
                    await self._wait_for_endpoint()
                continue
            row = chunk.state.pending.popleft()
            self._share_time()
            chunk.in_flight += 1
            self._share.charge(chunk.job["team"], self._row_tokens)
            request = asyncio.create_task(self._run_row(chunk, row, self._row_tokens))
            self._requests.add(request)
            request.add_done_callback(self._forget)
            if len(self._requests) % 64 == 0:
                await asyncio.sleep(0)  # let answers arrive

    def _forget(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        self._wake.set()

    def _choose(self) -> OpenChunk | None:
        candidates = [
            Candidate(position, chunk.job["team"], chunk.job["priority"], chunk.job["deadline_at"])
            for position, chunk in enumerate(self._chunks)
            if chunk.state.pending and not chunk.is_lost and not self._usage.is_spent(chunk.job["team"])
        ]
        chosen = self._share.choose(candidates)
        return self._chunks[chosen.key] if chosen else None

    async def _wait_for_endpoint(self) -> None:
        """Send nothing until the endpoint answers again."""
        if not await self._endpoint.is_up():
            log.warning("rows wait: %s is away, or refuses the key", self._settings.endpoint)
            while not self._stopping.is_set() and not await self._endpoint.is_up():
                await asyncio.sleep(1)
        self._runner.is_suspect = False

    def _share_time(self) -> None:
        """Divide this worker's share of the endpoint's time since the last call among chunks, by requests in flight."""
        now = time.monotonic()
        seconds, self._shared_at = (now - self._shared_at) / self._busy_workers, now
        requests = sum(chunk.in_flight for chunk in self._chunks)
        for chunk in self._chunks:
            if chunk.in_flight:
                chunk.state.add_time(seconds * chunk.in_flight / requests)

    async def _run_row(self, chunk: OpenChunk, row: PendingRow, charged: float) -> None:
        """Send a row until it has a result; an interrupted one stays in its chunk, for the next worker."""
        used = 0
        try:
            outcome = await self._runner.run(row, chunk.job)
            used = outcome.tokens
            self._share_time()  # before the row is added: both are saved together
            self._record(chunk, outcome)
        except asyncio.CancelledError:
            chunk.state.pending.appendleft(row)  # without it the chunk would count as complete
            raise
        finally:
            self._share_time()
            chunk.in_flight -= 1
            if chunk.is_complete:
                self._chunk_ended.set()
            self._share.charge(chunk.job["team"], used - charged)
        if used:
            self._usage.add(chunk.job["team"], used)
            self._row_tokens += 0.05 * (used - self._row_tokens)

    def _record(self, chunk: OpenChunk, outcome: Outcome) -> None:
        tokens = (outcome.input_tokens, outcome.output_tokens)
        if outcome.failure:
            chunk.state.add_error(outcome.line, outcome.failure, *tokens)
            self._counters.failed += 1
        else:
            chunk.state.add_output(outcome.line, *tokens)
            self._counters.completed += 1
        self._counters.input_tokens += tokens[0]
        self._counters.output_tokens += tokens[1]

    async def _repair_cache(self) -> None:
        """Write the answers that the cache missed while it was down."""
        if self._cache and (chunks := await self._call(self._cache.repair)):
            log.info("cache: %d chunks repaired", chunks)

    # The endpoint's load

    async def _follow_endpoint(self) -> None:
        """Adapt the concurrency limit, in quick steps while the endpoint has plenty of room."""
        while not self._stopping.is_set():
            before = self._limit.value
            await self._adapt()
            is_doubled = self._limit.value >= 2 * before
            await asyncio.sleep(GROWTH_INTERVAL_S if is_doubled else ADAPT_INTERVAL_S)

    async def _adapt(self) -> None:
        """Take one step of the concurrency limit."""
        pages = await self._endpoint.read_metrics()
        load = sum_load(pages.values())
        now, counters = time.monotonic(), self._counters
        seconds = max(1e-3, now - self._last_time)
        names = self._burn_meter.metrics
        scrape = {url: parse_histograms(page, names) for url, page in pages.items()}
        self._burn = self._burn_meter.observe(scrape, now)
        preemptions = load.preemptions - self._last_preemptions if load and self._last_preemptions >= 0 else 0.0
        answers, tokens = counters.completed + counters.failed, counters.input_tokens + counters.output_tokens
        window = Window(
            seconds=seconds,
            answers=answers - self._last_answers,
            tokens=tokens - self._last_tokens,
            is_full=len(self._requests) >= 0.9 * self._limit.value,
            refusals=self._runner.refusals - self._last_refusals,
            load=load,
            preemptions=max(0.0, preemptions),
            burn=self._burn,
        )
        self._last_answers, self._last_tokens = answers, tokens
        self._last_refusals, self._last_time = self._runner.refusals, now
        self._last_preemptions = load.preemptions if load else -1.0
        self._limit.observe(window)
        self._wake.set()

    async def _report(self) -> None:
        """Write the state to the log and to this worker's report; while idle, once."""
        was_busy, self._is_busy = self._is_busy, bool(self._requests or self._chunks)
        if not (was_busy or self._is_busy):
            return
        counters = self._counters
        state = {
            "worker": self._own.worker,
            "at": self._clock(),
            "pid": os.getpid(),
            "concurrency": self._limit.value,
            "burn": round(self._burn.budget, 2),
            "in_flight": len(self._requests),
            "chunks": len(self._chunks),
            "completed": counters.completed,
            "failed": counters.failed,
            "input_tokens": counters.input_tokens,
            "output_tokens": counters.output_tokens,
        }
        log.info("%s", json.dumps(state))
        await self._call(self._store.write_json, self._keys.get_worker_key(self._own.worker), state)
        self._busy_workers = await self._call(self._count_busy_workers)

    def _count_busy_workers(self) -> int:
        """Count the workers with a recent report, including this one; by S3's clock."""
        written = {entry["key"]: entry["modified"] for entry in self._store.list_objects(self._keys.workers_prefix)}
        own = written.get(self._keys.get_worker_key(self._own.worker))
        busy = [key for key, moment in written.items() if own is not None and own - moment <= 3 * REPORT_INTERVAL_S]
        return max(1, len(busy))


def start_clock() -> Callable[[], float]:
    """Start a monotonic clock of seconds since 1970: later jumps of the machine's clock move no deadline."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


def _open_cache(store: Store, settings: Settings, own: WorkerSettings) -> Any:
    """Open the results cache; None without one, which saves the memory of its client."""
    if own.cache is None:
        return None
    from batch.cache import ResultCache

    return ResultCache(store, settings, own.cache)


def _is_aws(error: Exception) -> bool:
    return isinstance(error, (BotoCoreError, ClientError))


def _classify(error: Exception) -> tuple[str, str, bool]:
    """Return code and text of an error, and whether a retry is useless."""
    if isinstance(error, Permanent):
        return error.code, error.message, True
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code == "PreconditionFailed":  # of a read; a write's is a Conflict
            return *CHANGED_FILE, True
        if code == "NoSuchKey":
            return *MISSING_FILE, True
        return code, str(error), code in DENIED_CODES or code.startswith("KMS")
    return type(error).__name__, str(error), False
