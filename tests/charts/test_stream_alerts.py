"""Alerts of a stream on EKS, each evaluated by promtool as it fires and as it stays silent, and who reads their metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from tests.charts import objects
from tests.charts.conftest import Render
from tests.charts.test_network import STRANGER, is_allowed
from tests.charts.test_objects import filter_by_kind
from tests.charts.test_streaming import BLUEPRINT, CHART, FLEET, find
from tests.infra import deployments
from tests.kinds.serving.test_alerts import needs_promtool, run_promtool

METRICS = {
    "flink_jobmanager_job_downtime",
    "flink_jobmanager_job_numRestarts",
    "flink_jobmanager_job_numberOfCompletedCheckpoints",
    "flink_taskmanager_job_task_operator_kinesisanalytics_streamDeadLetters",
    "flink_taskmanager_job_task_operator_kinesisanalytics_streamEvents",
    "flink_taskmanager_job_task_operator_kinesisanalytics_streamMissedDeadlines",
    "flink_taskmanager_job_task_operator_pendingRecords",
}
"""What Flink 1.20.1's reporter answered on this job with the chart's filter, among others; read on 2026-11-28."""

EVENTS, DEAD, MISSED, PENDING = (
    f"flink_taskmanager_job_task_operator_{name}"
    for name in (
        "kinesisanalytics_streamEvents",
        "kinesisanalytics_streamDeadLetters",
        "kinesisanalytics_streamMissedDeadlines",
        "pendingRecords",
    )
)
DOWN, RESTARTS, CHECKPOINTS = (
    f"flink_jobmanager_job_{name}" for name in ("downtime", "numRestarts", "numberOfCompletedCheckpoints")
)
JOB = '{namespace="serving",app_kubernetes_io_instance="mine"}'
OTHER = '{namespace="serving",app_kubernetes_io_instance="other"}'

CASES: list[tuple[str, dict[str, str], bool]] = [
    ("StreamDown", {f"{DOWN}{JOB}": "5000x60"}, True),
    ("StreamDown", {f"{DOWN}{JOB}": "-1x60"}, True),
    ("StreamDown", {f"{DOWN}{OTHER}": "0x60"}, True),
    ("StreamDown", {f"{DOWN}{JOB}": "0x60"}, False),
    ("StreamRestarts", {f"{RESTARTS}{JOB}": "0x10 0+1x20 20x30"}, True),
    ("StreamRestarts", {f"{RESTARTS}{JOB}": "7x14 8x4 9x4 10x14 _x10"}, False),
    ("StreamLag", {f"{PENDING}{JOB}": "4000x60", f"{EVENTS}{JOB}": "0+3000x60"}, True),
    ("StreamLag", {f"{PENDING}{JOB}": "4000x60", f"{EVENTS}{JOB}": "9x60"}, True),
    ("StreamLag", {f"{PENDING}{JOB}": "2000x60", f"{EVENTS}{JOB}": "0+3000x60"}, False),
    ("StreamLag", {f"{PENDING}{JOB}": "0x60", f"{EVENTS}{JOB}": "9x60"}, False),
    ("StreamDeadLetters", {f"{DEAD}{JOB}": "0+2x60", f"{EVENTS}{JOB}": "0+100x60"}, True),
    ("StreamDeadLetters", {f"{DEAD}{JOB}": "0+1x60", f"{EVENTS}{JOB}": "0+200x60"}, False),
    ("StreamDeadLetters", {f"{DEAD}{JOB}": "5x60", f"{EVENTS}{JOB}": "9x60"}, False),
    ("StreamDeadlinesMissed", {f"{MISSED}{JOB}": "0+2x60", f"{EVENTS}{JOB}": "0+100x60"}, True),
    ("StreamDeadlinesMissed", {f"{MISSED}{JOB}": "0+1x60", f"{EVENTS}{JOB}": "0+200x60"}, False),
    ("StreamCheckpointsFail", {f"{CHECKPOINTS}{JOB}": "9x60"}, True),
    ("StreamCheckpointsFail", {f"{CHECKPOINTS}{JOB}": "0+1x60"}, False),
]

PROMETHEUS = ({"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"})


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory, render_chart: Render) -> list[dict[str, Any]]:
    """The stream `mine` in a fleet with Prometheus."""
    folder = tmp_path_factory.mktemp("stream-alerts")
    (folder / "fleet.yaml").write_text(f"{FLEET}add_ons: {{observability: on}}\n")
    blueprint_folder = deployments.write_blueprint(folder, "mine", BLUEPRINT)
    rendered = deployments.render(folder, blueprint_folder, folder / "fleet.yaml", "eks")
    return render_chart(yaml.safe_load(rendered.read_text()), CHART)


@pytest.fixture(scope="module")
def spec(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    rules: dict[str, Any] = find(manifests, "PrometheusRule")["spec"]
    return rules


def list_rules(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in spec["groups"] for rule in group["rules"]]


def test_the_operators_definitions_take_what_prometheus_is_told(
    manifests: list[dict[str, Any]], schema_location: str
) -> None:
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []
    assert {"PodMonitor", "PrometheusRule"} <= {item["kind"] for item in manifests}


def test_a_fleet_without_prometheus_has_neither(render_chart: Render, manifests: list[dict[str, Any]]) -> None:
    without = render_chart({"kind": "streaming", "name": "mine"}, CHART)
    kinds = {item["kind"] for item in without}
    assert {item["kind"] for item in manifests} - kinds == {"PodMonitor", "PrometheusRule"}


@needs_promtool
def test_every_alert_fires_for_what_it_names_and_is_silent_otherwise(tmp_path: Path, spec: dict[str, Any]) -> None:
    rules = {rule["alert"]: rule for rule in list_rules(spec)}
    for fires in (True, False):
        assert {alert for alert, _, is_firing in CASES if is_firing == fires} == {*rules}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": "40m",
                    "alertname": alert,
                    "exp_alerts": [
                        {"exp_labels": rules[alert]["labels"], "exp_annotations": rules[alert]["annotations"]}
                    ]
                    * fires,
                }
            ],
        }
        for alert, series, fires in CASES
    ]
    result = run_promtool(tmp_path, spec, tests)
    assert result.returncode == 0, result.stdout + result.stderr


def test_its_metrics_are_those_of_flinks_reporter_and_pass_the_filter(
    manifests: list[dict[str, Any]], spec: dict[str, Any]
) -> None:
    named = {name for rule in list_rules(spec) for name in re.findall(r"flink_\w+", rule["expr"])}
    assert named == METRICS
    options = find(manifests, "FlinkDeployment")["spec"]["flinkConfiguration"]
    names = options["metrics.reporter.prometheus.filter.includes"].removeprefix("*:").split(",")
    patterns = [re.compile(name.replace("*", ".*")) for name in names]
    for metric in METRICS:
        assert any(pattern.fullmatch(metric.rpartition("_")[2]) for pattern in patterns), metric


def test_each_alert_has_a_page(spec: dict[str, Any]) -> None:
    for rule in list_rules(spec):
        page = paths.ROOT / rule["annotations"]["runbook_url"]
        assert page.read_text("utf-8").startswith(f"# {rule['alert']}\n")


def test_prometheus_alone_reads_them(manifests: list[dict[str, Any]]) -> None:
    policies, job = filter_by_kind(manifests, "NetworkPolicy"), find(manifests, "FlinkDeployment")["spec"]
    monitor = find(manifests, "PodMonitor")["spec"]
    [endpoint], [container] = monitor["podMetricsEndpoints"], job["podTemplate"]["spec"]["containers"]
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    assert str(ports[endpoint["port"]]) == job["flinkConfiguration"]["metrics.reporter.prometheus.port"]
    for process in ("jobManager", "taskManager"):
        labels = job[process]["podTemplate"]["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert is_allowed(policies, "ingress", labels, PROMETHEUS, ports[endpoint["port"]])
        assert not is_allowed(policies, "ingress", labels, PROMETHEUS, 8081)
        assert not is_allowed(policies, "ingress", labels, STRANGER, ports[endpoint["port"]])
