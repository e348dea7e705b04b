"""Values that were rendered once serve any release: its pods call the release and namespace that Helm was given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from tests.charts.conftest import CHART, Helm
from tests.charts.objects import list_pods
from tests.infra import deployments
from tests.kinds.serving.texts import FLEET

AGGREGATED = (paths.PATTERNS / "aggregated" / "blueprint.yaml").read_text()


def render_release(helm: Helm, values: Path, release: str, namespace: str) -> list[dict[str, Any]]:
    run = helm("template", release, str(CHART), "--namespace", namespace, "--values", str(values))
    assert run.returncode == 0, run.stderr
    return [document for document in yaml.safe_load_all(run.stdout) if document]


def expand_command(pod: dict[str, Any], namespace: str) -> list[str]:
    """Return the command with $(NAME) filled in, as the kubelet does, of the variables that the pod has."""
    [container] = pod["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    [field] = [entry["valueFrom"]["fieldRef"] for entry in container["env"] if entry["name"] == "NAMESPACE"]
    assert field == {"fieldPath": "metadata.namespace"}
    variables["NAMESPACE"] = namespace
    return [re.sub(r"\$\((\w+)\)", lambda match: str(variables[match[1]]), word) for word in container["command"]]


@pytest.mark.parametrize(("release", "namespace"), [("mine", "serving"), ("other", "prod")])
@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware"])
def test_a_router_finds_the_engines_of_its_own_release(
    helm: Helm, tmp_path: Path, policy: str, release: str, namespace: str
) -> None:
    text = AGGREGATED.replace("policy: cache-aware", f"policy: {policy}")
    folder = deployments.write_blueprint(tmp_path, "mine", text)
    values = deployments.render(tmp_path, folder, paths.PATTERNS.parent / "fleet.yaml", "eks")
    manifests = render_release(helm, values, release, namespace)
    pods = {pod["metadata"]["labels"]["inference/kind"]: pod for pod in list_pods(manifests)}
    words = expand_command(pods["router"], namespace)
    if policy == "kv-aware":
        [address] = [word.removeprefix("--worker=") for word in words if word.startswith("--worker=")]
        assert address == f"{release}-worker.{namespace}:8000"
        services = [item["metadata"] for item in manifests if item["kind"] == "Service"]
        assert (f"{release}-worker", namespace) in {(item["name"], item["namespace"]) for item in services}
    else:
        assert words[words.index("--service-discovery-namespace") + 1] == namespace
        start = words.index("--selector") + 1
        selector = dict(word.split("=") for word in words[start : start + 2])
        assert selector.items() <= pods["engine"]["metadata"]["labels"].items()
        assert selector["app.kubernetes.io/instance"] == release


SERVING = """\
pattern: multi-model
name: 'NAME'
roles: {models: {'NAME': {model: tiny, pool: 'NAME'}, other: {model: tiny, pool: 'NAME'}}, router: {replicas: 2}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: {ttft_ms: {p95: 5000}}
load_balancer: {certificate: 'arn:aws:acm:us-west-2:123456789012:certificate/12345678-1234-1234-1234-123456789012'}
"""
GATEWAY = """\
kind: gateway
pattern: gateway
name: 'NAME'
teams: {'NAME': {models: tiny}}
routes: {tiny: {deployments: {deployment: 'NAME'}}}
slo: {}
"""
STREAM = """\
kind: streaming
pattern: near-real-time
name: 'NAME'
endpoint: {deployment: 'NAME', model: tiny}
eks: {image: 'registry.example/job:1', cache: 'redis://cache.data:6379', state_class: efs}
slo: {}
"""
ONE = SERVING.replace("multi-model", "aggregated").replace(
    "models: {'NAME': {model: tiny, pool: 'NAME'}, other", "worker"
)
ONE = ONE.replace("worker: {model: tiny, pool: 'NAME'}}", "worker: {pool: 'NAME'}") + "model: Qwen/Qwen3-0.6B\n"
TEXTS = {
    "plain": ("inference", SERVING),
    "ray": ("inference", f"{SERVING}framework: ray\n"),
    "aibrix": ("inference", f"{ONE}framework: aibrix\n"),
    "gateway": ("batch", GATEWAY),
    "stream": ("streaming", STREAM),
}


@pytest.mark.parametrize("word", ["no", "null"])
@pytest.mark.parametrize("kind", list(TEXTS))
def test_names_that_are_words_of_yaml_stay_names(helm: Helm, tmp_path: Path, kind: str, word: str) -> None:
    """As `no`, a model for Norwegian: what YAML 1.1 reads as a truth value, the API server refuses as a name."""
    chart, text = TEXTS[kind]

    def render(name: str) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        pool = f"  '{name}': {{types: g6e.12xlarge, size: 0..4}}\n"
        (folder / "fleet.yaml").write_text(
            FLEET.replace("  single:", f"{pool}  single:").replace("add_ons: {", "add_ons: {gateway: on, ")
        )
        blueprint_folder = deployments.write_blueprint(folder, "mine", text.replace("NAME", name))
        values = deployments.render(folder, blueprint_folder, folder / "fleet.yaml", "eks")
        run = helm("template", name, str(paths.CHARTS / chart), "--namespace", name, "--values", str(values))
        assert run.returncode == 0, run.stderr
        # Quotes inside a text, such as the configuration of Ray Serve, are as they must be.
        return [json.dumps(item).replace('\\"', "") for item in yaml.safe_load_all(run.stdout) if item]

    assert sorted(render(word)) == sorted(item.replace("nqzq", word) for item in render("nqzq"))
