"""Run the driver's phases: detect the server's dialect, warm it up, send the load, read metrics.

Runs inside Locust, in each process of the load; users and driver share Locust's environment.
"""

from __future__ import annotations

import datetime
import functools
import gc
import http.client
import json
import platform
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import locust
from gevent.pool import Pool

from llm_serving.services import tasks
from llm_serving.validation.load import data_rows, driver_result, metrics_pages, prompts
from llm_serving.validation.load.driver_result import DriverResult, ProcessWatch
from llm_serving.validation.load.load import Load, cycle_prompts, generate_prompts
from llm_serving.validation.load.load_plan import WHOLE, LoadPlan, Shard
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.load.rendezvous import LoadEnded, Rendezvous, Setup
from llm_serving.validation.load.stream import Connection, HttpError
from llm_serving.validation.statistics import sample_statistics

SETTLE_S = 1.2
"""Wait after the last answer: the engine counts a request just after it sent it, and Locust writes CSV each second."""


HEARTBEAT_S = 0.02
"""Period of the timer that measures the driver's own delay."""

_SCHEDSTAT = Path("/proc/self/schedstat")
"""Linux: nanoseconds on a core, nanoseconds ready and waiting for one, and turns, of the main thread, which runs all of
the driver. Source: Documentation/scheduler/sched-stats.rst of the kernel."""


class DriverError(Exception):
    """The load cannot be sent; the message is the reason."""


def drive(environment: Any) -> None:
    """Play this process's share of the load, and write its result."""
    load: Load = environment.load
    meeting = Rendezvous(load.plan, load.shard)
    result = DriverResult(planned=load.plan.traffic.requests)
    result.versions = {"locust": locust.__version__, "python": platform.python_version()}
    try:
        if load.shard.index == 0:
            _lead(environment, load, meeting, result)
        else:
            _follow(load, meeting, result)
    except DriverError as error:
        result.error = str(error)
    except LoadEnded:
        pass
    except Exception as error:  # noqa: BLE001  the parent process reports it
        traceback.print_exc()
        result.error = f"the load driver failed: {type(error).__name__}: {error}"
    finally:
        meeting.announce_result(result)


def _lead(environment: Any, load: Load, meeting: Rendezvous, result: DriverResult) -> None:
    """Prepare the server and the other processes, play, and read the engine's metrics before and after."""
    plan = load.plan
    user = environment.user_classes[0](environment)
    result.kernel_times = user.connection.kernel_times
    load.engine_dialect = result.engine_dialect = _detect_dialect(user, load)
    setup = _measure_server(user, load)
    if plan.traffic.images:
        result.picture_tokens = max(cost.picture for cost in setup.costs.values())
    warm_up, _ = _create_prompts(plan, WHOLE, "warm-up", setup)
    result.warm_up_sent = load.warm_up(prompt for prompt, _ in zip(warm_up, range(plan.traffic.warm_up), strict=False))
    result.warm_up_failed = load.warm_up_failed
    meeting.announce_setup(setup.model_copy(update={"answer_s": load.answer_s}))
    _prepare(load, setup)
    gevent.sleep(plan.metrics_delay_s)
    result.metrics_before = metrics_pages.fetch(plan.metrics_urls)
    _freeze_memory()
    result.started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    _play(load, meeting.set_start(), result)
    meeting.wait_for_results()
    gevent.sleep(SETTLE_S + plan.metrics_delay_s)
    result.metrics_after = metrics_pages.fetch(plan.metrics_urls)


def _follow(load: Load, meeting: Rendezvous, result: DriverResult) -> None:
    """Play a share at the leader's word."""
    setup = meeting.wait_for_setup()
    load.engine_dialect, load.answer_s = setup.engine_dialect, setup.answer_s
    _prepare(load, setup)
    _freeze_memory()
    meeting.announce_ready()
    _play(load, meeting.wait_for_start(), result)
    gevent.sleep(SETTLE_S)


def _prepare(load: Load, setup: Setup) -> None:
    """Begin to generate the counted prompts, and to measure the text that they share."""
    counted, unique_count = _create_prompts(load.plan, load.shard, "load", setup)
    load.prepare(load.overlap.observe(counted, unique_count))


def _freeze_memory() -> None:
    """Keep the garbage collector from scanning, while answers are timed, the objects that exist now and stay."""
    gc.collect()
    gc.freeze()


def _play(load: Load, start_time: float, result: DriverResult) -> None:
    watch = Watch()
    load.play(start_time)
    result.processes = [watch.finish()]
    result.duration_s = load.end_time - load.start_time
    result.ramp_s = load.ramp_s
    load.overlap.save(load.plan.locate(driver_result.OVERLAP_FILE, load.shard.index))


