"""How a deploy on ECS plans: tasks move where a service would be replaced, and stay where they are otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.targets.ecs import stack
from llm_serving.terraform.plan import Plan, ResourceChange

SERVICE = "aws_ecs_service.worker-0"
REPLACED, UPDATED = ("delete", "create"), ("update",)


def build_context(folder: Path) -> FleetContext:
    nothing: Any = None
    return FleetContext(nothing, folder, {"serving-mine": folder}, nothing, nothing, "123456789012")


def write_stack(folder: Path, variables: dict[str, Any]) -> None:
    (folder / "cdk.tf.json").write_text(json.dumps({"//": {"needs": []}, "variable": variables}))


def test_a_stack_without_the_variable_gets_no_value_that_terraform_would_warn_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_plans, "create", lambda _: [StackPlan("streaming-shop", 1, Plan({}))])
    write_stack(tmp_path, {})
    stack._plan(build_context(tmp_path))
    assert json.loads((tmp_path / "blueprint.auto.tfvars.json").read_text()) == {}


@pytest.mark.parametrize(
    ("address", "without_force", "forced"),
    [(SERVICE, REPLACED, True), (SERVICE, UPDATED, False), ("aws_ecs_task_definition.worker-task", REPLACED, False)],
)
def test_tasks_are_replaced_only_where_their_service_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, without_force: tuple[str, ...], forced: bool
) -> None:
    def create(context: FleetContext) -> list[StackPlan]:
        [folder] = context.folders.values()
        force = json.loads((folder / "blueprint.auto.tfvars.json").read_text())["force_new_deployment"]
        actions = UPDATED if force else without_force
        return [StackPlan("serving-mine", 1, Plan({address: ResourceChange(address, actions)}))]

    monkeypatch.setattr(fleet_plans, "create", create)
    write_stack(tmp_path, {"force_new_deployment": {"type": "bool"}})
    planned = stack._plan(build_context(tmp_path))
    assert planned.plan.resources[address].actions == (UPDATED if forced else without_force)
    variables = json.loads((tmp_path / "blueprint.auto.tfvars.json").read_text())
    assert variables == {"force_new_deployment": forced}
