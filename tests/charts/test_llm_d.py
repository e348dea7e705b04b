"""framework: llm-d: the pool of engines, and what runs beside the router."""

from __future__ import annotations

from pathlib import Path

import yaml

from llm_serving import paths
from llm_serving.targets import render
from tests.charts.conftest import Render
from tests.kinds.serving.frameworks import test_llm_d

OPTIONS = frozenset(
    {
        "pool-name", "pool-namespace", "pool-group", "endpoint-selector", "grpc-port", "grpc-health-port", "metrics-port",
        "metrics-endpoint-auth", "tracing", "secure-serving", "ha-enable-leader-election", "config-file", "config-text",
    }
)  # fmt: skip
"""Some of the picker's: github.com/llm-d/llm-d-router v0.9.0 (5f4e762), pkg/epp/server/options.go."""


def test_the_pool_has_the_engines_and_the_picker_and_envoy_run_beside_the_router(
    tmp_path: Path, render_chart: Render
) -> None:
    deployment = test_llm_d.resolve(tmp_path, test_llm_d.format_blueprint("tuning: {priority: on}\n"))
    text = render.render_text(deployment, render.find_template(paths.PATTERNS / "aggregated", "eks"))
    manifests = {(item["kind"], item["metadata"]["name"]): item for item in render_chart(yaml.safe_load(text))}
    pool = manifests["InferencePool", "mine"]["spec"]
    assert pool["endpointPickerRef"]["name"] == "mine-picker"
    assert pool["targetPorts"] == [{"number": 8000}]
    pods = {name: manifests["Deployment", f"mine-{name}"]["spec"]["template"] for name in ("router", "worker")}
    selected = [
        name
        for name, pod in pods.items()
        if pool["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ]
    assert selected == ["worker"]
    assert "initContainers" not in pods["worker"]["spec"]
    picker, envoy = pods["router"]["spec"]["initContainers"]
    assert (picker["name"], envoy["name"]) == ("endpoint-picker", "envoy")
    assert {"--pool-name=mine", "--pool-namespace=serving", "--metrics-port=9090"} <= {*picker["args"]}
    assert {word.removeprefix("--").partition("=")[0] for word in picker["args"]} <= OPTIONS
    resources = yaml.safe_load(envoy["args"][-1])["static_resources"]
    [listener] = resources["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8081}
    [filters] = listener["filter_chains"][0]["filters"]
    own, ready, other = filters["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
    assert own["direct_response"] == {"status": 200}, "a router without engines lives"
    assert (ready["match"], ready["route"]["prefix_rewrite"]) == ({"path": "/readiness"}, "/health")
    assert other["route"]["timeout"] == "1800s"
    account = pods["router"]["spec"]["serviceAccountName"]
    [subject] = manifests["RoleBinding", "mine-picker"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, "serving")
    objectives = {name: row["spec"] for (kind, name), row in manifests.items() if kind == "InferenceObjective"}
    assert objectives == {
        "mine-high": {"priority": 1, "poolRef": {"name": "mine"}},
        "mine-low": {"priority": -1, "poolRef": {"name": "mine"}},
    }
