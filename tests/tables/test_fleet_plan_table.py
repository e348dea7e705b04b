from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from llm_serving.fleet.loading import load_fleet
from llm_serving.tables import fleet_plan_table

FLEETS = Path(__file__).parents[2] / "infra" / "fleets"


@pytest.mark.parametrize(("fleet", "has_karpenter"), [("eks-multi-az", True), ("ecs-multi-az", False)])
def test_a_plan_on_eks_says_what_else_a_new_size_of_a_pool_takes(
    fleet: str, has_karpenter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without rendered deployments
    document = load_fleet(FLEETS / f"{fleet}.yaml")
    context: Any = SimpleNamespace(fleet=document.value, document=document, account="123456789012", endpoint=None)
    terminal = Console(width=120, record=True, file=io.StringIO())
    terminal.print(fleet_plan_table.render(context, []))
    assert ("`blueprint platform install`" in terminal.export_text()) is has_karpenter
