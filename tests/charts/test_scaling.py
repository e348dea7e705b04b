"""What the autoscaler's queries measure, evaluated by Prometheus' own promtool where it is on PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from llm_serving.kinds.serving import dashboards_server
from tests.charts.conftest import Render
from tests.charts.test_objects import build_engine, build_values, filter_by_kind

LABELS = 'namespace="serving",app_kubernetes_io_instance="mine",app_kubernetes_io_component="worker"'


def test_a_peak_is_a_trigger_of_its_own_times(render_chart: Render) -> None:
    peaks = [{"start": 22 * 60 + 30, "end": 6 * 60, "replicas": 3}]
    scaling = {"min": 1, "max": 4, "metric": "queue", "threshold": 4, "peaks": peaks}
    values = build_values(build_engine(autoscaling=scaling), monitoring={"podMonitors": True})
    values["roles"]["router"]["probes"] = {"readiness": {"path": "/liveness", "body": None}}
    manifests = render_chart(values)
    load, peak = filter_by_kind(manifests, "ScaledObject")[0]["spec"]["triggers"]
    assert (load["type"], peak["type"]) == ("prometheus", "cron")
    assert peak["metadata"] == {
        "timezone": "Etc/UTC", "start": "30 22 * * *", "end": "0 6 * * *", "desiredReplicas": "3",
    }  # fmt: skip
    limits = {
        (item["spec"]["sampleLimit"], item["spec"]["labelLimit"]) for item in filter_by_kind(manifests, "PodMonitor")
    }
    assert limits == {(dashboards_server.MAX_SAMPLES, dashboards_server.MAX_LABELS)}, "as the local Prometheus has them"


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize(
    ("least", "samples"), [(0, [{"labels": "{}", "value": 0}]), (1, [])], ids=["to-zero", "to-one"]
)
@pytest.mark.parametrize(
    ("metric", "name", "value", "expected"),
    [
        ("kv-usage", "vllm:kv_cache_usage_perc", "0.1", 0.2),
        ("queue", "vllm:num_requests_waiting", "3", 48),
    ],
)
def test_two_replicas_of_eight_ranks_count_as_two_caches_and_all_their_requests(
    render_chart: Render,
    tmp_path: Path,
    metric: str,
    name: str,
    value: str,
    expected: float,
    least: int,
    samples: list[dict[str, object]],
) -> None:
    """Without metrics of the role there is no load only where it may have no replica; else the query is empty."""
    scaling = {"min": least, "max": 4, "metric": metric, "threshold": 0.8}
    values = build_values(build_engine(autoscaling=scaling), monitoring={"podMonitors": True})
    values["roles"]["router"]["probes"] = {"readiness": {"path": "/liveness", "body": None}}
    manifests = render_chart(values)
    trigger = filter_by_kind(manifests, "ScaledObject")[0]["spec"]["triggers"][0]["metadata"]
    query = trigger["query"]
    # KEDA takes an empty answer as 0 otherwise, and scales in at the peak.
    assert trigger.get("ignoreNullValues") == ("false" if least else None)
    series = [
        {"series": f'{name}{{{LABELS},pod="mine-worker-{pod}",engine="{rank}"}}', "values": f"{value}x9"}
        for pod in range(2)
        for rank in range(8)
    ]
    others = {"series": f'{name}{{namespace="serving",pod="other",engine="0"}}', "values": f"{value}x9"}
    check = {"expr": query, "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": expected}]}
    none = {**check, "exp_samples": samples}
    tests = [
        {"interval": "1m", "input_series": [*series, others], "promql_expr_test": [check]},
        {"interval": "1m", "input_series": [others], "promql_expr_test": [none]},
    ]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": tests}))
    command = ["promtool", "test", "rules", str(tmp_path / "test.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
