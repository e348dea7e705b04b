from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.validation import on_demand, run
from llm_serving.validation.drivers import job, registry
from llm_serving.validation.drivers.base import LOCKS, Job, build_sample
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.load.prompt import Prompt
from tests import known_server
from tests.known_server import Behaviour
from tests.validation.conftest import TargetFactory, build_options

DATA = Path(__file__).with_name("data")
NAMES = ["aiperf", "guidellm", "inference-perf", "vllm-bench"]


def _build_job(folder: Path, due: list[float] | None = None, **traffic: Any) -> Job:
    prompts = [Prompt(({"role": "user", "content": f"Read {index}"},), 8 + index) for index in range(40)]
    settings = Traffic.model_validate({"arrivals": "20/s", "requests": 40, **traffic})
    plan = LoadPlan(url="http://127.0.0.1:1", models=("tiny",), traffic=settings, folder=str(folder))
    return Job(plan, prompts, due, True, folder)


def _read(name: str, folder: Path) -> list[Sample]:
    """The samples of a recorded result."""
    driver = registry.load_driver(name)
    job = _build_job(folder, [index / 20 for index in range(40)])
    recorded = next(DATA.glob(f"{name}.json*"))
    shutil.copy(recorded, job.result.with_suffix(recorded.suffix))
    return driver.read(job)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_results_become_samples_with_the_servers_times(name: str, tmp_path: Path) -> None:
    samples = _read(name, tmp_path)
    answered = [sample for sample in samples if sample.error is None]
    assert len(answered) == 3
    for sample in answered:
        assert sample.ttft_ms is not None
        assert sample.e2e_ms is not None
        assert 50 <= sample.ttft_ms < 150
        gaps = sum(gap.ms * gap.tokens for gap in sample.gaps)
        assert sample.ttft_ms + gaps <= sample.e2e_ms + 1
        assert sample.compute_mean_gap_ms() == pytest.approx(10, rel=0.6), "on a busy machine"
        assert sample.output_tokens == 1 + sum(gap.tokens for gap in sample.gaps)
        assert 8 <= sample.output_tokens <= 16
        assert sample.input_tokens and 30 <= sample.input_tokens <= 60, "the server's count"


@pytest.mark.parametrize(
    ("traffic", "waited_ms", "late_ms"),
    [({"max_concurrency": 2}, 400, 0), ({}, 0, 400), ({"arrivals": None, "users": 2}, 0, 0)],
    ids=["capped", "own delay", "closed loop"],
)
def test_a_drivers_wait_before_it_sends_counts_in_the_open_loop(
    traffic: dict[str, Any], waited_ms: float, late_ms: float, tmp_path: Path
) -> None:
    queued_ms = waited_ms + late_ms
    recorded = json.loads((DATA / "vllm-bench.json").read_text())
    recorded["queue_times"][0] = 0.4
    job = _build_job(tmp_path, None if "users" in traffic else [index / 20 for index in range(40)], **traffic)
    job.result.write_text(json.dumps(recorded))
    sample = registry.load_driver("vllm-bench").read(job)[0]
    assert (sample.waited_ms, sample.late_ms) == (waited_ms, late_ms)
    assert sample.ttft_ms == pytest.approx(recorded["ttfts"][0] * 1000 + queued_ms)
    assert sample.e2e_ms == pytest.approx(recorded["latencies"][0] * 1000 + queued_ms)
    assert sample.start_s == pytest.approx(recorded["start_times"][0] - queued_ms / 1000)
    recorded = json.loads((DATA / "guidellm.json").read_text())
    row = recorded["benchmarks"][0]["requests"]["successful"][0]
    row["info"]["timings"]["targeted_start"] = row["info"]["timings"]["request_start"] - queued_ms / 1000
    job.result.write_text(json.dumps(recorded))
    sample = registry.load_driver("guidellm").read(job)[0]
    sent_ms = (row["request_start_time"] - row["info"]["timings"]["targeted_start"]) * 1000
    waits = "max_concurrency" in traffic
    assert (sample.waited_ms, sample.late_ms) == pytest.approx((sent_ms, 0) if waits else (0, sent_ms))
    assert sample.ttft_ms == pytest.approx(row["time_to_first_token_ms"] + sent_ms)


