"""Starts a batch worker; settings come from the environment (batch/settings.py)."""

from __future__ import annotations

import asyncio
import logging
import sys

from batch import memory, settings
from batch.secrets import Unreadable
from batch.worker import Worker


def main() -> int:
    """Work until SIGTERM; returns the exit code."""
    memory.limit_arenas()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        worker = Worker(settings.read())
    except settings.BadSettings as error:
        print(f"batch-worker: {error}", file=sys.stderr)
        return 2
    except Unreadable as error:
        print(f"batch-worker: {error}", file=sys.stderr)
        return 3
    memory.collect_garbage_rarely()
    asyncio.run(worker.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
