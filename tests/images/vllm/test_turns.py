"""Turns of models on the same accelerators: who waits, who is next, and what each turn costs the others."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

PROGRAM = Path(__file__).parents[3] / "images" / "vllm" / "turns.py"
FOR_EVER_S = 10_000.0


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("turns", PROGRAM)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["turns"] = loaded  # which its dataclasses look themselves up in
    spec.loader.exec_module(loaded)
    return loaded


class Clients:
    """Requests to turns, each held until the test ends it, and the switches that they caused."""

    def __init__(
        self, module: ModuleType, max_waiting: int = 10, least_awake_s: float = 0, finish_s: float = 0
    ) -> None:
        self.events: list[str] = []
        self.now = self.switch_s = 0.0
        self.module = module
        module.time = SimpleNamespace(monotonic=lambda: self.now)  # type: ignore[assignment]
        self.metrics = module.Metrics()
        limits = module.Limits(max_waiting, least_awake_s, finish_s)
        self.turns = module.Turns(self._switch, "a", limits, self.metrics)
        self.keeper = asyncio.create_task(self.turns.run())
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def _switch(self, last: str, model: str, keep: bool) -> None:
        self.events.append(f"{last}>{model}{' keeping' if keep else ''}")
        self.now += self.switch_s

    async def send(self, *names: str) -> None:
        """Send requests; the first letter of each is its model."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await settle()

    async def _hold(self, name: str) -> None:
        async with self.turns.hold(name[0]):
            self.events.append(name)
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        """Let requests end."""
        for name in names:
            self.ends[name].set()
        await settle()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, of which nothing passes by itself."""
        self.now += seconds
        self.turns._tell()
        await settle()

    def read(self, metric: str, model: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"model_switch_{metric}", {"model_name": model})

    def count_waiting(self, model: str) -> float | None:
        labels = {"engine": "switch", "model_name": model}
        return self.metrics.queue_registry.get_sample_value("vllm:num_requests_waiting", labels)


async def settle() -> None:
    """Let all that can happen without time happen."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_requests_of_the_awake_model_go_at_once_and_another_waits_for_its_turn(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, least_awake_s=FOR_EVER_S)
        await clients.send("a1", "b1", "a2")
        assert clients.events == ["a1", "a2"], "the time of a's turn is not over"
        assert clients.count_waiting("b") == 1
        await clients.end("a1")
        assert clients.events == ["a1", "a2"]
        await clients.end("a2")
        assert clients.events == ["a1", "a2", "a>b", "b1"], "no request needs the rest of a's turn"

    asyncio.run(run())


def test_an_idle_model_keeps_its_turn_for_as_long_as_a_switch_takes(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, least_awake_s=FOR_EVER_S)
        clients.switch_s = 20
        await clients.send("b1")
        await clients.end("b1")
        await clients.send("a1")
        await clients.pass_time(19)
        await clients.send("b2")
        assert clients.events == ["a>b", "b1", "b2"], "b's next request came in that time"
        await clients.end("b2")
        await clients.pass_time(19)
        assert clients.events[3:] == []
        await clients.pass_time(1)
        assert clients.events[3:] == ["b>a", "a1"]

    asyncio.run(run())


def test_at_the_end_a_turn_is_as_long_as_its_requests(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, least_awake_s=FOR_EVER_S)
        await clients.send("a1", "b1")
        clients.turns.end()
        await settle()
        assert clients.events == ["a1"]
        await clients.end("a1")
        assert clients.events == ["a1", "a>b", "b1"]
        await clients.end("b1")
        await clients.turns.wait_until_idle()

    asyncio.run(run())


def test_what_runs_may_finish_before_the_switch_and_what_is_new_waits(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, finish_s=FOR_EVER_S)
        await clients.send("a1", "b1")
        await clients.send("a2")
        assert clients.events == ["a1"]
        await clients.end("a1")
        # b1 runs, a2 is the oldest that waits: b is not let in again, and gets no second turn before a.
        await clients.send("b2")
        assert clients.events == ["a1", "a>b", "b1"]
        await clients.end("b1")
        assert clients.events == ["a1", "a>b", "b1", "b>a", "a2"]
        await clients.end("a2")
        assert clients.events[-2:] == ["a>b", "b2"]

    asyncio.run(run())


