"""The benchmark of cold starts: what it deploys, one after the other, and that nothing stays behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.starts import Start
from scripts import cold_start

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: eks
spend_limit: 100 USD/h
pools:
  pulled: {types: g6e.2xlarge, size: 0..1, images: plain}
  soci: {types: g6e.2xlarge, size: 0..1, images: soci}
"""


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Blueprints in the order of their deployment, None for each removal; starts are as long as there were many."""
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    (tmp_path / "fleet.yaml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    calls: list[Any] = []

    def deploy(folder: Path, *_: Any, **__: Any) -> None:
        print("mine is up")
        calls.append(yaml.safe_load((folder / "blueprint.yaml").read_text()))

    def read_starts(*_: Any) -> list[Start]:
        return [
            Start("a", "worker", 0.0, 1.0, 2.0, 30.0 + len(calls)),
            Start("b", "worker", 47.0, 1.0, 2.0, 90.0 + len(calls), copy_s=4.0),
        ]

    monkeypatch.setattr(cold_start.serving, "deploy", deploy)
    monkeypatch.setattr(cold_start.serving, "destroy", lambda *_, **__: calls.append(None))
    target = SimpleNamespace(needs_aws=True, read_starts=read_starts)
    monkeypatch.setattr(cold_start.registry, "load_target", lambda _: target)
    return calls


def test_each_pool_starts_once_from_the_disk_and_once_streamed_and_each_is_removed_before_the_next(
    deployed: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mine", "--target", "eks", "--pool", "pulled", "--pool", "soci", "--yes", "--json"]
    assert cold_start.main(words) == 0
    assert deployed[1::2] == [None] * 4
    workers = [blueprint["roles"]["worker"] for blueprint in deployed[::2]]
    assert [worker["pool"] for worker in workers] == ["pulled", "soci", "pulled", "soci"]
    assert {worker["replicas"] for worker in workers} == {1}
    assert [blueprint["tuning"]["stream_weights"] for blueprint in deployed[::2]] == [False, False, True, True]
    assert {blueprint["name"] for blueprint in deployed[::2]} == {"mine-starts"}
    out, err = capsys.readouterr()
    assert err == "mine is up\n" * 4
    quadrants = json.loads(out)["quadrants"]
    assert [(row["images"], row["weights"]) for row in quadrants] == [
        ("plain", "disk"), ("soci", "disk"), ("plain", "streamed"), ("soci", "streamed"),
    ]  # fmt: skip
    assert quadrants[0] == {
        "pool": "pulled", "images": "plain", "weights": "disk", "name": "b", "role": "worker",
        "pull_s": 47.0, "copy_s": 4.0, "load_s": 1.0, "compile_s": 2.0, "first_answer_s": 91.0,
    }  # fmt: skip


def test_the_table_shows_what_is_left_and_which_image_was_there(
    deployed: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cold_start.main(["mine"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-7:] for line in lines[1:]] == [
        ["disk", "47.0", "4.0", "1.0", "2.0", "37.0", "91.0"],
        ["streamed", "47.0", "4.0", "1.0", "2.0", "39.0", "93.0"],
    ]
    present = cold_start.Quadrant("soci", "soci", "streamed", Start("a", "worker", 0.0, 1.0, 2.0, 30.0))
    table = cold_start.render([present])
    assert list(table.columns[1].cells) == ["soci, on the node"]


def test_a_deployment_that_fails_is_removed_and_its_own_error_is_shown(
    deployed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CheckFailed("mine-starts: not ready")

    def fail_to_remove(*_: Any, **__: Any) -> None:
        deployed.append({})
        raise CheckFailed("mine-starts: not deployed")

    monkeypatch.setattr(cold_start.serving, "deploy", fail)
    monkeypatch.setattr(cold_start.serving, "destroy", fail_to_remove)
    assert cold_start.main(["mine"]) == 1
    assert capsys.readouterr().err == "error: mine-starts: not ready\n"
    assert deployed == [{}], "it was tried"
