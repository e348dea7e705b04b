"""The matrix in a terminal: names whole, every reason once."""

from __future__ import annotations

import pytest
from rich.console import Console

from llm_serving.tables.matrix_table import MatrixTable
from llm_serving.targets.matrix import Cell

FLEETS = ("ads-scale", "ecs-multi-az", "eks-multi-az", "mixed", "one-gpu", "p5-efa", "trn2")
LONG_REASON = (
    "ECS gives each task a network interface of its own on the machine's first card, which has no room for so many"
)
SHORT_REASON = "the pool grows to 1 machine"


def render(width: int) -> list[str]:
    cells = [
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
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(MatrixTable(cells))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal_with_every_name_whole_and_every_reason_once(width: int) -> None:
    lines = render(width)
    text = " ".join(" ".join(lines).split())
    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    for name in ("aggregated", "disaggregated", "distributed", "multi-model", *FLEETS, SHORT_REASON, LONG_REASON):
        assert text.count(f" {name} ") + text.endswith(f" {name}") >= 1, name
    assert text.count(SHORT_REASON) == text.count(LONG_REASON) == 1
    assert "76 of 84 render; yes* with the preset trainium2." in text
    assert " ecs yes yes yes 1 2 1 yes yes* " in text


def test_fleets_have_letters_only_where_their_names_do_not_fit() -> None:
    assert not any("A ads-scale" in line for line in render(120))
    assert any("A ads-scale" in line for line in render(80))
