"""`recommend` goes by the reports of the blueprint itself: a sweep as it is, a low load and a burst by calibration."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.catalog import instances, models, step_times
from llm_serving.cli import main
from llm_serving.engines import vllm
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.kinds.serving import measured_loads
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.validation import validate
from llm_serving.prediction import search
from llm_serving.prediction.simulation import Limits, Outcome, Request, Simulation, compute_percentile
from llm_serving.prediction.step_time import StepTime
from llm_serving.prediction.workload import Length, Workload
from llm_serving.services.traffic import Traffic
from llm_serving.targets import planning
from llm_serving.validation.load import load_plan

BLUEPRINT = """\
pattern: aggregated
model: Qwen/Qwen3-8B
roles: {worker: {pool: large, replicas: 1, accelerators: 1}}
traffic: {arrivals: 6/s, input_tokens: 500..1500, output_tokens: 100..200}
slo: {ttft_ms: {p95: 2000}}
"""
TYPE = "g5.xlarge"
"""Its accelerator has one way to run the model: in 16 bits, on one."""
SLOWER = step_times.load().scale(alone=1.15, batch=1.6, first_token_s=0.05)
"""What the accelerators of the user take."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search, "REQUESTS", 150)
    monkeypatch.setattr(search, "SCOUTS", 60)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/blueprint.yaml").write_text(BLUEPRINT, encoding="utf-8")
    return tmp_path


def measure(load: Mapping[str, Any], times: step_times.StepTimes, count: int, replicas: int = 1) -> Outcome:
    """Return what one of the replicas with such step times would measure."""
    device, model = instances.find(TYPE).accelerators, models.find("Qwen/Qwen3-8B")
    assert device
    batch, fit = vllm.select_batch(device), vllm.compute_fit(model, instances.find(TYPE), ReplicaSetup(1, context=2000))
    traffic = build_traffic(load)
    rows = itertools.islice(load_plan.draw_lengths(traffic, "load"), count)
    lengths = [Length(row.input_tokens, row.output_tokens) for row in rows]
    requests = (
        Workload(traffic.arrivals, lengths).draw(count, replicas, 0)
        if traffic.arrivals
        else [Request(0.0, *length) for length in lengths]
    )
    limits = Limits(batch.sequences, batch.tokens, fit.cache_tokens)
    return Simulation(StepTime(model, device, Split(), times=times), limits).run(requests, traffic.users or 0)


def build_traffic(load: Mapping[str, Any]) -> Traffic:
    return Traffic.model_validate({"input_tokens": "500..1500", "output_tokens": "100..200", **load})


def write_report(path: Path, load: Mapping[str, Any], times: step_times.StepTimes = SLOWER, count: int = 150) -> None:
    outcome = measure(load, times, count)
    values = {
        "ttft_ms": outcome.ttft_s,
        "itl_ms": [gap for gap, number in outcome.gaps for _ in range(number)],
        "e2e_ms": outcome.e2e_s,
    }
    metrics = {
        metric: {
            "mean": 1000 * math.fsum(seconds) / len(seconds),
            **{f"p{percent}": 1000 * compute_percentile(seconds, percent) for percent in (50, 90, 95, 99)},
        }
        for metric, seconds in values.items()
    }
    report = {
        "not_shown": [],
        "requests": {"total": count, "failed": 0},
        "metrics": metrics,
        "bounds": {
            metric: {name: {"value": ms, "upper": 1.05 * ms, "infinite": False} for name, ms in row.items()}
            for metric, row in metrics.items()
        },
        "throughput": {"requests_per_s": count / outcome.seconds},
        "settings": {
            "engine": "vllm",
            "model": "Qwen/Qwen3-8B",
            "instances": {
                "worker": {"type": TYPE, "replicas": 1, "tensor": 1, "pipeline": 1, "data": 1, "expert": False}
            },
            "traffic": build_traffic(load).model_dump(mode="json", exclude_none=True, exclude={"turns"}),
        },
    }
    path.mkdir(parents=True)
    (path / "report.json").write_text(json.dumps(report), encoding="utf-8")


