"""Runs a task again and again, also after errors; waits for an event no longer than a while."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from botocore.exceptions import BotoCoreError, ClientError

log = logging.getLogger("batch")

P = ParamSpec("P")


async def repeat(work: Callable[P, Awaitable[object]], interval_s: float, *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a task at an interval until it is cancelled; log its results and its errors."""
    while True:
        try:
            if result := await work(*args, **kwargs):
                log.info("%s: %s", work.__name__, result)
        except Exception as error:
            is_aws = isinstance(error, (BotoCoreError, ClientError))
            log.warning("%s: %s: %s", work.__name__, type(error).__name__, error, exc_info=not is_aws)
        await asyncio.sleep(interval_s)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or until the time is over.

    A cancellation always ends it: `asyncio.wait_for` of Python 3.11 loses one that comes with the event.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
