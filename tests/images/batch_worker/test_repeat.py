"""Work that repeats until it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from batch.repeat import wait_at_most

Wait = Callable[[asyncio.Event, float], Awaitable[object]]


async def _cancel_when_the_event_comes(wait: Wait, ticks: int) -> bool:
    """Cancel a loop of waits some ticks of the event loop after its event; return whether it ended."""
    event = asyncio.Event()

    async def work() -> None:
        while True:
            await wait(event, 60)
            event.clear()

    task = asyncio.create_task(work())
    for _ in range(5):
        await asyncio.sleep(0)
    event.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=60)
    task.cancel()
    await asyncio.wait([task], timeout=60)
    return bool(done)


@pytest.mark.parametrize("ticks", range(4))
def test_a_cancellation_that_comes_with_the_event_ends_the_work(ticks: int) -> None:
    assert asyncio.run(_cancel_when_the_event_comes(wait_at_most, ticks))


def test_a_wait_ends_with_the_event_or_the_time() -> None:
    async def run() -> None:
        event = asyncio.Event()
        await wait_at_most(event, 0.01)
        event.set()
        await wait_at_most(event, 60)

    asyncio.run(asyncio.wait_for(run(), 60))