def test_the_oldest_that_waits_is_next_whatever_its_model(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, finish_s=FOR_EVER_S)
        await clients.send("a1", "c1", "b1", "c2")
        await clients.end("a1")
        assert clients.events[1:] == ["a>c", "c1", "c2"]
        await clients.end("c1", "c2")
        assert clients.events[4:] == ["c>b", "b1"]

    asyncio.run(run())


def test_requests_that_stop_midway_get_a_turn_though_nobody_else_asks_for_their_model(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, least_awake_s=20)
        await clients.send("a1", "b1")
        await clients.pass_time(20)
        assert clients.read("stopped", "a") == 1
        await clients.pass_time(20)
        assert clients.read("stopped", "b") == 1
        assert clients.events == ["a1", "a>b keeping", "b1", "b>a keeping"]
        await clients.end("a1", "b1")
        await clients.turns.wait_until_idle()
        assert (clients.read("stopped", "a"), clients.read("stopped", "b")) == (0, 0)

    asyncio.run(run())


def test_those_that_stopped_midway_and_have_all_left_get_no_turn(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, least_awake_s=20)
        await clients.send("a1", "b1")
        await clients.pass_time(20)
        clients.tasks["a1"].cancel()
        await clients.pass_time(40)
        assert clients.events == ["a1", "a>b keeping", "b1"]
        assert clients.read("stopped", "a") == 0

    asyncio.run(run())


def test_who_leaves_while_it_waits_causes_no_switch(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, finish_s=FOR_EVER_S)
        await clients.send("a1", "b1")
        clients.tasks["b1"].cancel()
        await settle()
        assert clients.count_waiting("b") == 0
        await clients.send("a2")
        await clients.end("a1")
        assert clients.events == ["a1", "a2"]

    asyncio.run(run())


def test_who_leaves_at_the_moment_of_its_turn_holds_nothing(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, finish_s=FOR_EVER_S)
        await clients.send("a1", "b1")
        clients.ends["a1"].set()
        while clients.turns.awake != "b":
            await asyncio.sleep(0)
        clients.tasks["b1"].cancel()
        await settle()
        assert clients.events == ["a1", "a>b"]
        await clients.turns.wait_until_idle()
        await clients.send("a2")
        assert clients.events[2:] == ["b>a", "a2"]

    asyncio.run(run())


def test_beyond_the_bound_a_request_is_refused_at_once_with_the_time_to_come_again(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, max_waiting=2, least_awake_s=FOR_EVER_S)
        await clients.send("a1", "b1", "c1", "b2", "a2")
        error = clients.tasks["b2"].exception()
        assert isinstance(error, module.Refusal)
        assert error.status == 429
        assert 1 < error.retry_after_s <= FOR_EVER_S
        assert clients.events == ["a1", "a2"], "the awake model's own need no place in the queue"
        assert clients.read("refused_total", "b") == 1

    asyncio.run(run())


def test_a_broken_engine_ends_all_that_wait(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module)

        async def fail(*_: object) -> None:
            raise module.Broken("b: POST /wake_up: 500")

        clients.turns._switch = fail
        await clients.send("b1")
        await clients.send("b2", "a1")
        assert isinstance(clients.keeper.exception(), module.Broken)
        errors = [clients.tasks[name].exception() for name in ("b1", "b2", "a1")]
        assert [getattr(error, "status", None) for error in errors] == [503, 503, 503]

    asyncio.run(run())


def test_a_model_whose_engine_has_ended_gets_no_turn_that_would_stop_the_others(module: ModuleType) -> None:
    async def run() -> None:
        clients = Clients(module, least_awake_s=0, finish_s=FOR_EVER_S)
        await clients.send("a1", "b1", "c1")
        clients.turns.give_up("b")
        await clients.send("b2")
        errors = [clients.tasks[name].exception() for name in ("b1", "b2")]
        assert [getattr(error, "status", None) for error in errors] == [503, 503]
        await clients.end("a1", "c1")
        await clients.turns.wait_until_idle()
        assert clients.events == ["a1", "a>c", "c1"]

    asyncio.run(run())
