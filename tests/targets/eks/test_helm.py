"""What helm says of a release, and what would change it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.eks import helm


@pytest.mark.parametrize(("replicas", "is_lost"), [("replicas: 3", True), ("replicas: 1", False), ("", False)])
def test_a_diff_says_that_replicas_end_where_an_autoscaler_takes_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: str, is_lost: bool
) -> None:
    workload = "kind: Deployment\nmetadata: {{name: {}}}\nspec: {{{}}}\n---\n"
    router = workload.format("mine-router", "replicas: 2")
    scaled = "kind: ScaledObject\nmetadata: {name: mine-worker}\nspec: {scaleTargetRef: {name: mine-worker}}\n"
    rendered = router + workload.format("mine-worker", "") + scaled
    monkeypatch.setattr(helm, "render_objects", lambda _: rendered)
    monkeypatch.setattr(helm, "_diff_cluster", lambda *_: [])
    plan: Any = SimpleNamespace(rendered=tmp_path / "eks.yaml")
    deployed = router + workload.format("mine-worker", replicas)
    changes = helm.diff(plan, helm.Release(1, True, deployed))
    warnings = [line for line in changes.splitlines() if line.startswith("! ")]
    assert [line.partition(":")[0] for line in warnings] == ["! Deployment mine-worker"] * is_lost
    if is_lost:
        assert "its 3 replicas become 1 at once" in warnings[0] and "blueprint shift" in warnings[0]


def test_a_diff_leaves_out_replicas_beside_a_scaling_adapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The chart reads them in the cluster, which rendering does not."""
    graph = (
        "kind: Graph\nmetadata: {{name: mine}}\nspec: {{components: [{{name: a, {}}}, {{name: b, replicas: {}}}]}}\n"
    )
    monkeypatch.setattr(helm, "render_objects", lambda _: graph.format("scalingAdapter: {}", 1))
    monkeypatch.setattr(helm, "_diff_cluster", lambda *_: [])
    plan: Any = SimpleNamespace(rendered=tmp_path / "eks.yaml")
    for others, is_changed in ((1, False), (2, True)):
        deployed = graph.format("scalingAdapter: {}, replicas: 3", others)
        assert bool(helm.diff(plan, helm.Release(1, True, deployed))) == is_changed


@pytest.mark.parametrize(
    ("statuses", "revision", "settled"),
    [
        (["superseded", "deployed"], 2, True),
        (["deployed", "failed"], 1, False),
        (["superseded", "pending-upgrade"], 1, False),  # killed between two of helm's notes
        (["pending-install"], None, False),
    ],
)
def test_the_previous_release_is_the_last_deployed_revision(
    monkeypatch: pytest.MonkeyPatch, statuses: list[str], revision: int | None, settled: bool
) -> None:
    history = [{"revision": number, "status": status} for number, status in enumerate(statuses, 1)]
    monkeypatch.setattr(helm, "list_revisions", lambda _: history)
    monkeypatch.setattr(helm, "build_command", lambda command, _: ["helm", *command.split()])
    monkeypatch.setattr(helm, "run_query", lambda words, _: words[-1])
    plan: Any = SimpleNamespace(aws=SimpleNamespace(child_env={}))
    manifest = f"--revision={revision}" if revision else ""
    assert helm.read(plan) == helm.Release(revision, settled, manifest)


def test_a_release_whose_removal_was_interrupted_is_no_earlier_one_to_return_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Helm upgrades none of it, for lack of a deployed revision."""
    history = [{"revision": 1, "status": "superseded"}, {"revision": 2, "status": "uninstalling"}]
    monkeypatch.setattr(helm, "list_revisions", lambda _: history)
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(name="mine"))
    with pytest.raises(CheckFailed) as error:
        helm.read(plan)
    assert str(error.value) == (
        "mine: it is being removed, or its removal was interrupted. Nothing was changed. Fix: run blueprint destroy, and "
        "deploy it again."
    )


def test_objects_are_rendered_for_the_fleets_version_of_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helm 3.17 assumes Kubernetes 1.32, for which the charts are too new, whatever the cluster has."""
    monkeypatch.setattr(helm, "build_command", lambda command, _: ["helm", command])
    monkeypatch.setattr(helm, "get_chart", lambda _: "chart")
    monkeypatch.setattr(helm, "run_query", lambda words, *_, **__: " ".join(words))
    fleet = SimpleNamespace(value=SimpleNamespace(eks=SimpleNamespace(version="1.35")))
    plan: Any = SimpleNamespace(fleet=fleet, text="", aws=SimpleNamespace(child_env={}))
    assert helm.render_objects(plan) == "helm template chart --kube-version=1.35 --values -"


@pytest.mark.parametrize(
    ("chart", "other"),
    [("inference-1.4.0-rc.1", ""), ("inference-1.4.0+build-7", ""), ("inference-proxy-1.4.0-rc.1", "inference-proxy")],
)
def test_a_release_is_of_the_chart_whose_name_stands_before_its_version(
    monkeypatch: pytest.MonkeyPatch, chart: str, other: str
) -> None:
    """Also of one that a team installed from its registry by hand, before its release."""
    history = [{"revision": 1, "chart": chart, "status": "deployed"}]
    monkeypatch.setattr(helm.cluster, "require_own", lambda *_: None)
    monkeypatch.setattr(helm, "build_command", lambda command, _: ["helm", command])
    monkeypatch.setattr(helm, "run_query", lambda *_: json.dumps(history))
    names = {"deployment": SimpleNamespace(chart="inference", name="mine"), "blueprint": SimpleNamespace(path="mine")}
    aws, fleet = SimpleNamespace(child_env={}, kubeconfig=""), SimpleNamespace(value=None)
    plan: Any = SimpleNamespace(**names, aws=aws, fleet=fleet)
    if not other:
        assert helm.list_revisions(plan) == history
        return
    with pytest.raises(CheckFailed, match=f"a release of the chart {other} has this name"):
        helm.list_revisions(plan)
