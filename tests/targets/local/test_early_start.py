from __future__ import annotations

import threading

import pytest

from llm_serving import processes
from llm_serving.targets.local import early_start
from llm_serving.targets.local.early_start import OnProgress


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "POLL_INTERVAL_S", 0.01)


def test_steps_run_in_order_beside_the_block_once_they_can_start() -> None:
    checked, ready, steps = threading.Event(), threading.Event(), list[str]()

    def can_begin() -> bool:
        checked.set()
        return ready.is_set()

    with early_start.run_in_background(can_begin, lambda _: steps.append("weights"), lambda _: steps.append("workers")):
        assert checked.wait(10)
        assert steps == []
        ready.set()
        processes.wait_until(lambda: steps == ["weights", "workers"], "both steps", 90)


def test_steps_that_cannot_start_before_the_block_ends_do_not_run() -> None:
    steps = list[str]()
    with early_start.run_in_background(lambda: False, lambda _: steps.append("weights")):
        pass
    assert steps == []


def test_a_running_step_ends_at_its_next_progress_report_and_no_other_starts() -> None:
    started, steps = threading.Event(), list[str]()

    def run_endlessly(note: OnProgress) -> None:
        started.set()
        while True:
            note("some")

    with early_start.run_in_background(lambda: True, run_endlessly, lambda _: steps.append("workers")):
        assert started.wait(10)
    assert steps == []


def test_a_failed_step_is_silent_and_ends_the_rest(capfd: pytest.CaptureFixture[str]) -> None:
    failed, steps = threading.Event(), list[str]()

    def fail(_: OnProgress) -> None:
        failed.set()
        raise OSError("refused")

    with early_start.run_in_background(lambda: True, fail, lambda _: steps.append("workers")):
        assert failed.wait(10)
    assert steps == []
    assert capfd.readouterr().err == ""


def test_a_failure_of_the_block_is_raised() -> None:
    with pytest.raises(ValueError, match="Terraform"), early_start.run_in_background(lambda: False):
        raise ValueError("Terraform")