def _measure_server(user: Any, load: Load) -> Setup:
    """Return what all processes need to know of the server: tokens of words, or of recorded answers."""
    plan = load.plan
    if plan.data:
        rows = data_rows.read_rows(Path(plan.data), plan.traffic)
        texts = [row.recorded_answer for row in rows if row.recorded_answer]
        rates = {
            model: prompts.measure_tokens_per_character(functools.partial(_count_tokens, user, model), texts)
            for model in plan.models
            if texts
        }
        return Setup(engine_dialect=load.engine_dialect, tokens_per_character=rates)
    if plan.task == tasks.DRAW:  # its prompts are no texts of so many tokens
        return Setup(engine_dialect=load.engine_dialect)
    map_concurrently = Pool(plan.bound(prompts.CONCURRENCY)).imap
    costs = {
        model: prompts.measure_costs(
            functools.partial(_count_tokens, user, model), map_concurrently, plan.traffic.images, plan.nonce
        )
        for model in plan.models
    }
    return Setup(engine_dialect=load.engine_dialect, costs=costs)


def _create_prompts(plan: LoadPlan, shard: Shard, phase: str, setup: Setup) -> tuple[Iterator[Prompt], int | None]:
    if plan.data:
        rows = data_rows.read_rows(Path(plan.data), plan.traffic)
        unique_count = shard.count_own(len(rows) * len(plan.models))
        return cycle_prompts(plan, phase, rows, setup.tokens_per_character, shard), unique_count
    return generate_prompts(plan, phase, setup.costs, shard), None


def _detect_dialect(user: Any, load: Load) -> bool:
    """Return whether the server accepts the engines' own parameters, tested with a request like the load's."""
    prompt = Prompt(({"role": "user", "content": prompts.FIRST_WORD},), max_tokens=2)
    for dialect in (True, False):
        load.engine_dialect = dialect
        try:
            _send_request(user, user.body(prompt))
        except HttpError as error:
            if dialect and error.status in (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY):
                continue
            raise DriverError(f"{user.plan.url}{user.path()} returned {error}. Fix: run blueprint logs.") from None
        return dialect
    raise AssertionError("unreachable: the second try returns or raises")


def _count_tokens(user: Any, model: str, content: Any) -> int:
    prompt = Prompt(({"role": "user", "content": content},), max_tokens=1, model=model)
    body = user.body(prompt)
    if user.plan.pooled is None:
        body = {key: value for key, value in body.items() if key != "stream_options"} | {"stream": False}
    try:
        answer = _send_request(user, body)
    except HttpError as error:
        raise DriverError(f"{user.plan.url}{user.path()} returned {error}. Fix: run blueprint logs.") from None
    try:
        return prompt.count_tokens(answer)
    except ValueError as error:
        raise DriverError(f"{user.plan.url}{user.path()} {error}") from None


def _send_request(user: Any, body: dict[str, Any]) -> bytes:
    connection = Connection(user.plan.url, user.headers())
    deadline = user.plan.traffic.deadline
    try:
        with gevent.Timeout(deadline):
            connection.connect()
            return b"".join(chunk for _, chunk in connection.post(user.path(), json.dumps(body).encode()))
    except gevent.Timeout:
        raise DriverError(
            f"{user.plan.url} did not answer the first request within {deadline:g} s. Fix: run blueprint logs."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise DriverError(
            f"{user.plan.url} is unreachable: {error}. Fix: run blueprint status, or check --url."
        ) from None
    finally:
        connection.close()


class Watch:
    """Watches this process from its creation to `finish`."""

    def __init__(self) -> None:
        self._lags_ms: list[float] = []
        self._start, self._cpu_start, self._wait_start = time.perf_counter(), time.process_time(), _read_wait_s()
        self._heartbeat = gevent.spawn(self._beat)

    def finish(self) -> ProcessWatch:
        """Stop, and return what was seen."""
        self._heartbeat.kill()
        duration_s = max(time.perf_counter() - self._start, 0.001)
        wait_s = None if self._wait_start is None else (_read_wait_s() or 0.0) - self._wait_start
        lags_ms = sorted(self._lags_ms) or [0.0]
        return ProcessWatch(
            cpu_share=round((time.process_time() - self._cpu_start) / duration_s, 4),
            queue_share=None if wait_s is None else round(wait_s / duration_s, 4),
            lag_p99_ms=round(sample_statistics.compute_percentile(lags_ms, 0.99), 3),
        )

    def _beat(self) -> None:
        """Note by how much each short sleep takes longer: nothing else of the driver ran any sooner."""
        while True:
            start = time.perf_counter()
            gevent.sleep(HEARTBEAT_S)
            self._lags_ms.append((time.perf_counter() - start - HEARTBEAT_S) * 1000)


def _read_wait_s() -> float | None:
    """Return the seconds that this process was ready and waited for a core; None where the kernel does not say."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
