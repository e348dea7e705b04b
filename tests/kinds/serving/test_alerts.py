"""The alerts of a deployment, each evaluated by promtool as it fires and as it stays silent, and what they measure."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.catalog import routers, signals
from llm_serving.cli import main
from llm_serving.kinds.serving import alerts, objectives
from llm_serving.kinds.serving.deployment import ServingDeployment
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: eks
add_ons: {observability: on, operators: on}
pools: {general: {types: g6e.12xlarge, size: 0..4}}
"""

BLUEPRINT = """\
pattern: aggregated
model: Qwen/Qwen3-0.6B
roles: {worker: {pool: general, replicas: 1..3, scale: {queue: 6}}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: SLO
"""

DISAGGREGATED = """\
pattern: disaggregated
model: Qwen/Qwen3-0.6B
roles: {prefill: {pool: general}, decode: {pool: general}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: {ttft_ms: {p95: 500}, itl_ms: {p50: 50}, e2e_ms: {p95: 5000, mean: 900}}
"""

TURNS = """\
pattern: multi-model
roles:
  models:
    chat: {model: Qwen/Qwen3-1.7B, pool: general}
    code: {model: Qwen/Qwen3-0.6B, shares: chat}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: SLO
"""

SLO = "{ttft_ms: {p95: 800}}"

GPU_ALERTS = paths.CHARTS / "gpu-alerts.yaml"
KARPENTER_ALERTS = paths.CHARTS / "karpenter-alerts.yaml"

WORKER = 'namespace="serving",app_kubernetes_io_instance="mine",app_kubernetes_io_component="worker"'
ROUTER = WORKER.replace("worker", "router")
POD = f'{{{WORKER},pod="mine-worker-a1-b2",engine="0"}}'
KUBE_POD = '{namespace="serving",pod="mine-worker-a1-b2"}'
SCALER = '{namespace="serving",horizontalpodautoscaler="keda-hpa-mine-worker"}'

Series = dict[str, str]


def build_latency(slow: int) -> Series:
    """A hundred requests a minute, of which so many take longer than 750 ms."""
    histogram = "vllm:time_to_first_token_seconds"
    buckets = {f'{histogram}_bucket{{{WORKER},le="0.75"}}': f"0+{100 - slow}x500"}
    # What is between the edge and the limit of 800 ms counts as too slow.
    return {
        **buckets,
        f'{histogram}_bucket{{{WORKER},le="1.0"}}': "0+100x500",
        f"{histogram}_count{{{WORKER}}}": "0+100x500",
    }


def build_errors(failed: int) -> Series:
    """A thousand requests a minute, of which so many fail."""
    return {
        f"vllm_router_requests_total{{{ROUTER}}}": f"0+{1000 - failed}x500",
        f"vllm_router_request_errors_total{{{ROUTER}}}": f"0+{failed}x500",
    }


def build_start(ready: str, phase: str = "Running") -> Series:
    """A pod that has been initialized since the beginning of time."""
    return {
        f"kube_pod_status_initialized_time{KUBE_POD}": "0x80",
        f'kube_pod_status_phase{KUBE_POD[:-1]},phase="{phase}"}}': "1x80",
        f'kube_pod_status_ready{KUBE_POD[:-1]},condition="true"}}': ready,
        f"up{POD}": "0x80",
    }


def name_leader(series: Series) -> Series:
    """The same of the leader of a release `mine-worker`."""
    renamed = {name.replace("mine-worker-a1-b2", "mine-worker-worker-0"): values for name, values in series.items()}
    return {name.replace('instance="mine"', 'instance="mine-worker"'): values for name, values in renamed.items()}


def build_restarts(values: str) -> Series:
    """A pod whose containers restart."""
    return {f"kube_pod_container_status_restarts_total{KUBE_POD}": values, f"up{POD}": "1x40"}


def build_returns(times: int) -> Series:
    """A pod that comes again by its name, five minutes after the last time, as of a LeaderWorkerSet."""
    created = (f'kube_pod_created{KUBE_POD[:-1]},uid="{number}",instance="b"}}' for number in range(times + 1))
    values = (f"_x{5 * number} 1x4 _x60" for number in range(times + 1))
    return {**dict(zip(created, values, strict=True)), f"up{POD}": "1x40"}


