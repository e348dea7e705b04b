"""Every resource of every shape of deployment on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.rehearsal import terraform
from tests.infra.serving.conftest import SHAPES

pytestmark = pytest.mark.terraform

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Workspace:
    """A folder with the stacks, the tests and the provider."""

    folder: Path
    program: terraform.Terraform

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program.program, *arguments, "-no-color"],
            cwd=self.folder,
            env={**os.environ, **self.program.environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def changed(self, shape: str, old: str, new: str) -> str:
        """What the tests say where a stack's text is another."""
        path = self.folder / f"stacks/serving-{shape}/cdk.tf.json"
        text = path.read_text()
        assert old in text
        try:
            path.write_text(text.replace(old, new))
            ended = self.run("test")
        finally:
            path.write_text(text)
        assert ended.returncode != 0
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def workspace(synthesized: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("terraform")
    shutil.copytree(synthesized, folder, dirs_exist_ok=True)
    shutil.copytree(HERE / "mocks", folder / "mocks")
    shutil.copy(HERE / "serving.tftest.hcl", folder)
    (folder / "main.tf.json").write_text(json.dumps({"terraform": {"required_version": ">= 1.10"}}))
    stack = json.loads((folder / "stacks/serving-single/cdk.tf.json").read_text())
    version = stack["terraform"]["required_providers"]["aws"]["version"]
    made = Workspace(folder, terraform.find(tmp_path_factory.mktemp("data"), version))
    ended = made.run("init", "-input=false")
    assert ended.returncode == 0, ended.stderr
    return made


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
    assert said in workspace.changed(shape, old, new)
