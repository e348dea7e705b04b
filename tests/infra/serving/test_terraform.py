"""Every resource of every shape of deployment on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import workspace as workspaces
from tests.infra.serving.conftest import SHAPES
from tests.infra.workspace import Workspace

pytestmark = pytest.mark.terraform

HERE = Path(__file__).parent


def changed(workspace: Workspace, shape: str, old: str, new: str) -> str:
    """What the tests say where a stack's text is another."""
    path = workspace.folder / f"stacks/serving-{shape}/cdk.tf.json"
    text = path.read_text()
    assert old in text
    try:
        path.write_text(text.replace(old, new))
        ended = workspace.run("test")
    finally:
        path.write_text(text)
    assert ended.returncode != 0
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def workspace(synthesized: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspaces.made(
        tmp_path_factory.mktemp("terraform"),
        synthesized,
        tests=[HERE / "serving.tftest.hcl"],
        stack="stacks/serving-single",
        data=tmp_path_factory.mktemp("data"),
    )


def test_every_resource_is_planned_and_applied_as_it_must_be(workspace: Workspace) -> None:
    ended = workspace.run("test")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(SHAPES)} passed, 0 failed" in ended.stdout


@pytest.mark.parametrize(
    ("shape", "old", "new", "said"),
    [
        (
            "disaggregated",
            '"referenced_security_group_id": "${aws_security_group.engine-group.id}",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
            '"referenced_security_group_id": "sg-0fffffffffffffff0",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
            "prefill and decode reach each other, in and out",
        ),
        ("disaggregated", "/dev/infiniband/uverbs15", "/dev/infiniband/uverbs16", "tasks see EFA's devices"),
        ("aggregated", '"rollback": true', '"rollback": false', "a deployment that fails is taken back"),
    ],
    ids=["self-rule", "device", "rollback"],
)
def test_what_is_taken_away_is_missed(workspace: Workspace, shape: str, old: str, new: str, said: str) -> None:
    assert said in changed(workspace, shape, old, new)
