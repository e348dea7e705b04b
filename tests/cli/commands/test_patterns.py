"""`blueprint new --preset` and `blueprint baseline`: what is copied, what a preset fits on, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main
from llm_serving.cli.commands import patterns
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services import inputs
from llm_serving.settings.document import load
from llm_serving.targets import render

PATTERNS = Path(__file__).resolve().parents[3] / "blueprints"
PRESETS = sorted((path.parents[1].name, path.stem) for path in PATTERNS.glob("*/presets/*.yaml"))
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in an empty folder; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main.run(list(words))
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def test_the_patterns_have_presets() -> None:
    assert ("disaggregated", "12x1+1x4") in PRESETS
    assert ("aggregated", "long-context") in PRESETS


def test_the_list_says_of_each_pattern_what_its_page_begins_with(run_cli: Command) -> None:
    code, out, _ = run_cli("list", "--json")
    about = {entry["name"]: entry["about"] for entry in json.loads(out)}
    assert (code, about.keys()) == (0, {folder.parent.name for folder in PATTERNS.glob("*/README.md")})
    assert all(text.endswith(".") for text in about.values()), "whole sentences, of however many lines"
    assert about["gateway"].endswith("and what it costs the fleet.")


@pytest.mark.parametrize(("pattern", "preset"), PRESETS)
def test_a_preset_replaces_the_patterns_blueprint(run_cli: Command, pattern: str, preset: str) -> None:
    code, out, _ = run_cli("new", "mine", "--from", pattern, "--preset", preset)
    assert (code, out.splitlines()[0]) == (0, f"mine: copied from the pattern {pattern}, preset {preset}")
    copied_text = Path("mine/blueprint.yaml").read_text()
    original = (PATTERNS / pattern / "presets" / f"{preset}.yaml").read_text()
    assert copied_text.splitlines()[5:] == original.splitlines()[5:]
    schema = copied_text.split("$schema=")[1].split()[0]
    assert (Path("mine") / schema).resolve() == PATTERNS / "blueprint.schema.json"
    assert inputs.read_blueprint(Path("mine")).value.pattern == pattern
    assert not Path("mine/presets").exists()


@pytest.mark.parametrize("pattern", sorted(folder.name for folder in paths.list_patterns()))
def test_the_templates_of_a_copy_are_not_called_the_users_own_until_they_are_edited(
    run_cli: Command, pattern: str
) -> None:
    run_cli("new", "mine", "--from", pattern)
    templates = sorted(Path("mine").glob("*.j2"))
    targets = [path.name.split(".")[0] for path in templates]
    assert [render.find_own_templates(Path("mine"), target) for target in targets] == [[], [], []]
    for template, target in zip(templates, targets, strict=True):
        template.write_text(f"{template.read_text()}# edited\n")
        assert render.find_own_templates(Path("mine"), target) == [template]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("disaggregated", "--preset", "13x1"),
            '--preset: "13x1": disaggregated has no such preset. Fix: use 12x1+1x4 or wide-experts.\n',
        ),
        (
            ("aggregated", "--preset", "12x1+1x4"),
            '--preset: "12x1+1x4": aggregated has no such preset. Fix: use draw or embed or long-context or one-gpu or quick or trainium2.\n',
        ),
    ],
)
def test_an_unknown_preset_is_refused(run_cli: Command, arguments: tuple[str, ...], message: str) -> None:
    assert run_cli("new", "mine", "--from", *arguments) == (2, "", message)
    assert not Path("mine").exists()


FLEET = """\
name: big
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  b300: {{types: {type}, zones: {zone}, size: 2, efa: on}}
"""

FP8, FP4 = "Qwen/Qwen3-235B-A22B-FP8", "nvidia/Qwen3-235B-A22B-NVFP4"


@pytest.mark.parametrize(
    ("type_", "zone", "model", "reason"),
    [
        (
            "p5en.48xlarge",
            "us-west-2a",
            FP8,
            "weights 236 GB and reserve 6.26 GB are 105 GB more than the 138 GB of one accelerator. "
            "Fix: set accelerators: 2 on p5en.48xlarge, or use a smaller model.",
        ),
        (
            "p5en.48xlarge",
            "us-west-2a",
            FP4,
            "weights 134 GB and reserve 6.26 GB are 2.49 GB more than the 138 GB of one accelerator. "
            "Fix: set accelerators: 2 on p5en.48xlarge, or use a smaller model.",
        ),
        ("p6-b300.48xlarge", "us-west-2b", FP8, None),
        ("p6-b300.48xlarge", "us-west-2b", FP4, None),
    ],
)
def test_preset_12x1_1x4_fits_b300_and_p5en_lacks_memory_for_it(
    run_cli: Command, type_: str, zone: str, model: str, reason: str | None
) -> None:
    run_cli("new", "mine", "--from", "disaggregated", "--preset", "12x1+1x4")
    file = Path("mine/blueprint.yaml")
    file.write_text(file.read_text().replace(f"model: {FP8}", f"model: {model}"))
    Path("fleet.yaml").write_text(FLEET.format(type=type_, zone=zone))
    code, out, err = run_cli("check", "mine", "--target", "eks")
    if reason is None:
        assert code == 0, err
        assert f"prefill   12 x 1 accelerator(s) of {type_}, pool b300" in out
        assert f"decode    1 x 4 accelerator(s) of {type_}, pool b300" in out
    else:
        assert code == 2
        line_number = next(
            number for number, line in enumerate(file.read_text().splitlines(), 1) if line.startswith("model:")
        )
        assert err == (
            f'mine/blueprint.yaml:{line_number}:8: model: "{model}": it does not fit into 1 accelerator of the pool b300: '
            f"on {type_} {reason}\n"
        )


SCHEDULERS = "add_ons: {schedulers: on}\n"
SCALING = "add_ons: {operators: on, observability: on}\n"


@pytest.mark.parametrize(
    ("preset", "name", "split"), [("two-machines", "p5", (8, 2, 1)), ("wide-experts", "p5en", (1, 1, 16))]
)
def test_a_preset_of_two_machines_uses_both_of_the_pool_in_its_comment(
    run_cli: Command, preset: str, name: str, split: tuple[int, int, int]
) -> None:
    run_cli("new", "mine", "--from", "distributed", "--preset", preset)
    pool = f"{name}: {{types: {name}.48xlarge, zones: us-west-2a, size: 2, efa: on}}"
    Path("fleet.yaml").write_text(
        f"name: big\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\npools:\n  {pool}\n{SCHEDULERS}"
    )
    code, out, err = run_cli("check", "mine", "--target", "eks")
    assert code == 0, err
    assert f"worker    1 x 16 accelerator(s) of {name}.48xlarge over 2 nodes, pool {name}" in out
    worker = load(Path("mine/blueprint.yaml"), Blueprint).value.roles.worker
    assert worker is not None
    assert (worker.tensor, worker.pipeline, worker.data) == split


def test_the_preset_of_a_long_context_fits_the_default_fleet(run_cli: Command) -> None:
    run_cli("new", "mine", "--from", "aggregated", "--preset", "long-context")
    with Path("fleet.yaml").open("a") as fleet:
        fleet.write(SCALING)
    code, out, err = run_cli("check", "mine", "--target", "eks")
    assert code == 0, err
    assert "openai/gpt-oss-20b on vllm, context 100000, 13.8 GB of weights" in out


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_copy_that_was_not_finished_leaves_no_folder(
    run_cli: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        assert Path("mine/local.conf.j2").is_file()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(patterns, "_update_schema_comment", fail)
        assert run_cli("new", "mine", "--from", "aggregated")[0] != 0
    assert not Path("mine").exists()
    assert run_cli("new", "mine", "--from", "aggregated")[0] == 0


def test_a_folder_that_another_command_created_meanwhile_stays(
    run_cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine").mkdir()
    monkeypatch.setattr(patterns, "require_new_folder", lambda folder, _: folder)
    assert run_cli("new", "mine", "--from", "aggregated")[0] == 3
    assert Path("mine").is_dir()


def test_a_baseline_copies_templates_and_prompts_and_has_its_own_readme(run_cli: Command) -> None:
    run_cli("new", "mine", "--from", "disaggregated")
    Path("mine/prompts.jsonl").write_text('{"prompt": "a"}\n')
    for folder in (".blueprint", "runs", "rendered"):  # it is deployed from its own folder
        Path("mine", folder).mkdir()
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind("mine/.blueprint/supervisor.sock")
    with Path("mine/local.conf.j2").open("a") as template:
        template.write("; mine\n")
    code, out, _ = run_cli("baseline", "mine")
    assert code == 0
    assert out == (
        "mine-baseline: the accelerators of mine as aggregated replicas\n"
        "Next: validate both, then blueprint compare mine-baseline mine\n"
    )
    assert Path("mine-baseline/local.conf.j2").read_text() == Path("mine/local.conf.j2").read_text()
    assert Path("mine-baseline/prompts.jsonl").is_file()
    assert not [name for name in (".blueprint", "runs", "rendered") if Path("mine-baseline", name).exists()]
    assert Path("mine-baseline/README.md").read_text().startswith("# Aggregated\n")
    code, out, _ = run_cli("check", "mine-baseline")
    assert code == 0
    assert "worker    2 x 1 accelerator(s)" in out


def test_a_baseline_never_overwrites_a_folder(run_cli: Command) -> None:
    run_cli("new", "mine", "--from", "disaggregated")
    Path("other").mkdir()
    assert run_cli("baseline", "mine", "other") == (
        2,
        "",
        'NAME: "other": it exists already. Fix: use another name.\n',
    )
