"""`blueprint recommend`: what it finds, what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from llm_serving import paths
from llm_serving.cli import main
from llm_serving.engines.memory import Split
from llm_serving.kinds.serving import recommend as recommendation
from llm_serving.kinds.serving.recommend import Question
from llm_serving.prediction import configurations, search
from llm_serving.services.traffic import Traffic
from llm_serving.settings.units import Bounds

ASKED = (
    "--model", "Qwen/Qwen3-8B", "--arrivals", "2/s", "--input-tokens", "500..1500", "--output-tokens", "100..200",
    "--ttft-p95", "1000", "--itl-p95", "60",
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"

FEW = ("--type", "g6e.xlarge", "--type", "g6.12xlarge", "--type", "p5.4xlarge")


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "REQUESTS", 150)
    monkeypatch.setattr(search, "SCOUTS", 60)


def run(*words: str) -> int:
    return main.run(["recommend", *words])


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(*words, "--json") == 0
    payload: dict[str, Any] = json.loads(capsys.readouterr().out)
    return payload


def test_the_answer_has_the_keys_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    payload = run_json(capsys, *ASKED, *FEW)
    assert list(payload) == [
        "model", "region", "prices_dated", "slo", "chosen", "candidates", "rejected", "notes"
    ]  # fmt: skip
    assert payload["slo"] == {"ttft_ms": {"p95": 1000.0}, "itl_ms": {"p95": 60.0}}
    chosen = payload["chosen"]
    assert chosen == payload["candidates"][0]
    assert {"instance", "pattern", "nodes", "roles", "usd_per_hour", "usd_per_million_output_tokens", "predicted", "basis",
            "limited_by", "why"} <= set(chosen)  # fmt: skip
    assert set(chosen["roles"][0]) == {"name", "tensor", "pipeline", "expert", "replicas"}
    for metric in ("ttft_ms", "itl_ms", "e2e_ms"):
        latency = chosen["predicted"][metric]
        assert latency["p50"] <= latency["p95"] <= latency["p99"]
        assert latency["low"] <= latency["p95"] <= latency["high"]
    assert chosen["predicted"]["ttft_ms"]["high"] <= 1000
    prices = [candidate["usd_per_hour"] for candidate in payload["candidates"]]
    assert prices == sorted(prices)
    assert all(set(row) == {"instance", "reason", "limited_by"} for row in payload["rejected"])


def test_every_type_is_a_candidate_or_rejected_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    payload = run_json(capsys, *ASKED, *FEW)
    named = [row["instance"] for row in (*payload["candidates"], *payload["rejected"])]
    assert sorted(named) == sorted(FEW[1::2])


def test_what_is_written_is_accepted_by_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*ASKED, *FEW, "--shared-prefix", "400", "--write", "mine") == 0
    assert "Next: blueprint check mine --fleet mine/fleet.yaml --target eks\n" in capsys.readouterr().out
    assert main.run(["check", "mine", "--fleet", "mine/fleet.yaml", "--target", "eks"]) == 0


def test_the_chart_is_a_file_that_shows_what_the_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    candidates = run_json(capsys, *ASKED, *FEW, "--chart", "chart.svg")["candidates"]
    picture = ElementTree.parse("chart.svg").getroot()
    assert picture.tag == f"{SVG}svg", "no browser draws a file without its namespace"
    assert "svg text" in picture.findtext(f"{SVG}style", "")
    labels = [f"{row['usd_per_hour']:,.2f} USD/h  {row['instance']}" for row in candidates]
    figures = picture.findall(f"{SVG}g")
    assert figures
    for figure, metric in zip(figures, ("ttft_ms", "itl_ms"), strict=True):
        names = [element.text or "" for element in figure.iter(f"{SVG}text")]
        assert [name for name in names if "USD/h" in name] == labels
        dots = [float(element.get("cx", "")) for element in figure.iter(f"{SVG}circle")]
        values = [row["predicted"][metric]["p95"] for row in candidates]
        assert sorted(dots) == [dot for _, dot in sorted(zip(values, dots, strict=True))], "further right is slower"


def test_a_replica_of_several_nodes_is_written_with_a_pool_that_joins_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--model", "deepseek-ai/DeepSeek-V3", "--arrivals", "0.2/s", "--input-tokens", "500..1000",
             "--output-tokens", "50..100", "--ttft-p95", "5000", "--type", "p5.48xlarge")  # fmt: skip
    assert run_json(capsys, *words, "--write", "mine")["chosen"]["pattern"] == "distributed"
    assert main.run(["check", "mine", "--fleet", "mine/fleet.yaml", "--target", "eks"]) == 0


def test_prefill_and_decode_are_written_as_roles_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo").mkdir()
    text = (paths.PATTERNS / "aggregated/blueprint.yaml").read_text("utf-8")
    limits = "slo:\n  ttft_ms: {p95: 3000}\n  itl_ms: {p99: 16}\n"
    (tmp_path / "slo/blueprint.yaml").write_text(text.partition("slo:")[0] + limits, encoding="utf-8")
    words = ("slo", "--model", "Qwen/Qwen3-8B", "--arrivals", "8/s", "--input-tokens", "4000..6000",
             "--output-tokens", "50..100", "--shared-prefix", "0", "--type", "p4de.24xlarge")  # fmt: skip
    chosen = run_json(capsys, *words, "--write", "mine")["chosen"]
    assert chosen["pattern"] == "disaggregated"
    assert [(role["name"], role["tensor"]) for role in chosen["roles"]] == [("prefill", 2), ("decode", 2)]
    assert chosen["why"].startswith("3 prefill and 2 decode replicas of 2 accelerators, ")
    assert main.run(["check", "mine", "--fleet", "mine/fleet.yaml", "--target", "eks"]) == 0


def test_whole_experts_are_written_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--model", "Qwen/Qwen3-235B-A22B-FP8", "--arrivals", "0.2/s", "--input-tokens", "500..1000",
             "--output-tokens", "50..100", "--ttft-p95", "5000", "--type", "p4d.24xlarge", "--region", "eu-west-1")  # fmt: skip
    (role,) = run_json(capsys, *words, "--write", "mine")["chosen"]["roles"]
    assert (role["tensor"], role["expert"]) == (8, 8)
    assert "zones:\n- eu-west-1a\n- eu-west-1c\n" in Path("mine/fleet.yaml").read_text(), "a cluster takes two"
    assert main.run(["check", "mine", "--fleet", "mine/fleet.yaml", "--target", "eks"]) == 0


def test_copies_of_the_attention_layers_are_written_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(configurations, "_list_splits", lambda *_: [Split(data=8, whole_experts=True)])
    words = ("--model", "Qwen/Qwen3-30B-A3B", "--arrivals", "2/s", "--input-tokens", "500..1000",
             "--output-tokens", "50..100", "--ttft-p95", "5000", "--type", "p5.48xlarge")  # fmt: skip
    chosen = run_json(capsys, *words, "--write", "mine")["chosen"]
    assert chosen["roles"] == [{"name": "worker", "tensor": 1, "pipeline": 1, "expert": 8, "replicas": 1}]
    assert chosen["why"].startswith("1 replica of 8 accelerators, copies of the attention layers 8; ")
    assert main.run(["check", "mine", "--fleet", "mine/fleet.yaml", "--target", "eks"]) == 0


def test_a_blueprints_traffic_and_slo_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(paths.PATTERNS / "aggregated", "mine")
    payload = run_json(capsys, "mine", "--model", "Qwen/Qwen3-8B", *FEW)
    assert payload["slo"] == {"ttft_ms": {"p95": 5000.0}, "itl_ms": {"p95": 2000.0}, "e2e_ms": {"p99": 30000.0}}
    file = Path("mine/blueprint.yaml")
    file.write_text(file.read_text().replace("model: tiny", "engine: sglang\nmodel: tiny"))
    note = "memory, steps and what --write writes are those of vllm, not of sglang"
    assert note not in payload["notes"]
    assert note in run_json(capsys, "mine", "--model", "Qwen/Qwen3-8B", *FEW)["notes"]


def test_explain_says_why_a_type_is_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*ASKED, "--type", "g6e.xlarge", "--type", "g6e.2xlarge", "--explain", "g6e.2xlarge")
    assert run(*words, "--chart", "/nowhere/chart.svg") == 3, "minutes of simulation are not lost for a file's name"
    assert capsys.readouterr().out == "g6e.2xlarge: the same accelerators as g6e.xlarge, which costs less\n"


def test_nothing_meets_the_slo_and_the_gap_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ASKED[:-1], "2", "--type", "g6e.xlarge") == 1
    error = capsys.readouterr().err
    assert "no type meets TTFT p95 1000 ms and ITL p95 2 ms: on the fastest one one request alone takes" in error


def test_the_floor_is_that_of_the_fastest_numbers_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*ASKED[:-1], "1", "--type", "p5.48xlarge", "--type", "p5en.48xlarge")
    assert run(*words, "--json") == 1
    output = capsys.readouterr()
    dearest = json.loads(output.out)["rejected"][-1]
    floor = float(re.search(r"on the fastest one one request alone takes ([\d.]+) ms", output.err)[1])
    assert dearest["instance"] == "p5en.48xlarge"
    assert floor < float(re.search(r"takes ([\d.]+) ms", dearest["reason"])[1]), "the dearest is not the fastest"
    assert run(*ASKED[:-1], str(floor + 0.01), *words[-4:], "--explain", "p5.48xlarge") in (0, 1)
    assert "alone" not in capsys.readouterr().out, "with a limit above it, a request alone meets it"


def test_what_costs_more_than_allowed_is_no_floor(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--type", "g6e.xlarge", "--type", "p5.4xlarge", "--max-usd-per-hour", "3")
    assert run(*ASKED[:-1], "10", *words) == 1
    reason = "what may meet it costs more. Fix: raise --max-usd-per-hour."
    assert f"no type meets TTFT p95 1000 ms and ITL p95 10 ms: {reason}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ASKED[:8], "--ttft-p95: there is no limit of latency. Fix: write --ttft-p95 800 --itl-p95 50.\n"),
        (ASKED[2:], "--model: it is missing. Fix: write --model Qwen/Qwen3-32B, or name a blueprint's folder.\n"),
        ((*ASKED[:2], *ASKED[4:]), "--arrivals: it is missing. Fix: write --arrivals 10/s.\n"),
        (
            (*ASKED, "--shared-prefix", "600"),
            "--shared-prefix: 600: the shortest prompt has 500 tokens. Fix: use 500 or less.\n",
        ),
        (
            (*ASKED, "--output-tokens", "90k"),
            "--output-tokens: a request has up to 91500 tokens, more than the context of Qwen/Qwen3-8B, 40960. "
            "Fix: use shorter requests or another model.\n",
        ),
        (
            (*ASKED, "--type", "m8g.large"),
            '--type: "m8g.large": it has no accelerators. Fix: use another type or region.\n',
        ),
        ((*ASKED, "--buy", "cheap"), '--buy: "cheap": there is no such way to buy. Fix: use on-demand or spot.\n'),
    ],
)
def test_bad_input_is_refused_with_its_fix(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((*ASKED, "--arrivals", "0/s"), '--arrivals: "0/s": '),
        ((*ASKED, "--type", "g9.large"), "g9.large: the catalog has no such instance type."),
        ((*ASKED, "--region", "mars-1"), '--region: "mars-1": the catalog has no prices of it. Fix: use '),
        ((*ASKED, "--model", "Qwen/Qwen3-Embedding-0.6B"), "it generates no text. Fix: use a model that does."),
        (
            (*ASKED, "--model", "bartowski/Qwen_Qwen3-4B-GGUF:Q4_K_M"),
            "it is in GGUF, and the engine whose steps are predicted reads safetensors. Fix: use Qwen/Qwen3-4B.",
        ),
    ],
)
def test_unknown_names_and_values_are_refused(
    words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert part in capsys.readouterr().err


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write_trace(path: Path, count: int, *, swapped: bool = False, step_s: int = 1) -> Path:
    times = [step_s * row for row in range(count)]
    rows = [
        f"2024-05-10 00:{second // 60:02}:{second % 60:02}.0000000,{700 + row},80\n" for row, second in enumerate(times)
    ]
    if swapped:
        rows[3], rows[4] = rows[4], rows[3]
    path.write_text(HEADER + "".join(rows), encoding="utf-8")
    return path


def test_a_trace_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_trace(tmp_path / "trace.csv", 200)
    words = ("--model", "Qwen/Qwen3-8B", "--trace", str(file), "--ttft-p95", "1000", *FEW)
    assert run_json(capsys, *words)["chosen"]["instance"] == "g6e.xlarge"


@pytest.mark.parametrize(("rate", "written"), [(1e-5, "0.00001/s"), (123_456.0, "123456/s"), (2.5, "2.5/s")])
def test_a_rate_is_written_as_blueprints_have_it(rate: float, written: str) -> None:
    question = Question(arrivals=rate, input_tokens=Bounds(5, 9), output_tokens=Bounds(5, 9))
    _, traffic = recommendation.build_workload(question, None)
    assert (traffic["arrivals"], Traffic.model_validate(traffic).arrivals) == (written, rate)


@pytest.mark.parametrize(
    ("count", "swapped", "step_s", "message"),
    [
        (99, False, 1, '--trace: "{file}": it has 99 requests with tokens, fewer than 100. Fix: use a longer trace.\n'),
        (200, True, 1, "{file}:6:1: request 5 came before the one above it. Fix: sort the trace by its times.\n"),
        (
            200,
            False,
            0,
            '--trace: "{file}": its requests come at more than 1,000,000/s. '
            "Fix: use a trace with the times of its requests.\n",
        ),
    ],
)
def test_a_trace_that_is_short_or_unsorted_or_of_one_moment_is_refused(
    count: int, swapped: bool, step_s: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_trace(tmp_path / "trace.csv", count, swapped=swapped, step_s=step_s)
    assert run(*ASKED[:2], "--trace", str(file), "--ttft-p95", "1000") == 2
    assert capsys.readouterr().err == message.format(file=file)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  deadline: 60s", "  images: {width: 64, height: 64}", "traffic.images: pictures are not simulated"),
        ("  arrivals: 10/s", "  users: 8", "--arrivals: a closed loop of users is not simulated"),
    ],
)
def test_what_is_not_simulated_is_refused(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    file = tmp_path / "mine/blueprint.yaml"
    file.write_text(file.read_text("utf-8").replace(old, new), encoding="utf-8")
    assert run(str(tmp_path / "mine"), "--model", "Qwen/Qwen3-8B") == 2
    assert message in capsys.readouterr().err
