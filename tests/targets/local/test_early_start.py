from __future__ import annotations

import threading

import pytest

from llm_serving import processes
from llm_serving.targets.local import early_start
from llm_serving.targets.local.early_start import OnProgress


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "POLL_INTERVAL_S", 0.01)


def test_the_steps_are_taken_in_their_order_beside_the_block_and_only_once_it_can_begin() -> None:
    checked, ready, steps = threading.Event(), threading.Event(), list[str]()

    def can_begin() -> bool:
        checked.set()
        return ready.is_set()

    with early_start.run_in_background(can_begin, lambda _: steps.append("weights"), lambda _: steps.append("workers")):
        assert checked.wait(10)
        assert steps == []
        ready.set()
        processes.wait_until(lambda: steps == ["weights", "workers"], "both steps", 10)


def test_what_cannot_begin_before_the_block_ends_is_left() -> None:
    steps = list[str]()
    with early_start.run_in_background(lambda: False, lambda _: steps.append("weights")):
        pass
    assert steps == []


def test_a_step_under_way_is_broken_off_where_it_tells_of_itself_and_the_next_is_left() -> None:
    started, steps = threading.Event(), list[str]()

    def run_endlessly(note: OnProgress) -> None:
        started.set()
        while True:
            note("some")

    with early_start.run_in_background(lambda: True, run_endlessly, lambda _: steps.append("workers")):
        assert started.wait(10)
    assert steps == []


def test_a_step_that_fails_is_left_to_whoever_takes_it_again(capfd: pytest.CaptureFixture[str]) -> None:
    failed, steps = threading.Event(), list[str]()

    def fail(_: OnProgress) -> None:
        failed.set()
        raise OSError("refused")

    with early_start.run_in_background(lambda: True, fail, lambda _: steps.append("workers")):
        assert failed.wait(10)
    assert steps == []
    assert capfd.readouterr().err == ""


def test_the_blocks_own_failure_is_the_one_that_is_seen() -> None:
    with pytest.raises(ValueError, match="Terraform"), early_start.run_in_background(lambda: False):
        raise ValueError("Terraform")
