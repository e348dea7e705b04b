from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_serving.kinds.batch.validation.sample import SampleRows
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.traffic import Traffic
from scripts.benchmarks import batch_use
from tests.kinds.batch.test_blueprint import MINIMAL, resolve
from tests.validation.conftest import build_deployment

RATES = {16: iter([900.0, 1100.0]), 64: iter([1300.0, 1500.0])}
DEPLOYMENT = cast(Any, SimpleNamespace(sample=SimpleNamespace(rows=100)))


def test_the_use_is_the_median_jobs_share_of_the_drivers_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = iter([(1200.0, 40), (1460.0, 90)])
    monkeypatch.setattr(batch_use, "measure_driver", lambda _, __, in_flight, ___: next(RATES[in_flight]))
    monkeypatch.setattr(batch_use, "measure_job", lambda *_: next(jobs))
    cpu_s = iter([{"worker": 1.0}, {"worker": 4.0}, {"worker": 5.0}, {"worker": 7.0}])
    monkeypatch.setattr(batch_use.SampleRows, "measure", lambda _: None)
    monkeypatch.setattr(batch_use, "read_cpu_s", lambda _: next(cpu_s))
    assert batch_use.measure(DEPLOYMENT, cast(Any, None), [16, 64], 2, tmp_path) == {
        "rows": 100,
        "driver": {16: [900.0, 1100.0], 64: [1300.0, 1500.0]},
        "jobs": [1200.0, 1460.0],
        "most in flight": [40, 90],
        "cpu_s of a job": {"worker": 2.5},
        "use": 0.95,  # 1,330 of 1,400
    }


def test_the_driver_sends_prompts_as_long_as_the_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sample = "{model: m, rows: 20, input_tokens: 20..40, output_tokens: 8}"
    deployment = resolve(tmp_path / "mine", MINIMAL.replace("{model: m}", sample))
    deployment = deployment.model_copy(update={"serving": build_deployment("http://127.0.0.1:8000", {"users": 1})})
    rows = SampleRows(deployment)
    sent: list[Traffic] = []

    def validate(serving: ServingDeployment, _: object) -> Any:
        sent.append(serving.traffic)
        return SimpleNamespace(throughput=SimpleNamespace(output_tokens_per_s=1.0)), tmp_path

    monkeypatch.setattr(batch_use.run, "validate", validate)
    batch_use.measure_driver(deployment, rows, 4, tmp_path)
    (traffic,) = sent
    prompts = [json.loads(line) for line in (tmp_path / str(traffic.data)).read_text().splitlines()]
    assert len(prompts) == traffic.requests == 20
    for prompt in prompts:
        assert 20 <= len(prompt["messages"][0]["content"].split()) <= 40  # a word is a token: nobody measured
        assert prompt["output_tokens"] == 8
