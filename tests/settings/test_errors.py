"""Refusals: one line each, with an exit code that scripts may rely on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving.settings.errors import CheckFailed, ErrorCollector, InputError, Mistake, Unavailable, build_file_error

MISTAKE = Mistake(Path("a.yaml"), 3, 7, "pools.general.size", '"8..0"', "the least is more than the most", "0..8")
(OTHER,) = build_file_error(Path("b.yaml"), "it is empty", "something").mistakes


def test_exit_codes_are_stable() -> None:
    assert (CheckFailed.exit_code, InputError.exit_code, Unavailable.exit_code) == (1, 2, 3)


def test_a_mistake_names_file_line_column_value_reason_and_fix() -> None:
    assert str(MISTAKE) == ('a.yaml:3:7: pools.general.size: "8..0": the least is more than the most. Fix: 0..8.')
    assert str(OTHER) == "b.yaml: it is empty. Fix: something."


def test_a_mistake_is_one_line_even_with_newlines_in_path_and_key() -> None:
    mistake = Mistake(Path("a\nb\x1b[31m.yaml"), 1, 1, "x\ny", "", "it is wrong", "it right")
    assert str(mistake) == "a\\nb\\x1b[31m.yaml:1:1: x\\ny: it is wrong. Fix: it right."


def test_a_mistake_is_plain_data_for_programs() -> None:
    assert MISTAKE.to_dict() == {
        "file": "a.yaml",
        "line": 3,
        "column": 7,
        "field": "pools.general.size",
        "value": '"8..0"',
        "why": "the least is more than the most",
        "write": "0..8",
        "message": str(MISTAKE),
    }
    assert (OTHER.to_dict()["line"], OTHER.to_dict()["column"]) == (None, None), "a file as a whole has neither"


def test_an_input_error_shows_each_of_its_mistakes_on_a_line() -> None:
    error = InputError([MISTAKE, OTHER])
    assert error.mistakes == (MISTAKE, OTHER)
    assert str(error) == f"{MISTAKE}\n{OTHER}"
    assert (str(InputError("no such thing")), InputError("no such thing").mistakes) == ("no such thing", ())


def raise_mistakes(*parts: Mistake | str) -> Callable[[], int]:
    """A question whose input is wrong."""

    def ask() -> int:
        raise InputError(parts)

    return ask


def test_mistakes_of_several_checks_are_reported_together_each_once() -> None:
    gather = ErrorCollector()
    assert gather(lambda: 1) == 1
    gather.raise_if_any()
    assert gather(raise_mistakes(MISTAKE)) is None
    assert gather(raise_mistakes("no such thing", MISTAKE)) is None
    with pytest.raises(InputError) as error:
        gather.raise_if_any()
    assert str(error.value) == f"{MISTAKE}\nno such thing"
    assert error.value.mistakes == (MISTAKE,)
    assert error.value.to_list() == [MISTAKE.to_dict(), {"message": "no such thing"}]
