"""The alerts on a fleet's GPUs, each evaluated by promtool as it fires and as it stays silent."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import yaml

from infra.functions.gpu_repair import XIDS
from llm_serving.catalog import signals
from tests.charts import objects, platform_charts
from tests.kinds.serving.test_alerts import GPU_ALERTS, needs_promtool, run_promtool

RULES = {rule["alert"]: rule for rule in yaml.safe_load(GPU_ALERTS.read_text("utf-8"))["spec"]["groups"][0]["rules"]}
GPU = {"Hostname": "ip-10-0-0-1", "gpu": "3", "UUID": "GPU-1"}
BROKEN = {"node": "ip-10-0-0-1", "condition": "AcceleratedHardwareReady", "status": "false"}
GPUS = {"node": "ip-10-0-0-1", "resource": "nvidia_com_gpu"}
FAULTS, THROTTLING, CONDITION, CAPACITY, ALLOCATABLE = (
    signals.load()[name].name
    for name in ("gpu-faults", "gpu-throttling", "node-condition", "node-capacity", "node-allocatable")
)


def build_case(alert: str, metric: str, labels: dict[str, str], values: str, time: str, fires: bool) -> dict[str, Any]:
    series = ",".join(f'{name}="{value}"' for name, value in labels.items())
    rule = RULES[alert]
    [kept] = re.findall(r" by \(([^)]+)\)", rule["expr"])
    words = {name: value for name, value in labels.items() if name in kept.split(", ")}
    annotations = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: words[match[1]], text)
        for name, text in rule["annotations"].items()
    }
    expected = [{"exp_labels": {**rule["labels"], **words}, "exp_annotations": annotations}] if fires else []
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"{metric}{{{series}}}", "values": values},
            {"series": f"{CAPACITY}{{{series}}}", "values": "8x60"},
        ],
        "alert_rule_test": [{"eval_time": time, "alertname": alert, "exp_alerts": expected}],
    }


CASES = [
    ("GpuFault", FAULTS, {**GPU, "xid": "79"}, "0x4 1x5", "6m", True),
    ("GpuFault", FAULTS, {**GPU, "xid": "79"}, "0x4 1x5 0x20", "20m", False),
    # Of an application.
    ("GpuFault", FAULTS, {**GPU, "xid": "31"}, "1x9", "6m", False),
    ("GpuRepairWaits", CONDITION, BROKEN, "1x60", "35m", True),
    ("GpuRepairWaits", CONDITION, BROKEN, "1x20 0x40", "35m", False),
    ("GpuRepairWaits", CONDITION, {**BROKEN, "condition": "Ready"}, "1x60", "35m", False),
    ("GpuOutOfUse", ALLOCATABLE, GPUS, "8x5 7x50", "40m", True),
    ("GpuOutOfUse", ALLOCATABLE, GPUS, "8x5 7x10 8x40", "40m", False),
    ("GpuOutOfUse", ALLOCATABLE, {**GPUS, "resource": "memory"}, "7x60", "40m", False),
    ("GpuThrottles", THROTTLING, {**GPU, "clock_event": "hw_thermal"}, "2x30", "20m", True),
    ("GpuThrottles", THROTTLING, {**GPU, "clock_event": "hw_thermal"}, "2x10 0x30", "20m", False),
    ("GpuThrottles", THROTTLING, {**GPU, "clock_event": "power_cap"}, "10x30", "20m", False),
]


@needs_promtool
def test_each_fires_for_what_it_names_and_is_silent_otherwise(tmp_path: Path) -> None:
    assert {case[0] for case in CASES if case[-1]} == {case[0] for case in CASES if not case[-1]} == set(RULES)
    rules = yaml.safe_load(GPU_ALERTS.read_text("utf-8"))["spec"]
    result = run_promtool(tmp_path, rules, [build_case(*case) for case in CASES])
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_fault_is_what_node_repair_acts_on() -> None:
    [xids] = re.findall(r'xid=~"([\d|]+)"', RULES["GpuFault"]["expr"])
    assert [int(xid) for xid in xids.split("|")] == sorted(XIDS)


def test_they_read_what_the_exporter_is_asked_to_collect() -> None:
    [exporter] = [chart for chart in platform_charts.select_charts() if chart.add_on.name == "dcgm-exporter"]
    rows = list(csv.reader(exporter.values["customMetrics"].splitlines()))
    # As the exporter wants it: three fields in each line. Source: internal/pkg/counters/counter_config.go.
    assert {(len(row), row[1]) for row in rows} == {(3, "gauge")}
    collected = {row[0] for row in rows}
    assert collected == {signals.load()[name].name for name in signals.list_of_role("gpu")}
    names = {name for rule in RULES.values() for name in re.findall(r"(\w+)\{", rule["expr"])}
    assert names - {CONDITION, CAPACITY, ALLOCATABLE} == {FAULTS, THROTTLING} <= collected


def test_the_operator_knows_every_field(schema_location: str) -> None:
    text = GPU_ALERTS.read_text("utf-8")
    assert objects.validate(text, schema_location) == []
    assert objects.validate(text.replace("  groups:", "  group:"), schema_location) != []
