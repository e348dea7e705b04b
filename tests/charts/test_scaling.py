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
    peaks = [{"start": 22 * 60 + 30, "end": 6 * 60, "replicas": 3, "timeZone": "Europe/Berlin"}]
    scaling = {"min": 1, "max": 4, "metric": "queue", "threshold": 4, "peaks": peaks}
    values = build_values(build_engine(autoscaling=scaling), monitoring={"podMonitors": True})
    values["roles"]["router"]["probes"] = {"readiness": {"path": "/liveness", "body": None}}
    manifests = render_chart(values)
    load, peak = filter_by_kind(manifests, "ScaledObject")[0]["spec"]["triggers"]
    assert (load["type"], peak["type"]) == ("prometheus", "cron")
    assert peak["metadata"] == {
        "timezone": "Europe/Berlin", "start": "30 22 * * *", "end": "0 6 * * *", "desiredReplicas": "3",
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


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({"a": "5000+10x20"}, 50),
        ({"a": "5000+0x20"}, 0),
        ({"a": "_x18 1x2"}, 1),
        # Each minute 10 more; Prometheus forgets a pod that is gone.
        ({"a": "5000+10x15 stale", "b": "_x16 0+10x4"}, 40),
        ({"a": "5000+0x15 stale", "b": "_x16 0+0x4"}, 0),
        ({"a": "5000+10x16 0+10x3"}, 30),
    ],
    ids=["requests", "none", "a first one", "a rollout", "a rollout without requests", "a restart"],
)
def test_requests_that_reach_a_new_router_keep_the_last_replica(
    render_chart: Render, tmp_path: Path, series: dict[str, str], expected: float
) -> None:
    scaling = {"min": 0, "max": 4, "metric": "queue", "threshold": 4}
    values = build_values(build_engine(autoscaling=scaling), monitoring={"podMonitors": True})
    values["roles"]["router"]["probes"] = {"readiness": {"path": "/liveness", "body": None}}
    *_, arrivals = filter_by_kind(render_chart(values), "ScaledObject")[0]["spec"]["triggers"]
    labels = LABELS.replace('"worker"', '"router"')
    inputs = [
        {"series": f'vllm_router_requests_total{{{labels},pod="mine-router-{pod}"}}', "values": samples}
        for pod, samples in series.items()
    ]
    samples = [{"labels": "{}", "value": expected}]
    check = {"expr": arrivals["metadata"]["query"], "eval_time": "20m", "exp_samples": samples}
    tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": [check]}]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": tests}))
    command = ["promtool", "test", "rules", str(tmp_path / "test.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


LIMIT = {"role": "worker", "name": "ttft p95", "metric": "vllm:time_to_first_token_seconds", "edge": "0.5",
    "measured": "500 ms", "allowed": "0.05"}  # fmt: skip


def _render_by_slo(render_chart: Render, **limit: str) -> list[dict[str, str]]:
    """What the triggers of a role that follows the SLO ask."""
    scaling = {"min": 1, "max": 8, "metric": "queue", "threshold": 4, "slo": True}
    monitoring, slo = {"podMonitors": True}, {"latencies": [{**LIMIT, **limit}]}
    values = build_values(build_engine(autoscaling=scaling), monitoring=monitoring, slo=slo)
    [scaled] = filter_by_kind(render_chart(values), "ScaledObject")
    assert {trigger["metricType"] for trigger in scaled["spec"]["triggers"]} == {"AverageValue"}, "or no fallback"
    return [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize(
    ("slow", "expected"),
    [(0, 0), (3, 1.8), (5, 3), (7, 4.2), (60, 6)],
    ids=["none misses it", "fewer than may", "as many as may", "more than may", "twice the replicas at most"],
)
def test_missed_limits_of_the_slo_add_replicas_and_none_where_they_are_met(
    render_chart: Render, tmp_path: Path, slow: int, expected: float
) -> None:
    """Three replicas, each with 100 requests a minute of which `slow` took longer than the limit."""
    load, missed = _render_by_slo(render_chart)
    assert (load["threshold"], missed["threshold"]) == ("4", "1")
    series = [
        {
            "series": f'{LIMIT["metric"]}_{name}{{{LABELS},pod="mine-worker-{pod}",engine="0"{edge}}}',
            "values": f"0+{count}x9",
        }
        for pod in range(3)
        for name, edge, count in (("bucket", ',le="0.5"', 100 - slow), ("bucket", ',le="1.0"', 100), ("count", "", 100))
    ]
    check = {
        "expr": f"round({missed['query']}, 0.001)",
        "eval_time": "5m",
        "exp_samples": [{"labels": "{}", "value": expected}],
    }
    none = {**check, "exp_samples": [{"labels": "{}", "value": 0}]}
    tests = [
        {"interval": "1m", "input_series": series, "promql_expr_test": [check]},
        {"interval": "1m", "input_series": [], "promql_expr_test": [none]},
    ]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": tests}))
    command = ["promtool", "test", "rules", str(tmp_path / "test.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_role_without_a_limit_cannot_follow_the_slo(render_chart: Render) -> None:
    with pytest.raises(
        AssertionError, match=r"roles\.worker\.autoscaling\.slo: true: slo\.latencies has no limit of this role"
    ):
        _render_by_slo(render_chart, role="decode")
