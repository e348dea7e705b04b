from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Bounds
from llm_serving.validation.load import trace
from llm_serving.validation.load.trace import TraceRow

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("file", "rows"),
    [
        ("azure.csv", [TraceRow(0, 374, 44), TraceRow(4.314579, 396, 109), TraceRow(4.541877, 879, 55)]),
        ("burstgpt.csv", [TraceRow(0, 472, 18), TraceRow(40, 1087, 230), TraceRow(113, 417, 276)]),
        ("burstgpt-3.csv", [TraceRow(0, 906, 446), TraceRow(51, 36, 29), TraceRow(82, 1779, 123)]),
        (
            "mooncake.jsonl",
            [
                TraceRow(0, 916, 265, (0, 2934)),
                TraceRow(3, 2885, 613, (0, 2935, 2936, 2937, 2938, 2939)),
                TraceRow(3, 8619, 593, (0, *range(2940, 2956))),
            ],
        ),
    ],
)
def test_published_traces_are_read_with_times_from_zero_and_lengths(file: str, rows: list[TraceRow]) -> None:
    read = trace.read(DATA / file, 3)
    assert [row.at_s for row in read] == pytest.approx([row.at_s for row in rows], abs=1e-6)
    assert [row[1:] for row in read] == [row[1:] for row in rows]


def test_times_of_the_2024_trace_have_a_zone(tmp_path: Path) -> None:
    file = tmp_path / "week.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.003948+00:00,2376,163\n2024-05-12 00:00:01+00:00,10,20\n"
    )
    assert [row.at_s for row in trace.read(file, 9)] == pytest.approx([0, 0.996052])


def test_failed_requests_are_left_out_and_rows_are_put_in_order(tmp_path: Path) -> None:
    file = tmp_path / "burst.csv"
    file.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "9,GPT-4,30,3,33,API log\n7,GPT-4,20,0,20,API log\n5,GPT-4,10,1,11,API log\n"
    )
    assert trace.read(file, 9) == [TraceRow(0, 10, 1), TraceRow(4, 30, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,b\n1,2\n",
            r":1:1: a,b: it is not a trace of Azure LLM inference, Mooncake or BurstGPT\. Fix: use a trace as",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\nsoon,1,1\n",
            r":3:1: soon,1,1: it is not a request as Azure LLM inference traces have it",
        ),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1}\n{}\n',
            r":2:1: {}: it is not a request as Mooncake traces have it",
        ),
        ("Timestamp,Model,Request tokens,Response tokens\n1,a,1,0\n", "it has no requests"),
        ("Timestamp,Model,Request tokens,Response tokens\nnan,a,1,1\n", r":2:1: nan,a,1,1: it is not a request"),
        ("Timestamp,Model,Request tokens,Response tokens\n1,a,1,-1\n", r":2:1: 1,a,1,-1: it is not a request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", r":2:1: 1,2: it is not a request"),
        ('{"timestamp": Infinity, "input_length": 1, "output_length": 1}', "it is not a request as Mooncake"),
        ('{"timestamp": 0, "input_length": Infinity, "output_length": 1}', "it is not a request as Mooncake"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n[1]\n', r":2:1: \[1\]: it is not a request"),
    ],
)
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        trace.read(file, 9)


def test_a_field_longer_than_csv_takes_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "1" * 200_000)
    with pytest.raises(InputError, match=":2:1: it is not a request as Azure"):
        trace.read(file, 9)


def test_lengths_are_moved_into_the_bounds() -> None:
    assert trace.cut(TraceRow(1, 5, 900), Bounds(10, 20), Bounds(1, 50)) == TraceRow(1, 10, 50)
    assert trace.cut(TraceRow(1, 15, 30), Bounds(10, 20), Bounds(1, 50)) == TraceRow(1, 15, 30)