CASES: list[tuple[str, str, Series, int]] = [
    ("InferenceRoleGone", "10m", {f"up{{{WORKER}}}": "0x20", f"up{{{ROUTER}}}": "1x20"}, 1),
    ("InferenceRoleGone", "10m", {f"up{{{WORKER}}}": "1x20", f"up{{{ROUTER}}}": "1x20"}, 0),
    ("InferenceReplicasRestart", "30m", build_restarts("0+1x5 5x40"), 1),
    ("InferenceReplicasRestart", "30m", build_restarts("0x9 1x4 2x14 _x10"), 0),
    ("InferenceReplicasRestart", "30m", name_leader(build_restarts("0+1x40")), 0),
    ("InferenceReplicasRestart", "20m", build_returns(3), 1),
    ("InferenceReplicasRestart", "20m", build_returns(1), 0),
    ("InferenceReplicasRestart", "20m", name_leader(build_returns(3)), 0),
    # kube-state-metrics has started again and again itself.
    (
        "InferenceReplicasRestart",
        "20m",
        {name.replace('uid="', 'uid="a",other="'): values for name, values in build_returns(3).items()},
        0,
    ),
    ("InferenceStartSlow", "60m", build_start(ready="0x80"), 1),
    ("InferenceStartSlow", "60m", build_start(ready="0x20 1x2 0x80"), 0),
    ("InferenceStartSlow", "20m", build_start(ready="0x80"), 0),
    ("InferenceStartSlow", "60m", build_start(ready="0x80", phase="Failed"), 0),
    ("InferenceStartSlow", "60m", name_leader(build_start(ready="0x80")), 0),
    (
        "InferenceAutoscalerAtMaximum",
        "20m",
        build := {
            f"kube_horizontalpodautoscaler_status_desired_replicas{SCALER}": "3x30",
            f"kube_horizontalpodautoscaler_spec_max_replicas{SCALER}": "3x30",
        },
        1,
    ),
    (
        "InferenceAutoscalerAtMaximum",
        "20m",
        {**build, f"kube_horizontalpodautoscaler_status_desired_replicas{SCALER}": "2x30"},
        0,
    ),
    (
        "InferenceQueueLongerThanBatch",
        "15m",
        {f"vllm:num_requests_waiting{POD}": "9x20", f"vllm:num_requests_running{POD}": "8x20"},
        1,
    ),
    (
        "InferenceQueueLongerThanBatch",
        "15m",
        {f"vllm:num_requests_waiting{POD}": "8x20", f"vllm:num_requests_running{POD}": "8x20"},
        0,
    ),
    (
        "InferenceEngineHangs",
        "20m",
        {f"vllm:num_requests_running{POD}": "2x30", f"vllm:iteration_tokens_total_count{POD}": "7x30"},
        1,
    ),
    (
        "InferenceEngineHangs",
        "20m",
        {f"vllm:num_requests_running{POD}": "2x30", f"vllm:iteration_tokens_total_count{POD}": "7+1x30"},
        0,
    ),
    ("InferenceCacheTooSmall", "30m", {f"vllm:num_preemptions_total{POD}": "0+1x40"}, 1),
    ("InferenceCacheTooSmall", "30m", {f"vllm:num_preemptions_total{POD}": "5x40"}, 0),
    ("InferenceCacheFull", "20m", {f"vllm:kv_cache_usage_perc{POD}": "0.99x30"}, 1),
    ("InferenceCacheFull", "20m", {f"vllm:kv_cache_usage_perc{POD}": "0.9x30"}, 0),
    ("InferenceTransfersFail", "15m", {f"vllm:nixl_num_failed_transfers_total{POD}": "0x9 2x20"}, 1),
    ("InferenceTransfersFail", "15m", {f"vllm:nixl_num_failed_transfers_total{POD}": "2x30"}, 0),
    # The windows whose rates are exceeded: 1h by 14.4 times, 6h by 6 times, 3d by what is allowed.
    ("InferenceLatencyBudgetBurns", "8h", build_latency(80), 3),
    ("InferenceLatencyBudgetBurns", "8h", build_latency(50), 2),
    ("InferenceLatencyBudgetBurns", "8h", build_latency(20), 1),
    ("InferenceLatencyBudgetBurns", "8h", build_latency(4), 0),
    ("InferenceErrorBudgetBurns", "8h", build_errors(200), 3),
    ("InferenceErrorBudgetBurns", "8h", build_errors(100), 2),
    ("InferenceErrorBudgetBurns", "8h", build_errors(20), 1),
    ("InferenceErrorBudgetBurns", "8h", build_errors(5), 0),
    ("InferenceErrorBudgetBurns", "8h", build_errors(0), 0),
    (
        "InferenceErrorBudgetBurns",
        "8h",
        {f'vllm_router_request_errors_total{{{ROUTER},error_type="{routers.REFUSED}"}}': "0+9x500"},
        0,
    ),
    # It has passed no request on since it started.
    ("InferenceErrorBudgetBurns", "8h", {f"vllm_router_request_errors_total{{{ROUTER}}}": "0+9x500"}, 3),
]