@pytest.mark.parametrize("name", NAMES)
def test_users_begin_one_after_the_other_or_the_report_says_that_they_do_not(name: str, tmp_path: Path) -> None:
    driver = registry.load_driver(name)
    job = dataclasses.replace(_build_job(tmp_path, arrivals=None, users=4), ramp_s=1.5)
    assert ("1.5" in " ".join(driver.build_command(job, Path("bin")))) == driver.ramps
    said = [note for note in driver.list_notes(job.plan.traffic) if "begins all 4 users at once" in note]
    assert len(said) == (0 if driver.ramps else 1)
    assert tuple(driver.list_notes(Traffic.model_validate({"arrivals": "20/s"}))) == driver.notes


def test_the_tokens_of_an_answer_are_spread_evenly_over_its_chunks() -> None:
    sample = build_sample(0, 0.0, times=[0.1, 0.2, 0.3], end=0.3, input_tokens=5, output_tokens=6)
    assert [(round(gap.ms), gap.tokens) for gap in sample.gaps] == [(50, 2), (50, 2)]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_failures_are_named(name: str, tmp_path: Path) -> None:
    kinds = {sample.error for sample in _read(name, tmp_path) if sample.error}
    # vllm bench serve keeps the reason of a status, not its number.
    assert kinds == {"truncated", "server_error" if name == "vllm-bench" else "http_500"}


def test_a_run_of_guidellm_without_a_schedule_is_refused(tmp_path: Path) -> None:
    recorded = json.loads((DATA / "guidellm.json").read_text())
    rows = recorded["benchmarks"][0]["requests"]["successful"]
    rows[0]["info"]["timings"]["targeted_start"] = -0.9
    job = _build_job(tmp_path)
    job.result.with_suffix(".json").write_text(json.dumps(recorded))
    with pytest.raises(CheckFailed, match=r"GuideLLM sent all requests at once: .* Fix: run it again"):
        registry.load_driver("guidellm").read(job)


def test_aiperf_sends_our_own_requests_at_our_own_times(tmp_path: Path) -> None:
    job = _build_job(tmp_path, [index / 20 for index in range(40)])
    command = registry.load_driver("aiperf").build_command(job, Path("bin"))
    assert "--fixed-schedule" in command
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [row["timestamp"] for row in rows[:3]] == [0, 50, 100]
    assert rows[2]["payload"]["messages"] == [{"role": "user", "content": "Read 2"}]
    assert rows[2]["payload"]["max_tokens"] == 10


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("traffic", [{}, {"arrivals": None, "users": 4}])
def test_a_command_names_the_server_the_model_and_the_load(name: str, traffic: dict[str, Any], tmp_path: Path) -> None:
    job = _build_job(tmp_path, [0.0] * 40 if not traffic else None, **traffic)
    command = registry.load_driver(name).build_command(job, Path("bin"))
    text = " ".join(command) + "".join(file.read_text() for file in tmp_path.glob("*") if file.is_file())
    assert "http://127.0.0.1:1" in text
    assert "tiny" in text
    assert "Read 39" in text


@pytest.mark.parametrize(
    ("name", "traffic", "message"),
    [
        (
            "vllm-bench",
            {"arrivals": "5/s", "process": "constant"},
            r"traffic\.process: vllm bench serve cannot send it: .*Fix: write process: poisson",
        ),
        ("guidellm", {"arrivals": "5/s", "burstiness": 0.5}, r"traffic\.burstiness: GuideLLM cannot send it"),
        (
            "inference-perf",
            {"arrivals": "5/s", "max_concurrency": 5},
            r"traffic\.max_concurrency: inference-perf cannot",
        ),
        ("aiperf", {"users": 5, "think_time": "1s"}, r"traffic\.think_time: AIPerf cannot send it: its users send"),
    ],
)
def test_what_a_driver_cannot_send_is_refused(name: str, traffic: dict[str, Any], message: str) -> None:
    plan = LoadPlan(url="http://x", models=("tiny",), traffic=Traffic.model_validate(traffic), folder="/x")
    with pytest.raises(InputError, match=message):
        job.check(registry.load_driver(name), plan)


