"""The alert on Karpenter, evaluated by promtool, and what has Prometheus read Karpenter's pods."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_serving.catalog import signals
from tests.charts import objects
from tests.kinds.serving.test_alerts import KARPENTER_ALERTS, needs_promtool, run_promtool

MONITOR, RULES = yaml.safe_load_all(KARPENTER_ALERTS.read_text("utf-8"))
[RULE] = RULES["spec"]["groups"][0]["rules"]
METRIC = signals.load()["karpenter-unsynced"].name


@needs_promtool
@pytest.mark.parametrize(
    ("leader", "fires"),
    [("0x10 0+60x40", True), ("0x10 0+60x8 0x30", False), ("0x60", False)],
    ids=["for ever", "for eight minutes", "never"],
)
def test_it_fires_where_a_node_is_awaited_longer_than_a_launch_may_take(
    leader: str, fires: bool, tmp_path: Path
) -> None:
    expected = [{"exp_labels": RULE["labels"], "exp_annotations": RULE["annotations"]}] if fires else []
    case = {
        "interval": "1m",
        # The other replica, which leads later, has not begun to count.
        "input_series": [{"series": f'{METRIC}{{pod="karpenter-a"}}', "values": leader}],
        "alert_rule_test": [{"eval_time": "30m", "alertname": RULE["alert"], "exp_alerts": expected}],
    }
    result = run_promtool(tmp_path, RULES["spec"], [case])
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_operator_knows_every_field(schema_location: str) -> None:
    text = KARPENTER_ALERTS.read_text("utf-8")
    assert objects.validate(text, schema_location) == []
    assert objects.validate(text.replace("podMetricsEndpoints", "podMetricEndpoints"), schema_location) != []
    assert METRIC in RULE["expr"]


def test_prometheus_reads_the_pods_that_the_chart_makes() -> None:
    """Source: _helpers.tpl and deployment.yaml of the chart 1.14.1; its name is the release's where that holds it."""
    spec = MONITOR["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["kube-system"]}
    assert spec["selector"] == {"matchLabels": {"app.kubernetes.io/name": "karpenter"}}
    assert spec["podMetricsEndpoints"] == [{"port": "http-metrics"}]
