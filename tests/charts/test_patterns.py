"""Every pattern that renders for EKS on an example fleet: values that the chart takes, objects that Kubernetes takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from blueprints import render
from scripts import matrix
from scripts.matrix import Cell
from tests.charts import objects
from tests.charts.conftest import Render

CELLS = [cell for cell in matrix.cells() if cell.target == "eks" and cell.deployment]
each_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.pattern}-{cell.fleet}")


def values(cell: Cell) -> dict[str, Any]:
    assert cell.deployment
    text = render.text(cell.deployment, render.template(matrix.PATTERNS / cell.pattern, "eks"))
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def pods(made: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in made:
        if one["kind"] == "Deployment":
            yield one["spec"]["template"]
        if one["kind"] == "LeaderWorkerSet":
            group = one["spec"]["leaderWorkerTemplate"]
            yield from (group["leaderTemplate"], group["workerTemplate"])


def test_each_pattern_with_a_template_for_eks_renders_on_an_example_fleet() -> None:
    wanted = {folder.name for folder in matrix.patterns() if "eks" in render.targets(folder)}
    assert {cell.pattern for cell in CELLS} == wanted


@each_cell
def test_kubernetes_takes_what_the_chart_makes_of_it(rendered: Render, location: str, cell: Cell) -> None:
    assert objects.mistakes(yaml.safe_dump_all(rendered(values(cell))), location) == []


@each_cell
def test_its_pods_ask_for_the_accelerators_and_run_the_commands_of_the_deployment(rendered: Render, cell: Cell) -> None:
    assert cell.deployment
    made = list(pods(rendered(values(cell))))
    found = {tuple(pod["spec"]["containers"][0]["command"]): pod["spec"] for pod in made}
    for role in cell.deployment.roles:
        for process in role.processes:
            spec = found[process.command]
            limits = spec["containers"][0]["resources"]["limits"]
            assert int(limits.get(role.resources.device or "none", 0)) == role.resources.accelerators
            assert int(limits.get("vpc.amazonaws.com/efa", 0)) == role.resources.efa
            if role.kind == "engine":
                assert spec["nodeSelector"] == role.labels
                assert spec["serviceAccountName"] == cell.deployment.place.service_account


def test_a_typo_in_a_users_template_does_not_get_past_the_chart(rendered: Render) -> None:
    wrong = values(CELLS[0])
    wrong["roles"]["worker"]["replica"] = 3
    with pytest.raises(AssertionError, match="replica"):
        rendered(wrong)
