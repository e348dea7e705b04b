"""Preflight asks for the actions that create each kind of resource in the stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.aws.preflight import permissions
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from tests.infra import needed_actions

PARTS = {
    "network": ("network",),
    "storage": ("storage",),
    "eks": ("instances", "EKS"),
    "ecs": ("instances", "ECS"),
}
"""Parts of `list_actions_by_part` by the stack that they are for."""


@pytest.mark.parametrize("stack_name", PARTS)
def test_preflight_asks_for_what_each_resource_takes(synth_folder: Path, stack_name: str) -> None:
    files = sorted(synth_folder.glob(f"*/stacks/{stack_name}/cdk.tf.json"))
    assert files
    for file in files:
        fleet = load(file.parents[2] / "fleet.yaml", Fleet).value
        by_part = permissions.list_actions_by_part(fleet)
        asked = {action for part in PARTS[stack_name] for action in by_part.get(part, ())}
        missing = needed_actions.find_unasked(json.loads(file.read_text()), asked)
        assert missing == {}, f"{fleet.name}, {file.parents[2].name}"
