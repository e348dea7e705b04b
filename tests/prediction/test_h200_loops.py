"""Closed loops that this project sent to vLLM 0.25.1 on one H200, none of which was fitted.

data/h200-loops.csv, 2026-11-26: bfloat16 with random weights, `--max-model-len 8192 --max-num-seqs 256
--gpu-memory-utilization 0.9 --no-enable-prefix-caching`, prompts of random tokens, streamed; means without the users' first
requests, which start at once. `spread` is that of both lengths; with 0 all requests of a loop end and begin together, so
that first tokens wait for each other, and times between tokens do not.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_serving.catalog import instances, models, step_times
from llm_serving.catalog.step_times import StepTimes
from llm_serving.prediction import closed_loop
from llm_serving.prediction.calibration import Load, calibrate

FILE = Path(__file__).parent / "data" / "h200-loops.csv"


@dataclass(frozen=True)
class Loop:
    model: str
    input_tokens: int
    output_tokens: int
    spread: float
    users: int
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float

    def predict(self, times: StepTimes | None = None) -> closed_loop.ClosedLoop:
        return closed_loop.predict(
            models.find(self.model),
            instances.load()["p5en.48xlarge"],
            1,
            self.input_tokens,
            self.output_tokens,
            self.users,
            times,
        )

    def build_load(self) -> Load:
        def predict(times: StepTimes) -> tuple[float, float]:
            loop = self.predict(times)
            return loop.ttft_ms / 1000, loop.e2e_ms / 1000

        return Load(self.ttft_ms / 1000, self.e2e_ms / 1000, predict)


def read_loops() -> list[Loop]:
    with FILE.open(encoding="utf-8") as file:
        return [
            Loop(
                row["model"],
                int(row["input_tokens"]),
                int(row["output_tokens"]),
                float(row["spread"]),
                int(row["users"]),
                float(row["ttft_ms"]),
                float(row["tpot_ms"]),
                float(row["e2e_ms"]),
            )
            for row in csv.DictReader(file)
        ]


def test_a_newer_engine_answers_sooner_than_predicted_and_never_later() -> None:
    loops = read_loops()
    ratios = [loop.predict().e2e_ms / loop.e2e_ms for loop in loops]
    assert len(loops) == 17
    assert min(ratios) >= 1.0
    assert max(ratios) <= 1.35


@pytest.mark.parametrize("with_burst", [False, True])
def test_a_low_load_calibrates_the_loads_above_it_and_of_another_length(with_burst: bool) -> None:
    low, middle, burst, short = [loop for loop in read_loops() if loop.spread]
    assert (low.users, middle.users, burst.users, short.users) == (4, 16, 64, 8)
    times = calibrate(step_times.load(), low.build_load(), burst.build_load() if with_burst else None)
    for loop in (middle, short):
        predicted = loop.predict(times)
        assert predicted.itl_ms == pytest.approx(loop.tpot_ms, rel=0.09)
        assert predicted.e2e_ms == pytest.approx(loop.e2e_ms, rel=0.1)
        assert loop.predict().e2e_ms > 1.15 * loop.e2e_ms, "the catalog alone misses it"
