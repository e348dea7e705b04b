from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from llm_serving.fleet.loading import load_fleet
from llm_serving.operations.plans import StackPlan
from llm_serving.tables import fleet_plan_table
from llm_serving.terraform.plan import Plan, ResourceChange

FLEETS = Path(__file__).parents[2] / "infra" / "fleets"


def render(fleet: str, plans: list[StackPlan]) -> str:
    document = load_fleet(FLEETS / f"{fleet}.yaml")
    context: Any = SimpleNamespace(fleet=document.value, document=document, account="123456789012", endpoint=None)
    terminal = Console(width=120, record=True, file=io.StringIO())
    terminal.print(fleet_plan_table.render(context, plans))
    return terminal.export_text()


@pytest.mark.parametrize(("fleet", "is_on_eks"), [("eks-multi-az", True), ("ecs-multi-az", False)])
def test_a_plan_on_eks_says_what_else_a_new_size_of_a_pool_takes_and_what_charts_cost(
    fleet: str, is_on_eks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without rendered deployments
    text = " ".join(render(fleet, []).split())
    assert ("`blueprint platform install`" in text) is is_on_eks
    charts = "load balancers of Gateways, volumes of charts, " if is_on_eks else ""
    assert f"Excludes {charts}S3, ECR, logs, metrics and traffic" in text


def test_a_plan_is_shown_where_no_price_of_the_region_is_known(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    pools = "pools:\n  general: {types: g6.xlarge, size: 0..4}\n"
    file.write_text(f"name: demo\nregion: eu-north-1\nzones: [eu-north-1a, eu-north-1b]\n{pools}")
    context: Any = SimpleNamespace(fleet=(document := load_fleet(file)).value, document=document)
    assert fleet_plan_table.describe_cost(context).endswith("no instance runs); no price for g6.xlarge")


def build_plan(stack: str, **actions: tuple[str, ...]) -> StackPlan:
    changes = {
        name.replace("__", "."): ResourceChange(name.replace("__", "."), verbs) for name, verbs in actions.items()
    }
    return StackPlan(stack, len(changes), Plan(changes))


def test_a_plan_says_which_instances_it_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `tags` of the fleet, which its instances have."""
    monkeypatch.chdir(tmp_path)
    template = "aws_launch_template__{}-template".format
    plans = [
        build_plan("eks", **{template("system"): ("update",), template("h100"): ("update",)}),
        build_plan("eks", aws_eks_node_group__old=("delete",)),
        build_plan("ecs", **{template("general"): ("update",), template("new"): ("create",)}),
    ]
    lines = render("eks-multi-az", plans).splitlines()
    assert [line for line in lines if line.startswith("drain")] == [
        "drain eks: every instance of system and h100, one of a group at a time",
        "drain eks: every instance of old, all at once",
        "drain ecs: every instance of general, a tenth of a group at a time, at least one",
    ]
    assert "drain" not in render("eks-multi-az", [build_plan("eks", aws_eks_node_group__system=("update",))])


def test_what_a_plan_destroys_comes_before_what_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {f"aws_route__{number:02}": ("update",) for number in range(30)}
    text = render("eks-multi-az", [build_plan("network", **changes, aws_subnet__z=("delete",))])
    listed = [line.split()[0] for line in text.splitlines() if " network: " in line]
    assert (listed[0], len(listed)) == ("destroyed", 20)
    assert "and 11 more in network" in text
