"""Every resource of every stack, planned and applied by the real Terraform with a mocked AWS provider.

The mocked provider keeps the real one's schema and its checks of values, and reaches no AWS. What the stacks must come
to is asserted in Terraform's own language, in the *.tftest.hcl files beside this one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.rehearsal import mocked, terraform
from tests.infra.stacks.conftest import FLEETS

pytestmark = pytest.mark.terraform

HERE = Path(__file__).parent
STACKS = [f"{shape}/stacks/{name}" for shape in FLEETS for name in ("network", "storage")]


@dataclass(frozen=True)
class Workspace:
    """A folder with the stacks, the tests and the provider."""

    folder: Path
    program: terraform.Terraform

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        import os

        return subprocess.run(
            [self.program.program, *arguments, "-no-color"],
            cwd=self.folder,
            env={**os.environ, **self.program.environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture(scope="module")
def workspace(synthesized: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("terraform")
    shutil.copytree(synthesized, folder, dirs_exist_ok=True)
    shutil.copytree(mocked.MOCKS, folder / "mocks")
    for file in HERE.glob("*.tftest.hcl"):
        shutil.copy(file, folder)
    (folder / "main.tf.json").write_text(json.dumps({"terraform": {"required_version": ">= 1.10"}}))
    stack = json.loads((folder / STACKS[0] / "cdk.tf.json").read_text())
    version = stack["terraform"]["required_providers"]["aws"]["version"]
    made = Workspace(folder, terraform.find(tmp_path_factory.mktemp("data"), version))
    ended = made.run("init", "-input=false")
    assert ended.returncode == 0, ended.stderr
    return made


@pytest.mark.parametrize("name", ["network", "storage", "eks", "ecs", "examples"])
def test_every_resource_is_planned_and_applied_as_it_must_be(workspace: Workspace, name: str) -> None:
    ended = workspace.run("test", f"-filter={name}.tftest.hcl")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 failed" in ended.stdout


BROKEN = {
    "a bucket that lost its policy": (
        "storage",
        "eks/stacks/storage",
        ('\\"aws:SecureTransport\\": \\"false\\"', '\\"aws:SecureTransport\\": \\"true\\"'),
        "plain HTTP is refused for buckets and objects",
    ),
    "an EFA interface on the wrong card": (
        "examples",
        "trn2/stacks/eks",
        ('"network_card_index": 15', '"network_card_index": 14'),
        "Trainium2 has EFA on each of its 16 cards",
    ),
}
"""File of the assertions, stack, what is written for what in it, and the assertion that fails."""


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_broken_on_purpose_fails(workspace: Workspace, broken: str) -> None:
    name, stack, (right, wrong), message = BROKEN[broken]
    path = workspace.folder / stack / "cdk.tf.json"
    text = path.read_text()
    assert right in text
    try:
        path.write_text(text.replace(right, wrong))
        ended = workspace.run("test", f"-filter={name}.tftest.hcl")
    finally:
        path.write_text(text)
    assert ended.returncode != 0
    assert message in ended.stdout + ended.stderr


def test_the_runs_cover_every_kind_of_stack() -> None:
    sources = {
        line.split('"')[1].removeprefix("./")
        for file in HERE.glob("*.tftest.hcl")
        for line in file.read_text().splitlines()
        if "source" in line and "stacks" in line
    }
    # The rest differ from these in ways that tests of the synthesized text cover: names, zones, the place of the state.
    assert sources == {
        "eks/stacks/network",
        "ecs/stacks/network",
        "closed/stacks/network",
        "existing/stacks/network",
        "eks/stacks/storage",
        "s3/stacks/storage",
        "eks/stacks/eks",
        "existing/stacks/eks",
        "machines/stacks/eks",
        "ecs-multi-az/stacks/ecs",
        "ads-scale/stacks/ecs",
        "instances/stacks/ecs",
        "one-gpu/stacks/ecs",
        "eks-multi-az/stacks/eks",
        "p5-efa/stacks/eks",
        "trn2/stacks/eks",
        "mixed/stacks/eks",
    }