@pytest.mark.parametrize("name", NAMES)
def test_a_driver_that_would_ask_the_first_of_several_models_alone_is_refused(name: str) -> None:
    plan = LoadPlan(url="http://x", models=("chat", "code"), traffic=Traffic(users=1), folder="/x")
    driver = registry.load_driver(name)
    with pytest.raises(InputError) as error:
        job.check(driver, plan)
    reason = "it sends to one model, and this deployment has chat, code"
    assert f"--driver: {driver.title} cannot send it: {reason}. Fix: remove --driver." in str(error.value).splitlines()


def test_a_key_is_not_handed_to_other_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEPRINT_API_KEY", "secret")
    plan = LoadPlan(url="http://127.0.0.1:1", models=("tiny",), traffic=Traffic(users=1), folder="/x")
    with pytest.raises(InputError, match=r"^--driver: AIPerf cannot send it: BLUEPRINT_API_KEY would be") as error:
        job.check(registry.load_driver("aiperf"), plan)
    assert "secret" not in str(error.value)


def test_an_unknown_driver_is_refused() -> None:
    with pytest.raises(InputError, match=r'--driver: "wrk": there is no such driver\. Fix: use aiperf or guidellm or'):
        registry.load_driver("wrk")


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_driver_of_its_own_environment_has_a_lock_with_hashes(name: str) -> None:
    lines = (LOCKS / f"{name}.txt").read_text().splitlines()
    pins = [line for line in lines if "==" in line]
    assert any(line.startswith(f"{registry.load_driver(name).package}==") for line in pins)
    assert all(line.endswith("\\") for line in pins), "each pin has hashes on the next lines"


def test_the_page_names_every_driver_with_its_version_and_size() -> None:
    page = (paths.ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(" `"): cells for line in page.splitlines() if len(cells := line.split("|")) == 7}
    drivers = registry.load_drivers()
    assert rows.keys() - {"`--driver`".strip("`"), "---"} == drivers.keys()
    for name, driver in drivers.items():
        lock = driver.lock.read_text() if driver.download_mib else ""
        version = next(
            (
                line.split()[0].partition("==")[2]
                for line in lock.splitlines()
                if line.startswith(f"{driver.package}==")
            ),
            "",
        )
        assert version in rows[name][2]
        size = driver.download_mib
        assert ("none" if not size else f"{size} MiB" if size < 1024 else f"{size / 1024:.1f} GiB") in rows[name][3]


def test_an_older_python_is_refused_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(on_demand.sys, "version_info", (3, 11, 0))
    with pytest.raises(Unavailable, match=r"inference-perf needs Python 3\.12 or later, and none is on PATH"):
        on_demand.ensure(registry.load_driver("inference-perf"))
    assert not any(folder.is_dir() for folder in (tmp_path / "llm-serving-blueprints").iterdir())


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_vllm_bench_serve_sends_our_plan_and_our_report_judges_it(make_target: TargetFactory, tmp_path: Path) -> None:
    traffic = {"arrivals": "20/s", "requests": 20, "input_tokens": 40, "output_tokens": 8, "warm_up": 1}
    slo = {"ttft_ms": {"p50": 5000}}
    with known_server.run_server(Behaviour(0.05, 0.01)) as url:
        deployment = make_target(url, traffic, slo)
        report, folder = run.validate(deployment, build_options(tmp_path, driver="vllm-bench"))
    assert report.requests.model_dump() == {"total": 20, "failed": 0, "by_error": {}, "planned": 20}
    assert report.metrics["ttft_ms"].p50 >= 50
    assert report.metrics["itl_ms"].count == 20 * 7
    assert report.tokens.output_exact == 1
    assert report.settings["driver"] == "vllm-bench"
    assert "vllm-bench" in report.versions
    assert {"vllm-bench.json", "vllm-bench.log", "report.json"} <= {path.name for path in folder.iterdir()}
    server = next(row for row in report.agreement if (row.metric, row.statistic) == ("ttft_ms", "mean"))
    assert 50 <= server.engine_ms <= server.client_ms, (
        "the server's clock runs within the client's, however busy the machine"
    )
