"""The charts on both majors of Helm: the same objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving.console import CommandFailed
from llm_serving.operations import add_ons
from llm_serving.settings.errors import Unavailable
from tests import go_programs
from tests.charts.conftest import CHART, PRESETS, Helm

PROGRAMS = {3: go_programs.HELM, 4: go_programs.HELM_4}


@pytest.fixture(scope="module")
def helms(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Helm]:
    try:
        programs = {major: go_programs.find_or_build(program) for major, program in PROGRAMS.items()}
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")
    return {major: Helm(program, tmp_path_factory.mktemp(f"helm{major}")) for major, program in programs.items()}


def render(helm: Helm, chart: Path, *options: str) -> list[dict[str, Any]]:
    run = helm("template", "mine", str(chart), "--namespace", "serving", "--kube-version", "1.35.0", *options)
    assert run.returncode == 0, run.stderr
    return [item for item in yaml.safe_load_all(run.stdout) if item]


def test_the_majors_tested_are_those_that_the_commands_accept() -> None:
    assert tuple(PROGRAMS) == add_ons.HELM_MAJORS


@pytest.mark.parametrize("preset", sorted(file.stem for file in PRESETS.glob("*.yaml")))
def test_every_preset_of_the_chart_is_the_same_objects(helms: dict[int, Helm], preset: str) -> None:
    options = ("--values", str(PRESETS / f"{preset}.yaml"), "--set", "image=registry.example/vllm:1")
    options += ("--set", "defaults.router.image=registry.example/router:1")
    old, new = (render(helm, CHART, *options) for helm in helms.values())
    assert old == new != []


def test_a_mistaken_value_is_named_by_both(helms: dict[int, Helm]) -> None:
    for helm in helms.values():
        run = helm("template", "mine", str(CHART), "--set", "framework=flock")
        assert run.returncode != 0
        assert "framework" in run.stderr


def test_the_fourth_takes_no_path_as_post_renderer(helms: dict[int, Helm], tmp_path: Path) -> None:
    program = tmp_path / "cat"
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    options = ("--values", str(PRESETS / "qwen3-0.6b-g6e.yaml"), "--set", "defaults.router.image=router:1")
    runs = {
        major: helm("template", "mine", str(CHART), *options, "--post-renderer", str(program))
        for major, helm in helms.items()
    }
    assert (runs[3].returncode, runs[4].returncode) == (0, 1), runs[3].stderr
    assert "postrenderer/v1} not found" in runs[4].stderr
