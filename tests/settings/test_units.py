"""Value types: what a person writes comes out in one unit, and nonsense is refused in one kind of error."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from llm_serving.settings.document import FILE_CONTEXT
from llm_serving.settings.units import (
    Bounds,
    Days,
    Duration,
    Machines,
    Memory,
    Rate,
    Share,
    Spend,
    TokenRange,
    Tokens,
    format_bytes,
)

KINDS: dict[str, TypeAdapter[Any]] = {
    "Machines": TypeAdapter(Machines),
    "TokenRange": TypeAdapter(TokenRange),
    "Tokens": TypeAdapter(Tokens),
    "Rate": TypeAdapter(Rate),
    "Share": TypeAdapter(Share),
    "Spend": TypeAdapter(Spend),
    "Memory": TypeAdapter(Memory),
    "Duration": TypeAdapter(Duration),
    "Days": TypeAdapter(Days),
}


def parse_value(kind: str, value: Any) -> Any:
    """What a file's `value` becomes."""
    return KINDS[kind].validate_python(value, context=FILE_CONTEXT)


def get_refusal(kind: str, value: Any) -> str:
    """The message about a file's `value`."""
    with pytest.raises(ValidationError) as error:
        parse_value(kind, value)
    (detail,) = error.value.errors()
    return f"{detail['ctx']['why']}. Fix: {detail['ctx']['write']}."


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("Machines", 4, Bounds(4, 4)),
        ("Machines", "4", Bounds(4, 4)),
        ("Machines", "0..40", Bounds(0, 40)),
        ("Machines", 0, Bounds(0, 0)),
        ("TokenRange", "2k..4k", Bounds(2000, 4000)),
        ("Tokens", 4096, 4096),
        ("Tokens", "8k", 8000),
        ("Tokens", "1m", 1_000_000),
        ("Rate", "20/s", 20.0),
        ("Rate", "0.5 /s", 0.5),
        ("Share", "0%", 0.0),
        ("Share", "0.1%", 0.001),
        ("Share", "100 %", 1.0),
        ("Spend", "500 USD/h", 500.0),
        ("Memory", "512Mi", 512 * 2**20),
        ("Memory", "1.5Gi", 3 * 2**29),
        ("Duration", "30s", 30.0),
        ("Duration", "5min", 300.0),
        ("Duration", "8h", 28800.0),
        ("Days", "30d", 2_592_000.0),
    ],
)
def test_a_shorthand_becomes_a_plain_number(kind: str, value: Any, expected: Any) -> None:
    result = parse_value(kind, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("Machines", "8..0", "the least, 8, is more than the most, 0. Fix: write 0..8."),
        (
            "Machines",
            -1,
            "it is not within 0..100000. Fix: use a number of machines such as 4, or a range such as 0..40.",
        ),
        (
            "Machines",
            "1..200000",
            "it is not within 0..100000. Fix: use a number of machines such as 4, or a range such as 0..40.",
        ),
        (
            "Machines",
            "0...8",
            "it is neither a number of machines nor a range. "
            "Fix: use a number of machines such as 4, or a range such as 0..40.",
        ),
        (
            "TokenRange",
            0,
            "it is not within 1..10000000. Fix: use a number of tokens such as 4, or a range such as 2k..4k.",
        ),
        ("Tokens", "8K", "it is not a number of tokens. Fix: use a number of tokens such as 8k."),
        ("Tokens", 0, "it is not from 1 to 10000000. Fix: use a number of tokens such as 8k."),
        ("Tokens", True, "it is not a number of tokens. Fix: use a number of tokens such as 8k."),
        ("Rate", 20, "it has no unit. Fix: use a rate such as 20/s."),
        ("Rate", "20/min", "it is not a rate. Fix: use a rate such as 20/s."),
        ("Rate", "0/s", "it is not above 0 and up to 1000000/s. Fix: use a rate such as 20/s."),
        ("Share", 0.1, "it has no unit. Fix: use a percentage such as 5%."),
        ("Share", "101%", "it is not up to 100%. Fix: use a percentage such as 5%."),
        ("Share", "-1%", "it is not a percentage. Fix: use a percentage such as 5%."),
        (
            "Spend",
            "500 EUR/h",
            "it is not an amount of money an hour. Fix: use an amount of money an hour such as 500 USD/h.",
        ),
        (
            "Memory",
            "4GB",
            "it is not an amount of memory. Fix: use an amount of memory in Ki, Mi, Gi or Ti, such as 4Gi.",
        ),
        ("Duration", "5m", "it is not a length of time. Fix: use a length of time in s, min, h or d, such as 30s."),
        (
            "Duration",
            "99999d",
            "it is not above 0 and up to 3653d. Fix: use a length of time in s, min, h or d, such as 30s.",
        ),
        ("Days", "1.5d", "it is not a number of days. Fix: use a number of days such as 30d."),
        (
            "Memory",
            "1025Ti",
            "it is not from 1Ki up to 1024Ti. Fix: use an amount of memory in Ki, Mi, Gi or Ti, such as 4Gi.",
        ),
        ("Days", "0d", "it is not from 1d up to 3653d. Fix: use a number of days such as 30d."),
    ],
)
def test_a_refusal_has_a_reason_and_a_fix(kind: str, value: Any, message: str) -> None:
    assert get_refusal(kind, value) == message


