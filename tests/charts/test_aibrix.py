"""framework: aibrix: what its gateway finds engines by, and what runs beside the router."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.targets import render
from tests.charts.conftest import Render
from tests.kinds.serving.frameworks import test_aibrix

READ_LABELS = frozenset({"model.aibrix.ai/port", "model.aibrix.ai/metric-port", "model.aibrix.ai/engine"})
"""Labels of a pod that the gateway reads beside its model's name: pkg/constants/model.go of AIBrix v0.7.0 (c546589)."""

REQUEST_PATHS = frozenset(
    {
        "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/classify",
        "/v1/images/generations", "/v1/video/generations",
    }
)  # fmt: skip
"""Paths whose requests it reads: validateRequestBody of pkg/plugins/gateway/util.go."""

Manifests = dict[tuple[str, str], Any]


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    deployment = test_aibrix.resolve(tmp_path, test_aibrix.format_blueprint())
    text = render.render_text(deployment, render.find_template(paths.PATTERNS / "aggregated", "eks"))
    return dict(yaml.safe_load(text))


@pytest.fixture
def manifests(values: dict[str, Any], render_chart: Render) -> Manifests:
    return {(item["kind"], item["metadata"]["name"]): item for item in render_chart(values)}


def get_pod(manifests: Manifests, role: str) -> Any:
    return manifests["Deployment", f"mine-{role}"]["spec"]["template"]


def test_the_gateway_finds_the_engines_pods_and_no_other(manifests: Manifests) -> None:
    engine = get_pod(manifests, "worker")["metadata"]
    own = {name: value for name, value in engine["labels"].items() if "aibrix" in name}
    assert own == dict(zip(sorted(READ_LABELS), ["vllm", "8000", "8000"], strict=True))
    # A label has no room for the / of this name; the gateway then reads an annotation.
    assert engine["annotations"]["model.aibrix.ai/name"] == "Qwen/Qwen3-0.6B"
    router = get_pod(manifests, "router")["metadata"]
    assert not [name for name in (*router["labels"], *router["annotations"]) if "aibrix" in name]
    # By these of a Deployment AIBrix would make a route for the model, and end it with the first of two Deployments.
    labels = manifests["Deployment", "mine-worker"]["metadata"]["labels"]
    assert not [name for name in labels if "aibrix" in name]


def test_pods_that_do_not_answer_requests_are_none_of_the_gateways(
    values: dict[str, Any], render_chart: Render
) -> None:
    values["roles"]["worker"] |= {"nodes": 2, "workerCommand": ["vllm", "serve", "--headless"]}
    [group] = [item for item in render_chart(values) if item["kind"] == "LeaderWorkerSet"]
    templates = group["spec"]["leaderWorkerTemplate"]
    assert "model.aibrix.ai/name" in templates["leaderTemplate"]["metadata"]["annotations"]
    assert "model.aibrix.ai/name" not in templates["workerTemplate"]["metadata"]["annotations"]


def test_envoy_asks_the_gateway_for_this_releases_engines_by_the_routers_policy(manifests: Manifests) -> None:
    spec = get_pod(manifests, "router")["spec"]
    [envoy] = spec["initContainers"]
    resources = yaml.safe_load(envoy["args"][-1])["static_resources"]
    requests, _ = resources["listeners"]
    assert requests["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8081}
    manager = requests["filter_chains"][0]["filters"][0]["typed_config"]
    alive, chosen, other = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert alive["direct_response"] == {"status": 200}, "a router without engines lives"
    pattern = chosen["match"]["safe_regex"]["regex"]
    assert {path for path in REQUEST_PATHS if re.fullmatch(pattern, path)} == {
        "/v1/chat/completions",
        "/v1/completions",
    }
    added = {row["header"]["key"]: row["header"]["value"] for row in chosen["request_headers_to_add"]}
    assert added["routing-strategy"] == "least-request"
    selected = dict(part.split("=") for part in added["external-filter"].split(","))
    assert selected.items() <= get_pod(manifests, "worker")["metadata"]["labels"].items()
    assert selected["inference/namespace"] == "serving"
    assert {row["append_action"] for row in chosen["request_headers_to_add"]} == {"OVERWRITE_IF_EXISTS_OR_ADD"}
    assert "target-pod" in chosen["request_headers_to_remove"]
    assert (chosen["route"]["timeout"], other["route"]["cluster"]) == ("1800s", "engines")
    places = {
        row["name"]: row["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        for row in resources["clusters"]
    }
    assert places["gateway"]["address"].endswith(".envoy-gateway-system")
    assert ("Service", places["engines"]["address"]) in manifests


def test_network_policies_let_the_gateway_in_and_the_router_out(manifests: Manifests) -> None:
    ingress = manifests["NetworkPolicy", "mine-worker"]["spec"]["ingress"]
    allowed = [rule for rule in ingress if "aibrix-system" in str(rule)]
    assert [rule["ports"] for rule in allowed] == [[{"protocol": "TCP", "port": 8000}]]
    assert "envoy-gateway-system" in str(manifests["NetworkPolicy", "mine-router"]["spec"]["egress"])
    assert "aibrix-system" not in str(manifests["NetworkPolicy", "mine-router"]["spec"]["ingress"])
