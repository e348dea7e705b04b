"""What a sweep measured decides how many replicas `check` and `deploy` say that the traffic needs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main
from llm_serving.kinds.serving import measurements
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.targets import planning


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The blueprint `mine` with arrivals of 40/s, and a sweep that measured 24/s with two replicas."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    shutil.copy(paths.ROOT / "fleet.yaml", tmp_path)
    (tmp_path / "mine" / "blueprint.yaml").write_text(
        "pattern: aggregated\nmodel: tiny\nroles:\n  worker: {pool: general, replicas: 2}\n"
        "traffic: {arrivals: 40/s}\nslo:\n  ttft_ms: {p95: 800}\n"
    )
    deployment = planning.plan_offline(Path("mine"), Path("fleet.yaml"), "eks").deployment
    key = measurements.compute_key(deployment)  # type: ignore[arg-type]
    measured = {"key": key, "requests_per_s": 24, "replicas": {"worker": 2}, "measured_at": "2026-11-23T06:00:00"}
    file = tmp_path / "runs" / "mine" / "sweep-2026-11-23T06-00-00Z" / "sweep.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"capacity": {**measured, "source": "sweep.json"}}))
    return tmp_path / "mine" / "blueprint.yaml"


SHORTAGE = (
    "worker: 2 replicas are too few for arrivals of 40/s: they need 4, by 24/s with 2 worker, swept 2026-11-23 "
    "(runs/mine/sweep-2026-11-23T06-00-00Z/sweep.json). Fix: set replicas: 4."
)


def _check(capsys: pytest.CaptureFixture[str]) -> str:
    assert main.run(["check", "mine", "--target", "eks"]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_too_few_replicas_for_the_arrivals_are_named_with_the_number_that_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert SHORTAGE in _check(capsys)
    assert main.run(["check", "mine", "--target", "eks", "--json"]) == 0
    capacity = json.loads(capsys.readouterr().out)["deployment"]["capacity"]
    assert capacity["needed_replicas"] == {"worker": 4}
    assert capacity["per_replica"] == {"worker": 12}
    deployment = planning.plan_offline(Path("mine"), Path("fleet.yaml"), "eks").deployment
    assert SHORTAGE in deployment.notes, "deploy prints them"


def test_enough_replicas_are_not_remarked_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for enough in ("replicas: 4", "replicas: 1..4"):
        folder.write_text(folder.read_text().replace("replicas: 2", enough))
        out = _check(capsys)
        assert "arrivals of 40/s need 4 worker" in out
        assert "too few" not in out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model: tiny", "model: tiny\ntuning: {batch_tokens: 2k}"),
        ("model: tiny", "model: tiny\nengine_arguments: {enforce_eager: true}"),
        ("replicas: 2", "replicas: 2, engine_arguments: {enforce_eager: true}"),
        ("{p95: 800}", "{p95: 400}"),
        ("arrivals: 40/s", "arrivals: 40/s, output_tokens: 200"),
        ("pool: general", "pool: wide"),
    ],
)
def test_a_sweep_of_something_else_says_nothing(
    folder: Path, before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write_text(folder.read_text().replace(before, after))
    assert "capacity" not in _check(capsys)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [(r":v0\.\d+", ":v0.1", False), ("$", "@sha256:1", True), ("^", "1.dkr.ecr.us-west-2.amazonaws.com/", True)],
)
def test_a_sweep_of_another_version_of_the_engine_says_nothing(before: str, after: str, holds: bool) -> None:
    deployment = planning.plan_offline(Path("mine"), Path("fleet.yaml"), "eks").deployment
    assert isinstance(deployment, ServingDeployment)
    roles = tuple(role.model_copy(update={"image": re.sub(before, after, role.image)}) for role in deployment.roles)
    key = measurements.compute_key(deployment.model_copy(update={"roles": roles}))
    assert (key == measurements.compute_key(deployment)) is holds


def test_what_users_were_answered_says_nothing_of_arrivals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder.parents[1] / "runs" / "mine" / "sweep-2026-11-23T06-00-00Z" / "sweep.json"
    file.write_text(json.dumps({"axis": "users", **json.loads(file.read_text())}))
    assert "capacity" not in _check(capsys)
    # Negative control: it does of users.
    folder.write_text(folder.read_text().replace("arrivals: 40/s", "users: 8"))
    assert "24/s with 2 worker, swept 2026-11-23" in _check(capsys)


def test_a_broken_sweep_is_passed_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = folder.parents[1] / "runs" / "mine" / "sweep-2026-11-24T06-00-00Z" / "sweep.json"
    newer.parent.mkdir()
    newer.write_text("{")
    assert SHORTAGE in _check(capsys)
