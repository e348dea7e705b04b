"""The seam between stacks and what discovers and orders them."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a]
pools: {general: {types: g6e.2xlarge, size: 0..8}}
"""


@pytest.mark.parametrize(
    ("orchestrator", "names"),
    [
        ("eks", ["network", "storage", "eks"]),
        ("ecs", ["network", "storage", "ecs"]),
        ("both", ["network", "storage", "ecs", "eks"]),
    ],
)
def test_a_fleet_has_the_stacks_that_are_enabled_each_after_its_needs(
    tmp_path: Path, orchestrator: str, names: list[str]
) -> None:
    from infra.stacks import base

    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}orchestrator: {orchestrator}\n")
    assert [stack.NAME for stack in base.discover(load(file, Fleet))] == names


def test_every_need_is_the_name_of_a_stack(tmp_path: Path) -> None:
    from infra.stacks import base

    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}orchestrator: both\n")
    stacks = base.discover(load(file, Fleet))
    names = {stack.NAME for stack in stacks}
    assert {need for stack in stacks for need in stack.NEEDS} <= names


def test_stacks_that_need_each_other_are_refused() -> None:
    from infra.stacks import base

    with pytest.raises(graphlib.CycleError, match=r"'a', 'b', 'a'|'b', 'a', 'b'"):
        base.sort_by_needs({"a": ["b"], "b": ["a"]})


def test_a_need_for_a_stack_that_the_fleet_lacks_is_ignored() -> None:
    from infra.stacks import base

    assert base.sort_by_needs({"dns": ["mesh", "network"], "network": []}) == ["network", "dns"]
