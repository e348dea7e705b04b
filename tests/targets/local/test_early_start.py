from __future__ import annotations

import threading

import pytest

from llm_serving import processes
from llm_serving.targets.local import early_start
from llm_serving.targets.local.early_start import Note


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "LOOK_S", 0.01)


def test_the_steps_are_taken_in_their_order_beside_the_block_and_only_once_it_can_begin() -> None:
    asked, ready, taken = threading.Event(), threading.Event(), list[str]()

    def can_begin() -> bool:
        asked.set()
        return ready.is_set()

    with early_start.begun(can_begin, lambda _: taken.append("weights"), lambda _: taken.append("workers")):
        assert asked.wait(10)
        assert taken == []
        ready.set()
        processes.wait_until(lambda: taken == ["weights", "workers"], "both steps", 10)


def test_what_cannot_begin_before_the_block_ends_is_left() -> None:
    taken = list[str]()
    with early_start.begun(lambda: False, lambda _: taken.append("weights")):
        pass
    assert taken == []


def test_a_step_under_way_is_broken_off_where_it_tells_of_itself_and_the_next_is_left() -> None:
    began, taken = threading.Event(), list[str]()

    def endless(note: Note) -> None:
        began.set()
        while True:
            note("some")

    with early_start.begun(lambda: True, endless, lambda _: taken.append("workers")):
        assert began.wait(10)
    assert taken == []


def test_a_step_that_fails_is_left_to_whoever_takes_it_again(capfd: pytest.CaptureFixture[str]) -> None:
    failed, taken = threading.Event(), list[str]()

    def fails(_: Note) -> None:
        failed.set()
        raise OSError("refused")

    with early_start.begun(lambda: True, fails, lambda _: taken.append("workers")):
        assert failed.wait(10)
    assert taken == []
    assert capfd.readouterr().err == ""


def test_the_blocks_own_failure_is_the_one_that_is_seen() -> None:
    with pytest.raises(ValueError, match="Terraform"), early_start.begun(lambda: False):
        raise ValueError("Terraform")
