from __future__ import annotations

import io

from rich.console import Console

from llm_serving.cli.commands import rehearse
from llm_serving.rehearsal.run import Rehearsal, StackResult


def render(*rehearsals: Rehearsal) -> str:
    output = io.StringIO()
    Console(file=output, width=80).print(rehearse.render(rehearsals))
    return output.getvalue()


def build_rehearsal(fleet: str, **stacks: StackResult) -> Rehearsal:
    return Rehearsal(fleet, "Terraform 1.11.4", "a mirror", stacks, {}, {})


def test_each_stack_is_a_line_with_its_counts_and_each_gap_has_its_reason() -> None:
    text = render(
        build_rehearsal(
            "first", network=StackResult(45, 45, 45, {}), eks=StackResult(66, 66, 56, {"aws_eks_addon": 10})
        ),
        build_rehearsal("second", network=StackResult(1, 1, 1, {})),
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["first", "network", "45", "45", "45", "0"] in lines
    assert ["eks", "66", "66", "56", "10"] in lines
    assert ["total", "112", "112", "102", "10"] in lines
    assert "not emulated: 10 aws_eks_addon: the embedded EKS has no add-ons" in text


def test_a_stack_that_was_not_applied_shows_a_dash() -> None:
    text = render(build_rehearsal("first", network=StackResult(45, 45, None, {})))
    assert ["first", "network", "45", "45", "-", "0"] in [line.split() for line in text.splitlines()]
