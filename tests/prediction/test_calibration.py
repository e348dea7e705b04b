"""One low load and one burst of an engine predict its other loads, whatever its steps follow from."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache

from llm_serving.catalog import models, step_times
from llm_serving.engines.memory import Split
from llm_serving.kinds.serving import measured_loads, predicted_load
from llm_serving.prediction import search
from llm_serving.prediction.calibration import Load, calibrate
from llm_serving.prediction.problem import Limit
from llm_serving.prediction.simulation import Step, compute_percentile
from llm_serving.prediction.step_time import StepTime
from llm_serving.prediction.workload import Workload
from scripts import check_local_prediction as script
from tests.prediction.loads import LinearStep

ENGINE = LinearStep((12_000.0, 60.0, 400.0, 0.02))
"""As on two CPU cores: no roofline, and much for each request of a step."""

LOW, BURST = {"arrivals": "1/s", "requests": 30}, {"users": 32, "requests": 160}


def simulate_e2e_ms(step: Step, rate: float) -> float:
    traffic = script.build_traffic(arrivals=f"{rate}/s")
    outcome = measured_loads.simulate(step, script.find_limits(), traffic, 400)
    return 1000 * compute_percentile(outcome.e2e_s, 50)


def measure(step: StepTime, load: Mapping[str, object]) -> Load:
    traffic = script.build_traffic(**load)
    outcome = measured_loads.simulate(ENGINE, script.find_limits(), traffic, traffic.requests)
    metrics = {
        "ttft_ms": {"p95": 1000 * compute_percentile(outcome.ttft_s, 95)},
        "e2e_ms": {"mean": 1000 * statistics.fmean(outcome.e2e_s)},
    }
    return measured_loads.build_load(step, script.find_limits(), traffic, metrics, traffic.requests)


@cache
def calibrate_engine(*, with_burst: bool) -> StepTime:
    step = StepTime(models.find("tiny"), script.PROCESSOR, Split())
    step.use(calibrate(step_times.load(), measure(step, LOW), measure(step, BURST) if with_burst else None))
    return step


def find_knee(step: Step) -> float:
    lengths = predicted_load.draw_lengths(script.build_traffic(arrivals="1/s"), 400)
    limit = Limit("e2e_ms", "p95", 1700)
    return search.find_highest_rate(step, script.find_limits(), Workload(1.0, lengths), [limit], 200.0)


def test_a_low_load_and_a_burst_predict_the_knee_and_the_loads_below_it() -> None:
    step = calibrate_engine(with_burst=True)
    knee = find_knee(ENGINE)
    assert abs(find_knee(step) / knee - 1) <= 0.15
    for rate in (2, 4, 8, 16):
        assert rate < knee
        assert abs(simulate_e2e_ms(step, rate) / simulate_e2e_ms(ENGINE, rate) - 1) <= 0.10, rate


def test_without_the_burst_the_knee_is_missed() -> None:
    assert abs(find_knee(calibrate_engine(with_burst=False)) / find_knee(ENGINE) - 1) > 0.15
