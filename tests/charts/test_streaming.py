"""What charts/streaming makes of a rendered stream: objects that the operators' definitions take, and whom its pods reach."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.kinds.streaming.operators import KAFKA_PROPERTIES
from llm_serving.services import kinds
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import load_job
from tests.charts import objects
from tests.charts.conftest import Helm, Render
from tests.charts.test_cluster import ACCOUNT, build_namespace, validate
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

pytestmark = pytest.mark.timeout(300, func_only=True)  # the fixture may wait for a build


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


def find(manifests: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    [found] = filter_by_kind(manifests, kind, name)
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
    user = find(manifests, "KafkaUser", "mine")
    wrong = {**user, "spec": {**user["spec"], "authentications": {}}}
    assert 'unknown field "spec.authentications"' in "".join(validate(control_plane, [wrong], "default"))


def test_the_job_is_told_how_it_logs_in_to_kafka_and_its_sizes(
    manifests: list[dict[str, Any]], values: dict[str, Any]
) -> None:
    flink, pool = find(manifests, "FlinkDeployment"), find(manifests, "KafkaNodePool")
    assert flink["spec"]["job"]["parallelism"] == 3
    assert (pool["spec"]["replicas"], pool["spec"]["storage"]["volumes"][0]["size"]) == (6, "50Gi")
    [container] = flink["spec"]["podTemplate"]["spec"]["containers"]
    variables = {entry["name"]: entry for entry in container["env"]}
    settings = variables["STREAM_SETTINGS"]["value"]
    assert "$" in values["settings"] and settings == values["settings"].replace("$", "$$"), "Kubernetes takes $$ for $"
    job = json.loads(values["settings"])
    assert job["cache"]["url"] == "redis://valkey.cache.svc:6380"
    kafka = find(manifests, "Kafka")["metadata"]["name"]
    assert job["kafka"]["brokers"] == f"{kafka}-kafka-bootstrap:9093"
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    volumes = {entry["name"]: entry.get("secret") for entry in flink["spec"]["podTemplate"]["spec"]["volumes"]}
    login = volumes["kafka-login"]
    [item] = login["items"]
    assert job["kafka"]["replicas"] == 3
    assert job["kafka"]["properties"]["sasl.jaas.config"] == f"${{directory:{mounts['kafka-login']}:{item['path']}}}"
    user = find(manifests, "KafkaUser", "mine")
    assert (login["secretName"], item["key"]) == (user["metadata"]["name"], "sasl.jaas.config")
    assert volumes["kafka-ca"]["secretName"] == f"{kafka}-cluster-ca-cert"
    topics = {
        rule["resource"]["name"]
        for rule in user["spec"]["authorization"]["acls"]
        if rule["resource"]["type"] == "topic"
    }
    assert topics == {job["kafka"][name] for name in ("events", "results", "deadLetters")}


def test_kafka_s_pods_have_the_memory_that_java_takes_reserved_on_their_nodes(manifests: list[dict[str, Any]]) -> None:
    user_operator = find(manifests, "Kafka")["spec"]["entityOperator"]["userOperator"]
    for component in (find(manifests, "KafkaNodePool")["spec"], user_operator):
        requests, limits = component["resources"]["requests"], component["resources"]["limits"]
        assert requests["memory"] == limits["memory"]
        assert requests["cpu"]


def test_sessions_may_outgrow_the_heap_and_a_checkpoint_writes_only_what_changed(
    manifests: list[dict[str, Any]],
) -> None:
    options = find(manifests, "FlinkDeployment")["spec"]["flinkConfiguration"]
    assert (options["state.backend.type"], options["execution.checkpointing.incremental"]) == ("rocksdb", "true")


def test_brokers_are_spread_over_zones_and_nodes(manifests: list[dict[str, Any]]) -> None:
    pool, kafka = find(manifests, "KafkaNodePool"), find(manifests, "Kafka")["metadata"]["name"]
    rules = pool["spec"]["template"]["pod"]["topologySpreadConstraints"]
    assert [rule["topologyKey"] for rule in rules] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    for rule in rules:
        assert (rule["maxSkew"], rule["whenUnsatisfiable"]) == (1, "DoNotSchedule")
        # Strimzi's own name of a cluster's brokers. Source: Strimzi 1.2.0, "Scheduling brokers on different worker nodes".
        assert rule["labelSelector"] == {"matchLabels": {"strimzi.io/name": f"{kafka}-kafka"}}


def test_flink_logs_json_where_the_blueprint_says_so(
    render_chart: Render, values: dict[str, Any], manifests: list[dict[str, Any]], schema_location: str
) -> None:
    assert "logConfiguration" not in find(manifests, "FlinkDeployment")["spec"]
    logged = render_chart({**values, "logs": "json"}, CHART)
    assert objects.validate(yaml.safe_dump_all(logged), schema_location) == []
    configuration = find(logged, "FlinkDeployment")["spec"]["logConfiguration"]["log4j-console.properties"]
    properties = dict(line.split(" = ", 1) for line in configuration.strip().splitlines())
    line = re.sub(r"%(d\{[^}]*\}|enc\{%\w+\}\{JSON\}|p|c)", "x", properties["appender.console.layout.pattern"])
    assert set(json.loads(line.removesuffix("%n"))) == {"time", "program", "level", "logger", "message", "exception"}


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


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> DeploymentPlan:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "fleet.yaml").write_text(FLEET)
    blueprint_folder = deployments.write_blueprint(folder, "mine", BLUEPRINT)
    return planning.plan_offline(blueprint_folder, folder / "fleet.yaml", "eks")


def build_driver(plan: DeploymentPlan) -> list[dict[str, Any]]:
    """The Job of a validation, and what it owns."""
    program = kinds.get("streaming").build_load_program(plan.deployment)
    job = load_job.build_job(plan, "mine-load-x", 1, limit_s=600, program=program)
    return [job, *load_job.build_belongings(plan, "mine-load-x", "0" * 8, ["http://x"])]


def test_the_driver_of_validations_runs_in_the_jobs_image_with_a_login_of_its_own(
    plan: DeploymentPlan, manifests: list[dict[str, Any]]
) -> None:
    spec = build_driver(plan)[0]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    job = find(manifests, "FlinkDeployment")["spec"]
    assert container["image"] == job["image"]
    assert f"local://{container['command'][container['command'].index('-cp') + 1]}" == job["job"]["jarURI"]
    assert spec["automountServiceAccountToken"] is False
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    files = {
        f"{mounts[volume['name']]}/{item['path']}": (volume["secret"]["secretName"], item["key"])
        for volume in spec["volumes"]
        if volume["name"] in mounts and "items" in volume.get("secret", {})
        for item in volume["secret"]["items"]
    }
    user = find(manifests, "KafkaUser", "mine-load-driver")
    assert files == {
        "/opt/kafka-login/sasl.jaas.config": (user["metadata"]["name"], "sasl.jaas.config"),
        KAFKA_PROPERTIES["ssl.truststore.location"]: ("mine-cluster-ca-cert", "ca.crt"),
    }
    rules = [(rule["resource"]["name"], rule["operations"]) for rule in user["spec"]["authorization"]["acls"]]
    assert rules == [
        ("mine-events", ["Describe", "Write"]),
        ("mine-results", ["Describe", "Read"]),
        ("mine-dead-letters", ["Describe", "Read"]),
    ]


def test_the_api_server_takes_the_driver_where_pods_are_restricted(
    control_plane: ControlPlane, plan: DeploymentPlan
) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.api.apply(build_namespace("restricted-stream", **level))
    job, *belongings = build_driver(plan)
    assert validate(control_plane, [job, *belongings], "restricted-stream") == []
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "driver"},
        "spec": {**job["spec"]["template"]["spec"], "serviceAccountName": ACCOUNT},
    }
    [container] = pod["spec"]["containers"]
    assert validate(control_plane, [pod], "restricted-stream") == []
    container["securityContext"]["allowPrivilegeEscalation"] = True
    assert "allowPrivilegeEscalation" in "".join(validate(control_plane, [pod], "restricted-stream")), "it can fail"


def test_the_driver_reaches_kafka_and_s3(plan: DeploymentPlan, manifests: list[dict[str, Any]]) -> None:
    job, policy, _ = build_driver(plan)
    labels = {**job["spec"]["template"]["metadata"]["labels"], "batch.kubernetes.io/job-name": "mine-load-x"}
    policies = [*filter_by_kind(manifests, "NetworkPolicy"), policy]
    broker = {"strimzi.io/cluster": "mine", "strimzi.io/kind": "Kafka"}
    assert is_allowed(policies, "egress", labels, (SERVING, broker), 9093)
    assert is_allowed(policies, "egress", labels, DNS, 53)
    assert is_allowed(policies, "egress", labels, "52.218.0.1", 443)
    assert not is_allowed(policies, "egress", labels, "52.218.0.1", 5432)
    assert not is_allowed(policies, "ingress", labels, STRANGER, 8080)


def test_a_release_of_another_name_is_refused(helm: Helm, values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    run = helm("template", "other", str(CHART), "--values", str(file))
    assert (
        'name: "mine" is not the release other, by which the job finds Kafka. Fix: run helm upgrade --install mine '
        "-f rendered/NAME/eks/eks.yaml"
    ) in run.stderr