def resolve(folder: Path, text: str, slo: str = SLO, target: str = "eks") -> ServingDeployment:
    (folder / "mine").mkdir()
    return resolving.resolve_files(folder / "mine", text.replace("SLO", slo), FLEET, target)


def list_rules(deployment: ServingDeployment) -> list[dict[str, Any]]:
    return [rule for group in alerts.build_rules(deployment)["groups"] for rule in group["rules"]]


def build_test(rules: list[dict[str, Any]], alert: str, time: str, series: Series, count: int) -> dict[str, Any]:
    """A case of promtool: the last `count` of the alert's rules fire, since their rates are the lowest."""
    firing = [rule for rule in rules if rule["alert"] == alert and rule["labels"]["role"] in str(series)][::-1][:count]
    pod = {"pod": "mine-worker-a1-b2"} if alert in ("InferenceEngineHangs", "InferenceCacheFull") else {}
    scaler = (
        {"namespace": "serving", "horizontalpodautoscaler": "keda-hpa-mine-worker"} if "Autoscaler" in alert else {}
    )
    kube_pod = {"namespace": "serving", "pod": "mine-worker-a1-b2"} if alert == "InferenceStartSlow" else {}
    expected = [
        {"exp_labels": {**rule["labels"], **pod, **scaler, **kube_pod}, "exp_annotations": rule["annotations"]}
        for rule in firing
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": time, "alertname": alert, "exp_alerts": expected}],
    }


def run_promtool(folder: Path, rules: dict[str, Any], tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run the cases; those of hours are evaluated every hour, since each evaluation reads all windows."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    command = ["promtool", "test", "rules"]
    for interval, unit in (("1m", "m"), ("1h", "h")):
        chosen = [test for test in tests if test["alert_rule_test"][0]["eval_time"].endswith(unit)]
        file = folder / f"every-{interval}.yaml"
        cases = {"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": chosen}
        file.write_text(yaml.safe_dump(cases))
        command.append(str(file))
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="needs promtool, of Debian's package prometheus"
)


@needs_promtool
def test_every_alert_fires_for_what_it_names_and_is_silent_otherwise(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, BLUEPRINT)
    rules = list_rules(deployment)
    assert {alert for alert, _, _, count in CASES if count} == {rule["alert"] for rule in rules}
    assert {alert for alert, _, _, count in CASES if not count} == {rule["alert"] for rule in rules}
    tests = [build_test(rules, *case) for case in CASES]
    result = run_promtool(tmp_path, alerts.build_rules(deployment), tests)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_of_models_that_take_turns_the_one_whose_requests_wait_burns_the_budget(tmp_path: Path) -> None:
    """The engines' histograms have the wait for a turn (tests/images/vllm/test_model_switch.py)."""
    deployment = resolve(tmp_path, TURNS)

    def build_both(slow: int) -> Series:
        """As many requests of each model, of which those of the one that is always awake are in time."""
        models = {"chat": build_latency(0), "code": build_latency(slow)}
        return {
            name.replace('"worker"', f'"chat",model_name="{model}"'): values
            for model, series in models.items()
            for name, values in series.items()
        }

    cases = [(80, 2), (50, 1), (8, 0)]  # of which half is the share of all: 40%, 25% and 4%
    rules = list_rules(deployment)
    tests = [build_test(rules, "InferenceLatencyBudgetBurns", "8h", build_both(slow), count) for slow, count in cases]
    result = run_promtool(tmp_path, alerts.build_rules(deployment), tests)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_a_misspelt_metric_fails_its_case(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, BLUEPRINT)
    text = yaml.safe_dump(alerts.build_rules(deployment)).replace("vllm:num_preemptions_total", "vllm:num_preemptions")
    tests = [build_test(list_rules(deployment), *case) for case in CASES if case[0] == "InferenceCacheTooSmall"]
    result = run_promtool(tmp_path, yaml.safe_load(text), tests)
    assert result.returncode == 1 and "InferenceCacheTooSmall" in result.stdout + result.stderr


@needs_promtool
def test_promtool_finds_nothing_to_complain_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve(tmp_path, DISAGGREGATED)
    shutil.copy(paths.PATTERNS / "disaggregated" / "eks.yaml.j2", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert main.run(["alerts", "mine", "--fleet", "mine/fleet.yaml"]) == 0
    output = capsys.readouterr()
    (tmp_path / "rules.yaml").write_text(output.out)
    command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / "rules.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert output.err.splitlines() == [
        "slo.e2e_ms.p95: no alert: no bucket of vllm measures it",
        "slo.e2e_ms.mean: no alert: no bucket of vllm measures it",
    ]


