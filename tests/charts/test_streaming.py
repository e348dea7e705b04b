"""What charts/streaming makes of a rendered stream: objects that the operators' definitions take, and whom its pods reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from tests.charts import objects
from tests.charts.conftest import Helm, Render
from tests.charts.test_cluster import validate
from tests.charts.test_network import DNS, SERVING, STRANGER, is_allowed
from tests.charts.test_objects import filter_by_kind
from tests.control_plane.control_plane import ControlPlane
from tests.infra import deployments

CHART = paths.CHARTS / "streaming"
FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
pools: {general: {types: g6e.2xlarge, size: 0..8}}
"""
BLUEPRINT = """\
kind: streaming
pattern: near-real-time
endpoint: {url: "http://chat-router.serving.svc:8080", model: tiny}
aws: {brokers: 6, broker_storage: 50Gi, parallelism: 3}
eks: {image: "registry.example/stream-job:1", cache: "redis://valkey.cache.svc:6380", state_class: efs}
"""

pytestmark = pytest.mark.timeout(120, func_only=True)  # the fixture may wait for a build


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the stream `mine` is rendered to."""
    folder = tmp_path_factory.mktemp("stream")
    (folder / "fleet.yaml").write_text(FLEET)
    blueprint_folder = deployments.write_blueprint(folder, "mine", BLUEPRINT)
    rendered: dict[str, Any] = yaml.safe_load(
        deployments.render(folder, blueprint_folder, folder / "fleet.yaml", "eks").read_text()
    )
    return rendered


@pytest.fixture(scope="module")
def manifests(render_chart: Render, values: dict[str, Any]) -> list[dict[str, Any]]:
    return render_chart(values, CHART)


def find(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = filter_by_kind(manifests, kind)
    return found


def test_the_operators_definitions_take_every_object(manifests: list[dict[str, Any]], schema_location: str) -> None:
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []
    assert {item["kind"] for item in manifests} >= {"Kafka", "KafkaNodePool", "KafkaUser", "FlinkDeployment"}
    flink = find(manifests, "FlinkDeployment")
    wrong = {**flink, "spec": {**flink["spec"], "flinkVersions": "v1_20"}}
    [error] = objects.validate(yaml.safe_dump(wrong), schema_location)
    assert "flinkVersions" in error


def test_the_api_server_accepts_every_object(control_plane: ControlPlane, manifests: list[dict[str, Any]]) -> None:
    assert validate(control_plane, manifests, "default") == []
    user = find(manifests, "KafkaUser")
    wrong = {**user, "spec": {**user["spec"], "authentications": {}}}
    assert 'unknown field "spec.authentications"' in "".join(validate(control_plane, [wrong], "default"))


def test_the_job_is_told_how_it_logs_in_to_kafka_and_its_sizes(manifests: list[dict[str, Any]]) -> None:
    flink, pool = find(manifests, "FlinkDeployment"), find(manifests, "KafkaNodePool")
    assert flink["spec"]["job"]["parallelism"] == 3
    assert (pool["spec"]["replicas"], pool["spec"]["storage"]["volumes"][0]["size"]) == (6, "50Gi")
    [container] = flink["spec"]["podTemplate"]["spec"]["containers"]
    variables = {entry["name"]: entry for entry in container["env"]}
    job = json.loads(variables["STREAM_SETTINGS"]["value"])
    assert job["cache"]["url"] == "redis://valkey.cache.svc:6380"
    kafka = find(manifests, "Kafka")["metadata"]["name"]
    assert job["kafka"]["brokers"] == f"{kafka}-kafka-bootstrap:9093"
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    volumes = {entry["name"]: entry.get("secret") for entry in flink["spec"]["podTemplate"]["spec"]["volumes"]}
    login = volumes["kafka-login"]
    [item] = login["items"]
    assert job["kafka"]["replicas"] == 3
    assert job["kafka"]["properties"]["sasl.jaas.config"] == f"${{directory:{mounts['kafka-login']}:{item['path']}}}"
    user = find(manifests, "KafkaUser")
    assert (login["secretName"], item["key"]) == (user["metadata"]["name"], "sasl.jaas.config")
    assert volumes["kafka-ca"]["secretName"] == f"{kafka}-cluster-ca-cert"
    topics = {
        rule["resource"]["name"]
        for rule in user["spec"]["authorization"]["acls"]
        if rule["resource"]["type"] == "topic"
    }
    assert topics == {job["kafka"][name] for name in ("events", "results", "deadLetters")}


def test_its_pods_reach_kafka_the_endpoint_the_cache_and_the_cluster_s_api(manifests: list[dict[str, Any]]) -> None:
    policies = filter_by_kind(manifests, "NetworkPolicy")
    spec = find(manifests, "FlinkDeployment")["spec"]
    broker = {"strimzi.io/cluster": "mine", "strimzi.io/kind": "Kafka"}
    for process in ("jobManager", "taskManager"):
        labels = spec[process]["podTemplate"]["metadata"]["labels"]
        assert is_allowed(policies, "egress", labels, (SERVING, broker), 9093)
        assert is_allowed(policies, "egress", labels, DNS, 53)
        assert [port for port in (443, 8080, 6380) if is_allowed(policies, "egress", labels, "10.0.1.7", port)] == [
            443,
            8080,
            6380,
        ]
        assert not is_allowed(policies, "egress", labels, "169.254.169.254", 443), "the node's own role"
        assert not is_allowed(policies, "egress", labels, "10.0.1.7", 5432)
        assert not is_allowed(policies, "ingress", labels, STRANGER, 8081)


def test_a_release_of_another_name_is_refused(helm: Helm, values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    run = helm("template", "other", str(CHART), "--values", str(file))
    assert (
        'name: "mine" is not the release other, by which the job finds Kafka. Fix: run helm upgrade --install mine '
        "-f rendered/NAME/eks/eks.yaml"
    ) in run.stderr
