"""The charts as subcharts: two aliases in one release have objects, pods and metrics of their own."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from tests.charts.conftest import PRESETS, ROUTER_IMAGE, Helm
from tests.charts.objects import list_pods

SERVICE = {
    "name": "api",
    "role": "api",
    "image": "a/b:1",
    "command": ["x"],
    "port": 8080,
    "probe": {"path": "/", "body": {}, "health": "/health", "deadline_s": 60},
    "resources": {"cpus": 1, "memory_bytes": 2**30},
    "replicas": {"min": 1},
    "stop": {"stop_s": 20},
}


def render_umbrella(helm: Helm, folder: Path, chart: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Render a chart under an alias for each key of `values`, in the release `mine`."""
    umbrella = folder / "umbrella"
    umbrella.mkdir()
    shutil.copytree(paths.CHARTS / chart, umbrella / "charts" / chart)
    [version] = [
        line.split()[1]
        for line in (paths.CHARTS / chart / "Chart.yaml").read_text().splitlines()
        if line.startswith("version:")
    ]
    dependencies = [{"name": chart, "alias": alias, "version": version} for alias in values]
    definition = {"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": dependencies}
    (umbrella / "Chart.yaml").write_text(yaml.safe_dump(definition))
    (umbrella / "values.yaml").write_text(yaml.safe_dump(values))
    run = helm("template", "mine", str(umbrella), "--namespace", "serving")
    assert run.returncode == 0, run.stderr
    return [document for document in yaml.load_all(run.stdout, yaml.CSafeLoader) if document]


def find_duplicates(manifests: list[dict[str, Any]]) -> list[tuple[str, str]]:
    counts = Counter((manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests)
    return [name for name, count in counts.items() if count > 1]


@pytest.mark.parametrize("overrides", [{}, {"chat": "talk", "code": "write"}])
def test_two_aliases_of_one_release_share_no_object_and_no_pod(
    helm: Helm, tmp_path: Path, overrides: dict[str, str]
) -> None:
    preset = yaml.safe_load((PRESETS / "qwen3-0.6b-g6e.yaml").read_text())
    preset |= {"defaults": {"router": {"image": ROUTER_IMAGE}}, "monitoring": {"podMonitors": True, "rules": True}}
    values = {alias: {**preset, "fullnameOverride": overrides.get(alias, "")} for alias in ("chat", "code")}
    manifests = render_umbrella(helm, tmp_path, "inference", values)
    assert len(manifests) > 30
    assert find_duplicates(manifests) == []
    pods = list_pods(manifests)
    for item in manifests:
        if item["kind"] in ("Service", "Deployment", "PodDisruptionBudget", "PodMonitor"):
            selector = item["spec"]["selector"]
            selected = [
                pod
                for pod in pods
                if selector.get("matchLabels", selector).items() <= pod["metadata"]["labels"].items()
            ]
            assert len(selected) == 1, (item["kind"], item["metadata"]["name"])
    for pod in pods:
        [container] = pod["spec"]["containers"]
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert variables["RELEASE"] == pod["metadata"]["labels"]["app.kubernetes.io/instance"], "what routers select by"
    names = {pod["metadata"]["labels"]["app.kubernetes.io/instance"] for pod in pods}
    assert names == (set(overrides.values()) or {"mine-chat", "mine-code"})


def test_two_batches_of_one_release_have_the_names_that_their_stacks_give_roles_to(helm: Helm, tmp_path: Path) -> None:
    values = {
        alias: {"name": name, "fullnameOverride": name, "services": [SERVICE]}
        for alias, name in (("first", "ads"), ("second", "search"))
    }
    manifests = render_umbrella(helm, tmp_path, "batch", values)
    assert find_duplicates(manifests) == []
    accounts = {item["metadata"]["name"] for item in manifests if item["kind"] == "ServiceAccount"}
    assert accounts == {"ads-api", "search-api"}
    labels = [pod["metadata"]["labels"] for pod in list_pods(manifests)]
    assert {entry["app.kubernetes.io/name"] for entry in labels} == {"batch"}, "by which charts/inference lets them in"
    assert all(first != second for first, second in itertools.combinations(labels, 2))
