"""A model of every family and form of weights through every command that takes a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.catalog import models
from llm_serving.cli import main

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a]
pools:
  large: {types: p6-b300.48xlarge, size: 0..8, efa: on}
"""
INTERNAL_ERROR = 70
MODELS = list({(row.kind, row.quantization): name for name, row in models.load().items()}.values())


@pytest.mark.parametrize("model", MODELS)
def test_fit_prints_a_table_and_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model", "fit", model, "--type", "g6e.2xlarge", "--type", "p6-b300.48xlarge", "--type", "trn2.48xlarge"]
    assert main.run(words) == 0
    assert model in capsys.readouterr().out
    assert main.run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["name"] == model


def test_list_has_every_model_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["model", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(models.load())


@pytest.mark.parametrize("target", ["local", "eks"])
@pytest.mark.parametrize("model", MODELS)
def test_check_accepts_or_refuses_it_in_a_blueprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    shutil.copytree(paths.PATTERNS / "aggregated", "mine")
    Path("mine/blueprint.yaml").write_text(
        f"pattern: aggregated\nmodel: {model}\ncontext: 512\nroles: {{worker: {{pool: large, accelerators: 8}}}}\n"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    exit_code = main.run(["check", "mine", "--target", target, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert exit_code == (0 if answer["ok"] else 2)
    assert answer["ok"] or all(mistake["why"] and mistake["write"] for mistake in answer["mistakes"])
