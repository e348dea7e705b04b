"""`blueprint switch` with a second engine, the smallest row that works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main
from tests.catalog.test_another_engine import slim_engine  # noqa: F401 - a fixture of every test here

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  gpus: {types: g6e.2xlarge, size: 0..8}
"""
BLUEPRINT = """\
pattern: aggregated # one kind of replica
model: Qwen/Qwen3-0.6B
engine: vllm # until slim is faster
roles:
  worker: {pool: gpus}
traffic: {users: 2}
slo: {}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "work" / "mine"
    shutil.copytree(paths.PATTERNS / "aggregated", copy)
    monkeypatch.chdir(tmp_path / "work")
    (copy / "blueprint.yaml").write_text(BLUEPRINT)
    Path("fleet.yaml").write_text(FLEET)
    return copy


def test_the_line_is_rewritten_and_what_follows_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["switch", "mine", "--engine", "slim", "--target", "eks"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert {"--- rendered now", "+++ rendered with engine: slim", '+image: "example/slim:1.0"'} <= set(lines)
    assert lines[-3:] == [
        "mine/blueprint.yaml",
        "-engine: vllm # until slim is faster",
        "+engine: slim # until slim is faster",
    ]
    assert (folder / "blueprint.yaml").read_text() == BLUEPRINT.replace("engine: vllm", "engine: slim")
    assert captured.err == "Next: blueprint deploy mine --fleet fleet.yaml --target eks\n"


def test_json_has_the_changed_lines_and_what_is_rendered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["switch", "mine", "--engine", "sglang", "--target", "eks", "--json"]) == 0
    captured = capsys.readouterr()
    payload = json.loads(captured.out)
    rendered = payload.pop("rendered")
    assert payload == {
        "file": "mine/blueprint.yaml",
        "values": {"engine": "sglang"},
        "lines": ["-engine: vllm # until slim is faster", "+engine: sglang # until slim is faster"],
    }
    assert {'-image: "vllm/vllm-openai:v0.32.0"', '+image: "lmsysorg/sglang:v0.5.23"'} <= {*rendered}
    assert (folder / "blueprint.yaml").read_text() == BLUEPRINT.replace("engine: vllm", "engine: sglang")
    assert main.run(["switch", "mine", "--engine", "sglang", "--target", "eks", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["lines"] == again["rendered"] == []


def test_switching_back_restores_the_file_and_once_more_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for engine in ("slim", "vllm"):
        assert main.run(["switch", "mine", "--engine", engine, "--target", "eks"]) == 0
    assert (folder / "blueprint.yaml").read_text() == BLUEPRINT
    capsys.readouterr()
    assert main.run(["switch", "mine", "--engine", "vllm", "--target", "eks"]) == 0
    assert capsys.readouterr().out == "mine/blueprint.yaml: no change\n"


def test_what_the_engine_lacks_is_refused_by_the_users_own_line_and_nothing_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BLUEPRINT.replace("worker: {pool: gpus}", "worker: {pool: gpus}\n  router: {policy: kv-aware}")
    (folder / "blueprint.yaml").write_text(text)
    assert main.run(["switch", "mine", "--engine", "slim", "--target", "eks"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mine/blueprint.yaml:6:"), error
    assert "slim" in error and "Fix: " in error and "/tmp" not in error
    assert (folder / "blueprint.yaml").read_text() == text
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_an_unknown_engine_is_refused_with_those_that_there_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["switch", "mine", "--engine", "slimm", "--target", "eks"]) == 2
    error = capsys.readouterr().err
    assert error.startswith('mine/blueprint.yaml:3:9: engine: "slimm"') and "slim" in error.partition("Fix: ")[2]
    assert (folder / "blueprint.yaml").read_text() == BLUEPRINT


def test_a_framework_is_switched_by_the_same_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["switch", "mine", "--framework", "plain", "--target", "eks"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "What is rendered stays the same.",
        "mine/blueprint.yaml",
        "+framework: plain",
    ]
    assert "model: Qwen/Qwen3-0.6B\nframework: plain\nengine: vllm" in (folder / "blueprint.yaml").read_text()


def test_from_plain_to_ray_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "fleet.yaml").write_text(f"{FLEET}add_ons: {{operators: on}}\n")
    command = ["switch", "mine", "--target", "eks", "--json", "--framework"]
    assert main.run([*command, "ray"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["values"] == {"framework": "ray"} and payload["lines"] == ["+framework: ray"]
    changed = {
        "-framework: plain",
        "+framework: ray",
        "+      import_path: ray.serve.llm:build_openai_app",
        '-image: "vllm/vllm-openai:v0.32.0"',
        '+image: "rayproject/ray-llm:2.60.0-py312-cu130"',
        '-      - "vllm"',
        '-      - "vllm-router"',
        '-    queue: "vllm:num_requests_waiting"',
        '+    queue: "ray_vllm_num_requests_waiting"',
    }
    assert changed - {*payload["rendered"]} == set()
    assert main.run([*command, "plain"]) == 0
    back = json.loads(capsys.readouterr().out)
    assert back["lines"] == ["-framework: ray", "+framework: plain"]
    flipped = {"+": "-", "-": "+"}
    assert sorted(line for line in back["rendered"][2:] if line[0] in "+-") == sorted(
        f"{flipped[line[0]]}{line[1:]}" for line in payload["rendered"][2:] if line[0] in "+-"
    )


def test_from_plain_to_dynamo_on_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["switch", "mine", "--framework", "dynamo", "--target", "local", "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["values"] == {"framework": "dynamo"} and payload["lines"] == ["+framework: dynamo"]
    changed = "\n".join(payload["rendered"])
    for line in ("+    -- python3 -m dynamo.vllm", "-    --worker-urls", "+    --router-mode power-of-two"):
        assert line in changed


def test_from_plain_to_dynamo_on_eks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["switch", "mine", "--framework", "dynamo", "--target", "eks", "--json"]) == 0
    changed = {*json.loads(capsys.readouterr().out)["rendered"]}
    assert {"+framework: dynamo", '+      - "dynamo.vllm"', '-      - "vllm-router"', "+    port: 9090"} <= changed


@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        (
            "sglang",
            {
                '-      - "sglang.launch_server"',
                '+      - "dynamo.sglang"',
                '-image: "lmsysorg/sglang:v0.5.23"',
                '+image: "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.6.1"',
            },
        ),
        (
            "tensorrt-llm",
            {
                '-      - "trtllm-serve"',
                '+      - "dynamo.trtllm"',
                '-      - "--config"',
                '+      - "--extra-engine-args"',
                '-image: "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc29"',
                '+image: "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.6.1"',
            },
        ),
    ],
)
def test_from_plain_to_dynamo_with_another_engine(
    folder: Path, capsys: pytest.CaptureFixture[str], engine: str, lines: set[str]
) -> None:
    (folder / "blueprint.yaml").write_text(BLUEPRINT.replace("engine: vllm", f"engine: {engine}"))
    assert main.run(["switch", "mine", "--framework", "dynamo", "--target", "eks", "--json"]) == 0
    changed = {*json.loads(capsys.readouterr().out)["rendered"]}
    assert lines - changed == set()


def test_a_framework_that_cannot_run_it_is_refused_and_nothing_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["switch", "mine", "--framework", "ray", "--engine", "sglang", "--target", "eks"]) == 2
    assert capsys.readouterr().err == (
        'mine/blueprint.yaml:3:12: framework: "ray": ray 2.60.0 runs vllm 0.29.0, and not sglang. Fix: set engine: vllm, '
        "or another framework.\n"
    )
    assert (folder / "blueprint.yaml").read_text() == BLUEPRINT


def test_nothing_to_switch_and_no_blueprint_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["switch", "mine"]) == 2
    assert capsys.readouterr().err == "nothing to switch. Fix: use --engine NAME, or --framework NAME.\n"
    assert main.run(["switch", "none", "--engine", "slim"]) == 2
    assert "none" in capsys.readouterr().err
