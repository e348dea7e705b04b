"""The matrix in a terminal: names whole, every reason once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from llm_serving.cli.commands.matrix import MatrixTable
from llm_serving.targets import matrix
from llm_serving.targets.matrix import Cell

FLEETS = ("ads-scale", "ecs-multi-az", "eks-multi-az", "mixed", "one-gpu", "p5-efa", "trn2")
LONG_REASON = (
    "ECS gives each task a network interface of its own on the machine's first card, which has no room for so many"
)
SHORT_REASON = "the pool grows to 1 machine"


def build_cells() -> list[Cell]:
    return [
        Cell(
            pattern,
            "serving",
            target,
            fleet,
            "vllm",
            "plain",
            None,
            "; ".join(reasons),
            reasons=reasons,
            preset="trainium2" if fleet == "trn2" else "",
        )
        for pattern in ("aggregated", "disaggregated", "distributed", "multi-model")
        for target in ("local", "eks", "ecs")
        for fleet in FLEETS
        for reasons in [
            {"one-gpu": (SHORT_REASON,), "mixed": (SHORT_REASON, LONG_REASON)}.get(fleet, ()) if target == "ecs" else ()
        ]
    ]


def render(width: int, cells: Sequence[Cell] = ()) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(MatrixTable(cells or build_cells()))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_has_every_reason_once(width: int) -> None:
    lines = render(width)
    text = " ".join(" ".join(lines).split())
    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    for name in ("aggregated", "disaggregated", "distributed", "multi-model", *FLEETS, SHORT_REASON, LONG_REASON):
        assert text.count(f" {name} ") + text.endswith(f" {name}") >= 1, name
    assert text.count(SHORT_REASON) == text.count(LONG_REASON) == 1
    assert "76 of 84 render: 28 run on this machine, 48 are for AWS; yes* with preset trainium2." in text
    assert " ecs yes yes yes 1 2 1 yes yes* " in text


def test_it_says_what_a_framework_brings() -> None:
    text = " ".join(" ".join(render(120)).split())
    assert (
        "framework llm-d brings admission before the engines, by class of request first, then in turn for each" in text
    )
    assert "framework plain brings" not in text


def test_fleets_have_letters_only_if_their_names_do_not_fit() -> None:
    assert not any("A ads-scale" in line for line in render(120))
    assert any("A ads-scale" in line for line in render(80))


def test_notes_wrap_at_80_columns_in_a_wider_terminal() -> None:
    lines = render(120)
    notes = lines[next(number for number, line in enumerate(lines) if " render: " in line) + 1 :]
    assert max(len(line.rstrip()) for line in notes) <= 80


def test_kind_engine_and_framework_are_listed_under_the_pattern() -> None:
    lines = [line.split() for line in render(80)]
    first = next(number for number, words in enumerate(lines) if words[:1] == ["aggregated"])
    assert [words[:2] for words in lines[first : first + 3]] == [
        ["aggregated", "local"],
        ["serving", "eks"],
        ["vllm,", "plain"],
    ]


def test_an_engine_and_framework_that_never_render_are_one_line_for_all_such_patterns() -> None:
    refused = [
        Cell(pattern, "serving", "eks", "mixed", engine, "ray", None, engine, reasons=(engine,))
        for pattern in ("aggregated", "distributed")
        for engine in ("sglang", "vllm")
    ]
    rendered = replace(refused[-1], reasons=())
    lines = render(100, [*refused[:-1], rendered])
    assert [line.split() for line in lines if "sglang, ray" in line] == [
        ["sglang,", "ray", "aggregated,", "distributed", "1"]
    ]
    assert [line.split()[:2] for line in lines if line.startswith(" distributed")] == [["distributed", "eks"]]
    assert "engine, framework" not in " ".join(render(100, [rendered])), "nothing is refused"


def test_a_reason_comes_with_its_fix() -> None:
    cell = next(cell for cell in matrix.build_cells() if cell.reasons and cell.pool == "" and ": " in cell.reason)
    assert all(". Fix: " in reason for reason in cell.reasons)
    assert {"pattern", "kind", "target", "fleet", "engine", "framework", "pool", "preset", "reason", "note"} == set(
        cell.build_payload()
    )


def test_no_name_is_cut_beside_cells_with_many_reasons() -> None:
    reasons = tuple(f"reason {number}" for number in range(5))
    cells = [
        replace(cell, engine="tensorrt-llm", framework="dynamo", reasons=reasons if cell.target == "ecs" else ())
        for cell in build_cells()
    ]
    lines = render(80, cells)
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)
    assert any(line.startswith(" tensorrt-llm, dynamo ") for line in lines)
