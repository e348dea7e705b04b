"""Run the driver's phases: detect the server's dialect, warm it up, send the load, read metrics.

Runs inside Locust, in each process of the load; users and driver share Locust's environment.
"""

from __future__ import annotations

import datetime
import gc
import platform
import time
import traceback
from pathlib import Path
from typing import Any

import gevent
import locust

from llm_serving.settings.errors import Unavailable
from llm_serving.validation.load import driver_result, metrics_pages, server
from llm_serving.validation.load.driver_result import DriverResult, ProcessWatch
from llm_serving.validation.load.load import Load
from llm_serving.validation.load.load_plan import WHOLE
from llm_serving.validation.load.rendezvous import LoadEnded, Rendezvous, Setup
from llm_serving.validation.statistics import sample_statistics

HEARTBEAT_S = 0.02
"""Period of the timer that measures the driver's own delay."""

_SCHEDSTAT = Path("/proc/self/schedstat")
"""Linux: nanoseconds on a core, nanoseconds ready and waiting for one, and turns, of the main thread, which runs all of
the driver. Source: Documentation/scheduler/sched-stats.rst of the kernel."""


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
    except Unavailable as error:
        result.error = str(error)
    except LoadEnded:
        pass
    except Exception as error:  # noqa: BLE001  the parent process reports it
        traceback.print_exc()
        log = driver_result.name_part(driver_result.LOG_FILE, load.shard.index)
        result.error = (
            f"the load driver failed: {type(error).__name__}: {error}. {log} beside the plan has the traceback"
        )
    finally:
        meeting.announce_result(result)


def _lead(environment: Any, load: Load, meeting: Rendezvous, result: DriverResult) -> None:
    """Prepare the server and the other processes, play, and read the engine's metrics before and after."""
    plan = load.plan
    user = environment.user_classes[0](environment)
    result.kernel_times = user.connection.kernel_times
    setup = server.measure(user, load)
    result.engine_dialect = setup.engine_dialect
    if plan.traffic.images:
        result.picture_tokens = max(cost.picture for cost in setup.costs.values())
    warm_up, _ = server.create_prompts(plan, WHOLE, "warm-up", setup)
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
    gevent.sleep(metrics_pages.SETTLE_S + plan.metrics_delay_s)
    result.metrics_after = metrics_pages.fetch(plan.metrics_urls)


def _follow(load: Load, meeting: Rendezvous, result: DriverResult) -> None:
    """Play a share at the leader's word."""
    setup = meeting.wait_for_setup()
    load.engine_dialect, load.answer_s = setup.engine_dialect, setup.answer_s
    _prepare(load, setup)
    _freeze_memory()
    meeting.announce_ready()
    _play(load, meeting.wait_for_start(), result)
    gevent.sleep(metrics_pages.SETTLE_S)


def _prepare(load: Load, setup: Setup) -> None:
    """Begin to generate the counted prompts, and to measure the text that they share."""
    counted, unique_count = server.create_prompts(load.plan, load.shard, "load", setup)
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
