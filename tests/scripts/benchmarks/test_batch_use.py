from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scripts.benchmarks import batch_use

RATES = {16: iter([900.0, 1100.0]), 64: iter([1300.0, 1500.0])}
DEPLOYMENT = cast(Any, SimpleNamespace(sample=SimpleNamespace(rows=100)))


def test_the_use_is_the_median_jobs_share_of_the_drivers_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = iter([(1200.0, 40), (1460.0, 90)])
    monkeypatch.setattr(batch_use, "measure_driver", lambda _, in_flight, __: next(RATES[in_flight]))
    monkeypatch.setattr(batch_use, "measure_job", lambda *_: next(jobs))
    cpu_s = iter([{"worker": 1.0}, {"worker": 4.0}, {"worker": 5.0}, {"worker": 7.0}])
    monkeypatch.setattr(batch_use, "read_cpu_s", lambda _: next(cpu_s))
    assert batch_use.measure(DEPLOYMENT, cast(Any, None), [16, 64], 2, tmp_path) == {
        "rows": 100,
        "driver": {16: [900.0, 1100.0], 64: [1300.0, 1500.0]},
        "jobs": [1200.0, 1460.0],
        "most in flight": [40, 90],
        "cpu_s of a job": {"worker": 2.5},
        "use": 0.95,  # 1,330 of 1,400
    }
