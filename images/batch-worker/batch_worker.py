"""Starts a batch worker; its settings are BATCH_SETTINGS (batch/settings.py)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from batch import memory, program
from batch.settings import Settings
from batch.worker import Worker


def main() -> int:
    """Work until SIGTERM; returns the exit code."""

    def open_worker(settings: Settings) -> Callable[[], object]:
        worker = Worker(settings)
        memory.collect_garbage_rarely()
        return lambda: asyncio.run(worker.run())

    return program.run("batch-worker", open_worker)


if __name__ == "__main__":
    sys.exit(main())
