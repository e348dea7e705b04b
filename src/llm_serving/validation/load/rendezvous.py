"""How the processes of one load meet: files in their common directory, each written once and complete.

The leader, process 0, asks the server what it understands, warms it up and sets the time of the start; the others wait
for it. The start is a time of day, since the processes may be on machines of their own, whose files `remote` copies.
"""

from __future__ import annotations

import time
from pathlib import Path

import gevent
from pydantic import Field

from llm_serving import processes
from llm_serving.settings.plain import PlainData
from llm_serving.validation.load import driver_result
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load.load_plan import LoadPlan, Shard
from llm_serving.validation.load.prompts import TokenCosts

POLL_S = 0.01


class Setup(PlainData):
    """What the leader found out about the server."""

    engine_dialect: bool
    """Whether the server accepts the engines' own parameters."""

    answer_s: float = 0.0
    """Mean time of an answer of the warm-up."""

    costs: dict[str, TokenCosts] = Field(default={})
    """Tokens of words by model; empty with the user's own prompts."""

    tokens_per_character: dict[str, float] = Field(default={})
    """Of recorded answers by model; empty without such answers."""


class LoadEnded(Exception):
    """Another process ended the load; it says why itself."""


class Rendezvous:
    """One process's view of the directory."""

    def __init__(self, plan: LoadPlan, shard: Shard) -> None:
        self._folder, self._plan, self._shard = Path(plan.folder), plan, shard

    def announce_setup(self, setup: Setup) -> None:
        self._publish(".setup", setup.model_dump_json())

    def wait_for_setup(self) -> Setup:
        return Setup.model_validate_json(self._wait_for(".setup"))

    def announce_ready(self) -> None:
        self._publish(f".ready-{self._shard.index}", "")

    def set_start(self) -> float:
        """Wait until all other processes are ready; return the start of the load, on perf_counter's clock."""
        for index in range(1, self._shard.count):
            self._wait_for(f".ready-{index}")
        start = time.time() + (self._plan.lead_s if self._shard.count > 1 else 0.0)
        self._publish(".start", repr(start))
        return _convert_to_clock(start)

    def wait_for_start(self) -> float:
        return _convert_to_clock(float(self._wait_for(".start")))

    def announce_result(self, result: DriverResult) -> None:
        self._publish(driver_result.name_part(driver_result.RESULT_FILE, self._shard.index), result.model_dump_json())

    def wait_for_results(self) -> None:
        """Wait until all other processes have ended their share."""
        for index in range(1, self._shard.count):
            self._wait_for(driver_result.name_part(driver_result.RESULT_FILE, index))

    def _publish(self, name: str, content: str) -> None:
        processes.write_whole(self._folder / name, content)

    def _wait_for(self, name: str) -> str:
        """Return a file's content when it is there."""
        file, deadline = self._folder / name, time.perf_counter() + self._plan.timeout_s
        while not file.exists():
            if self._find_failure():
                raise LoadEnded
            if time.perf_counter() > deadline:
                raise TimeoutError(f"a process of the load driver wrote no {name} within {self._plan.timeout_s:g} s")
            gevent.sleep(POLL_S)
        return file.read_text(encoding="utf-8")

    def _find_failure(self) -> bool:
        others = set(range(self._shard.count)) - {self._shard.index}
        results = [driver_result.read_result(self._folder, index) for index in others]
        return any(result.error for result in results if result)


def _convert_to_clock(unix_time: float) -> float:
    return time.perf_counter() + unix_time - time.time()
