"""What the driver's own process is kept from: CPU time, its turn on a core, and its timer. Runs inside Locust."""

from __future__ import annotations

import time
from pathlib import Path

import gevent

from llm_serving.validation.load.driver_result import ProcessWatch
from llm_serving.validation.statistics import sample_statistics

HEARTBEAT_S = 0.02
"""Period of the timer that measures the driver's own delay."""

_SCHEDSTAT = Path("/proc/self/schedstat")
"""Linux: nanoseconds on a core, nanoseconds ready and waiting for one, and turns, of the main thread, which runs all of
the driver. Source: Documentation/scheduler/sched-stats.rst of the kernel."""


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