def recommend(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main.run(["recommend", "mine", "--type", TYPE, "--json"]) == 0
    payload: dict[str, Any] = json.loads(capsys.readouterr().out)
    return payload


def test_a_low_load_and_a_burst_calibrate_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    before = recommend(capsys)["chosen"]
    write_report(Path("runs/mine/2026-11-26T10-00-00Z"), {"arrivals": "0.2/s"}, count=40)
    write_report(Path("runs/mine/2026-11-26T10-10-00Z"), {"users": 64})
    payload = recommend(capsys)
    chosen, (role,) = payload["chosen"], payload["chosen"]["roles"]
    assert (before["basis"], chosen["basis"]) == ("extrapolated", "calibrated")
    assert role["replicas"] > before["roles"][0]["replicas"], "its accelerators are slower"
    assert chosen["usd_per_hour"] > before["usd_per_hour"]
    truth = measure({"arrivals": "6/s"}, SLOWER, 150, role["replicas"])
    predicted = chosen["predicted"]["e2e_ms"]
    assert predicted["low"] < 1000 * compute_percentile(truth.e2e_s, 95) < predicted["high"]
    note = "calibrated: A10G 22888 x 1, bf16, by runs/mine/2026-11-26T10-00-00Z and runs/mine/2026-11-26T10-10-00Z"
    assert note in payload["notes"]
    assert "; calibrated: TTFT p95 of " in chosen["why"]


def test_two_low_loads_do_not_calibrate(capsys: pytest.CaptureFixture[str]) -> None:
    for number, rate in enumerate(("0.2/s", "0.3/s")):
        write_report(Path(f"runs/mine/2026-11-26T10-0{number}-00Z"), {"arrivals": rate}, count=40)
    payload = recommend(capsys)
    assert payload["chosen"]["basis"] == "extrapolated"
    assert payload["notes"][-1] == (
        "A10G 22888 x 1: these loads identify no batch cost, and do not calibrate. "
        "Fix: validate with traffic: {users: 32} too."
    )


def test_reports_of_another_model_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    write_report(Path("runs/mine/2026-11-26T10-00-00Z"), {"arrivals": "0.2/s"}, count=40)
    write_report(Path("runs/mine/2026-11-26T10-10-00Z"), {"users": 64})
    assert main.run(["recommend", "mine", "--model", "Qwen/Qwen3-4B", "--type", TYPE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["basis"] == "extrapolated"


def write_sweep(rates: tuple[float, ...], name: str = "sweep-2026-11-26T11-00-00Z") -> None:
    for rate in rates:
        write_report(Path(f"runs/mine/{name}/points/{rate:g}"), {"arrivals": f"{rate}/s"})


def test_a_sweep_outranks_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep((0.1, 0.25, 0.5, 20))
    payload = recommend(capsys)
    chosen, (role,) = payload["chosen"], payload["chosen"]["roles"]
    assert (chosen["basis"], role["replicas"]) == ("measured", 24), "0.25/s were kept by each, 0.5/s were not"
    ttft = chosen["predicted"]["ttft_ms"]
    measured = 1000 * compute_percentile(measure({"arrivals": "0.25/s"}, SLOWER, 150).ttft_s, 95)
    assert ttft["p95"] == pytest.approx(measured, abs=0.1)
    assert ttft["high"] == pytest.approx(1.05 * measured, abs=0.1)
    assert "measured: runs/mine/sweep-2026-11-26T11-00-00Z" in payload["notes"]
    assert main.run(["recommend", "mine", "--type", TYPE, "--explain", TYPE]) == 0
    assert "; measured (runs/mine/sweep-2026-11-26T11-00-00Z): " in capsys.readouterr().out.replace("\n", " ")
    assert main.run(["recommend", "mine", "--type", TYPE]) == 0
    assert "measured" in capsys.readouterr().out.partition("quota:")[0]


def test_the_newest_sweep_counts_and_one_of_other_prompts_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep((0.1, 0.2, 20))
    assert recommend(capsys)["chosen"]["roles"][0]["replicas"] == 30, "of 0.2/s each"
    write_sweep((0.1, 0.25, 20), "sweep-2026-11-26T12-00-00Z")
    assert recommend(capsys)["chosen"]["roles"][0]["replicas"] == 24, "of 0.25/s each"
    assert main.run(["recommend", "mine", "--type", TYPE, "--output-tokens", "10..20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["basis"] == "calibrated"


def test_a_load_that_showed_no_steady_state_is_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep((0.1, 0.25, 20))
    file = Path("runs/mine/sweep-2026-11-26T11-00-00Z/points/0.25/report.json")
    file.write_text(
        file.read_text("utf-8").replace('"not_shown": []', '"not_shown": ["the queue still grew"]'), "utf-8"
    )
    assert recommend(capsys)["chosen"]["roles"][0]["replicas"] == 60, "of 0.1/s each"


def test_a_sweep_whose_lowest_load_misses_the_slo_rules_its_setup_out(capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep((10, 20))
    assert main.run(["recommend", "mine", "--type", TYPE, "--json"]) == 1
    payload = json.loads(capsys.readouterr().out)
    reason = "runs/mine/sweep-2026-11-26T11-00-00Z shows that the lowest load measured misses the SLO"
    assert (payload["candidates"], payload["rejected"]) == (
        [], [{"instance": TYPE, "reason": reason, "limited_by": "ttft"}]
    )  # fmt: skip


def test_reports_name_the_instances_that_were_rented_and_not_this_machine(folder: Path) -> None:
    text = BLUEPRINT.replace("large", "wide").replace("Qwen/Qwen3-8B", "tiny")
    shutil.copytree(paths.PATTERNS / "aggregated", folder / "other")
    (folder / "other/blueprint.yaml").write_text(text, encoding="utf-8")
    placed = {}
    for target in ("eks", "local"):
        deployment = planning.plan_offline(folder / "other", paths.ROOT / "fleet.yaml", target).deployment
        assert isinstance(deployment, ServingDeployment)
        environment = deployment.environment.model_copy(update={"emulated": ()})
        placed[target] = validate._list_instances(deployment.model_copy(update={"environment": environment}))
    fixed = {"replicas": 1, "tensor": 1, "pipeline": 1, "data": 1, "expert": False}
    assert placed == {"eks": {"worker": {"type": "g6e.12xlarge", **fixed}}, "local": {}}


@pytest.mark.parametrize("text", ["", "{", "{}", '{"settings": {"engine": "vllm"}}'])
def test_broken_reports_are_passed_over(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/mine/2026-11-26T10-00-00Z").mkdir(parents=True)
    Path("runs/mine/2026-11-26T10-00-00Z/report.json").write_text(text, encoding="utf-8")
    assert recommend(capsys)["chosen"]["basis"] == "extrapolated"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_load_is_simulated_with_the_arrivals_and_lengths_that_were_sent(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = build_traffic({"arrivals": "5/s", "requests": 40})
    simulated: list[Request] = []
    monkeypatch.setattr(Simulation, "run", lambda _, requests, *__: simulated.extend(requests))
    accelerators = instances.find(TYPE).accelerators
    assert accelerators
    step = StepTime(models.find("Qwen/Qwen3-8B"), accelerators, Split())
    measured_loads.simulate(step, Limits(8, 512, 10_000), traffic, 40 // replicas, replicas)
    sent = zip(load_plan.draw_arrivals(traffic) or [], load_plan.draw_lengths(traffic, "load"), strict=False)
    expected = [(at_s, length.input_tokens, length.output_tokens) for at_s, length in sent]
    assert [(request.at_s, request.input_tokens, request.output_tokens) for request in simulated] == expected[
        ::replicas
    ]


def test_loads_of_replicas_that_have_room_by_their_own_options_alone_do_not_calibrate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, load in (("2026-11-26T10-00-00Z", {"arrivals": "0.2/s"}), ("2026-11-26T10-10-00Z", {"users": 64})):
        write_report(Path(f"runs/mine/{name}"), load, count=40)
        file = Path(f"runs/mine/{name}/report.json")
        file.write_text(file.read_text().replace("500..1500", "500..30000"), encoding="utf-8")
    assert recommend(capsys)["chosen"]["basis"] == "extrapolated"