def test_digits_of_other_scripts_are_refused() -> None:
    assert get_refusal("Tokens", "٤٠٩٦") == "it is not a number of tokens. Fix: use a number of tokens such as 8k."


def test_code_can_pass_a_plain_number_where_a_file_needs_a_unit() -> None:
    assert KINDS["Share"].validate_python(0.001) == 0.001
    assert KINDS["Duration"].validate_python(30) == 30.0
    assert KINDS["Memory"].validate_python(2**30) == 2**30


@given(least=st.integers(0, 100_000), more=st.integers(0, 100_000))
def test_a_range_round_trips_through_its_text(least: int, more: int) -> None:
    bounds = Bounds(least, min(least + more, 100_000))
    assert parse_value("Machines", str(bounds)) == bounds
    assert KINDS["Machines"].dump_python(bounds) == str(bounds)


@given(st.integers(1, 10_000))
def test_a_k_of_tokens_is_1000(number: int) -> None:
    assert parse_value("Tokens", f"{number}k") == number * 1000


@given(st.decimals(min_value="0", max_value="100", places=4))
def test_a_percentage_is_a_hundredth_to_the_last_digit(number: Any) -> None:
    assert parse_value("Share", f"{number}%") == float(number / 100)


@given(number=st.decimals(min_value="0.001", max_value="1000", places=3), unit=st.sampled_from(["s", "min", "h"]))
def test_a_duration_is_its_number_times_its_unit(number: Any, unit: str) -> None:
    assert parse_value("Duration", f"{number}{unit}") == float(number * {"s": 1, "min": 60, "h": 3600}[unit])


any_value = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.from_regex(r"[0-9]{0,20}[.0-9]{0,5} ?(k|m|%|/s|s|d|Gi| USD/h)?", fullmatch=True),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@pytest.mark.parametrize("kind", KINDS)
@given(value=any_value)
def test_any_value_is_refused_with_a_fix_or_parsed_within_bounds(kind: str, value: Any) -> None:
    try:
        result = parse_value(kind, value)
    except ValidationError as error:
        assert all(detail["ctx"]["why"] and detail["ctx"]["write"] for detail in error.errors())
    else:
        assert all(math.isfinite(end) and end >= 0 for end in (result if isinstance(result, Bounds) else [result]))


@functools.cache
def _get_pattern(kind: str) -> str:
    """The form of a text in the kind's JSON Schema, without its anchors."""
    schema = KINDS[kind].json_schema()
    shapes = schema.get("anyOf", [schema])
    return next(str(shape["pattern"]) for shape in shapes if "pattern" in shape).removeprefix("^").removesuffix("$")


def _list_errors(kind: str, value: Any) -> set[str]:
    try:
        parse_value(kind, value)
    except ValidationError as error:
        return {detail["type"] for detail in error.errors()}
    return set()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_model_accepts_the_format_of_any_text_that_the_schema_accepts(kind: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(_get_pattern(kind), fullmatch=True))
    assert _list_errors(kind, text) <= {"wrong"}, "bounds are beyond a pattern; the form is not"


@pytest.mark.parametrize("kind", KINDS)
@given(
    text=st.text(max_size=12) | st.from_regex(r"[0-9]{0,14}[.0-9]{0,5} ?(k|m|%|/s|s|d|Gi| USD/h)?\n?", fullmatch=True)
)
def test_a_text_that_the_schema_rejects_is_refused_for_its_format(kind: str, text: str) -> None:
    assert (_list_errors(kind, text) == {"form"}) == (re.fullmatch(_get_pattern(kind), text) is None)


@given(
    number=st.decimals(min_value="1", max_value="1024", places=3),
    unit=st.sampled_from([("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40)]),
)
def test_an_amount_of_memory_is_rounded_down_to_whole_bytes(number: Any, unit: tuple[str, int]) -> None:
    word, size = unit
    result = parse_value("Memory", f"{number}{word}")
    assert isinstance(result, int)
    assert 0 <= number * size - result < 1


@given(st.integers(1, 10**15))
def test_formatted_bytes_have_three_digits(count: int) -> None:
    number, unit = format_bytes(count).split()
    size = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[unit]
    assert math.isclose(float(number) * size, count, rel_tol=0.0051)
    assert float(number) < 1000 or unit == "TB"
