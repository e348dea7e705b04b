"""Every pattern that renders for EKS on an example fleet: values that the chart takes, objects that Kubernetes takes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.targets import matrix
from llm_serving.targets.matrix import Cell
from llm_serving.targets.on_aws import plan
from llm_serving.workloads import render
from tests.charts import objects
from tests.charts.conftest import Render

CELLS = [cell for cell in matrix.cells() if cell.target == "eks" and cell.deployment]
each_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.pattern}-{cell.fleet}")


def values(cell: Cell) -> dict[str, Any]:
    assert cell.deployment
    text = render.text(cell.deployment, render.template(paths.PATTERNS / cell.pattern, "eks"))
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


def test_by_events_the_router_follows_the_pods_of_a_service_and_no_client_hears_them(
    rendered: Render, tmp_path: Path
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    file = tmp_path / "mine" / "blueprint.yaml"
    file.write_text(file.read_text().replace("policy: cache-aware", "policy: kv-aware"))
    fleet = paths.PATTERNS.parent / "fleet.yaml"
    text = plan.write(plan.plan(file.parent, fleet, target="eks", root=tmp_path, account="123456789012")).read_text()
    made = rendered(yaml.safe_load(text))
    found = {(one["kind"], one["metadata"]["name"]): one for one in made}
    [router] = [one for (kind, name), one in found.items() if kind == "Deployment" and name.endswith("-router")]
    [told] = [word for word in router["spec"]["template"]["spec"]["containers"][0]["command"] if "--worker=" in word]
    service = found["Service", told.removeprefix("--worker=").partition(".")[0]]
    assert service["spec"]["clusterIP"] == "None", "an address a pod"
    engine = found["Deployment", service["metadata"]["name"]]["spec"]["template"]
    assert {5557, 5558} <= {port["containerPort"] for port in engine["spec"]["containers"][0]["ports"]}
    ingress = found["NetworkPolicy", service["metadata"]["name"]]["spec"]["ingress"]
    here = {"app.kubernetes.io/name": "inference", "app.kubernetes.io/instance": "mine"}
    every_port = [rule["from"] for rule in ingress if "ports" not in rule]
    assert every_port == [[{"podSelector": {"matchLabels": here}}]], "the release's own pods"
    others = {port["port"] for rule in ingress for port in rule.get("ports", ())}
    assert not others & {5557, 5558}


def test_a_typo_in_a_users_template_does_not_get_past_the_chart(rendered: Render) -> None:
    wrong = values(CELLS[0])
    wrong["roles"]["worker"]["replica"] = 3
    with pytest.raises(AssertionError, match="replica"):
        rendered(wrong)