def test_rules_read_signals_of_the_table_alone(tmp_path: Path) -> None:
    published = {row.name for row in signals.list_program_names()}
    allowed = published | {f"{name}{part}" for name in published for part in ("_bucket", "_count")}
    expressions = " ".join(rule["expr"] for rule in list_rules(resolve(tmp_path, BLUEPRINT)))
    alternatives = "|".join(re.findall(r'__name__=~"([^"]+)"', expressions)).split("|")
    names = {*re.findall(r"([a-zA-Z_:]+)\{", expressions), *alternatives}
    assert len(names) >= 13
    assert names <= allowed


def test_a_limit_between_two_edges_is_measured_at_the_lower_one(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, BLUEPRINT, "{ttft_ms: {p95: 800}, itl_ms: {p50: 50}, e2e_ms: {p99: 0.2}}")
    assert [(row.name, row.edge, row.measured, row.allowed) for row in deployment.latency_objectives] == [
        ("ttft p95", "0.75", "750 ms (the limit of 800 ms is not a bucket edge)", "0.05"),
        ("itl p50", "0.05", "50 ms", "0.5"),
    ]
    assert list(objectives.list_unmeasured(deployment.slo, deployment.latency_objectives)) == ["slo.e2e_ms.p99"]


def test_requests_that_start_a_replica_are_no_errors(tmp_path: Path) -> None:
    rules = list_rules(resolve(tmp_path, BLUEPRINT.replace("1..3", "0..3")))
    assert "InferenceErrorBudgetBurns" not in {rule["alert"] for rule in rules}
    assert [rule["labels"]["role"] for rule in rules if rule["alert"] == "InferenceRoleGone"] == ["router"]


def test_a_role_that_gives_way_may_have_no_replica(tmp_path: Path) -> None:
    rules = list_rules(resolve(tmp_path, BLUEPRINT.replace("replicas: 1..3", "replicas: 1..3, gives_way: on")))
    assert [rule["labels"]["role"] for rule in rules if rule["alert"] == "InferenceRoleGone"] == ["router"]


def test_another_engines_limits_are_measured_by_its_own_buckets(tmp_path: Path) -> None:
    text = BLUEPRINT.replace("model:", "engine: sglang\nmodel:")
    [row] = resolve(tmp_path, text, "{ttft_ms: {p99: 1000}}").latency_objectives
    assert (row.metric, row.edge, row.measured) == ("sglang:time_to_first_token_seconds", "1.0", "1000 ms")


def test_an_alert_that_could_never_fire_is_left_out(tmp_path: Path) -> None:
    """Half of the requests may be slower than a median: six times as many are more than all."""
    rules = list_rules(resolve(tmp_path, BLUEPRINT, "{itl_ms: {p50: 50}, errors: 10%}"))
    burns = [(rule["alert"], rule["labels"]["window"]) for rule in rules if "window" in rule["labels"]]
    assert burns == [
        ("InferenceErrorBudgetBurns", "6h"),
        ("InferenceErrorBudgetBurns", "3d"),
        ("InferenceLatencyBudgetBurns", "3d"),
    ]


def test_before_prefill_and_decode_each_limit_is_measured_where_it_arises(tmp_path: Path) -> None:
    objective_roles = [(row.name, row.role) for row in resolve(tmp_path, DISAGGREGATED).latency_objectives]
    assert objective_roles == [("ttft p95", "prefill"), ("itl p50", "decode")]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    rows = yaml.safe_load(alerts.FILE.read_text("utf-8"))
    for file in (GPU_ALERTS, KARPENTER_ALERTS):
        [rule] = [part for part in yaml.safe_load_all(file.read_text("utf-8")) if part["kind"] == "PrometheusRule"]
        rows += rule["spec"]["groups"][0]["rules"]
    rows += yaml.safe_load((paths.CHARTS / "streaming" / "files" / "alerts.yaml").read_text("utf-8"))
    folder = paths.ROOT / alerts.RUNBOOKS
    assert {file.stem for file in folder.glob("*.md")} == {row["alert"] for row in rows}
    for file in folder.glob("*.md"):
        text = file.read_text("utf-8")
        assert re.findall(r"^#+ .*", text, re.MULTILINE) == [f"# {file.stem}", "## Meaning", "## Check", "## Act"], file


def test_a_batch_has_no_such_alerts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "blueprint.yaml").write_text("kind: batch\n")
    monkeypatch.chdir(tmp_path)
    assert main.run(["alerts", "rows"]) == 2
    assert capsys.readouterr().err == (
        'rows/blueprint.yaml:1:7: kind: "batch": `blueprint alerts` does not work with this kind: its alarms are '
        "CloudWatch's. Fix: use a blueprint of the kind serving.\n"
    )
