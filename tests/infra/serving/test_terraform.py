"""Every resource of every shape of deployment on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import workspace as workspaces
from tests.infra.serving.conftest import SHAPES
from tests.infra.workspace import Workspace

pytestmark = pytest.mark.terraform

HERE = Path(__file__).parent


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
    ended = workspace.test()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(SHAPES)} passed, 0 failed" in ended.stdout


BROKEN = [
    (
        "disaggregated",
        '"referenced_security_group_id": "${aws_security_group.engine-group.id}",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
        '"referenced_security_group_id": "sg-0fffffffffffffff0",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
        "prefill and decode reach each other, in and out",
    ),
    ("disaggregated", "/dev/infiniband/uverbs15", "/dev/infiniband/uverbs16", "tasks see EFA's devices"),
    ("aggregated", '"rollback": true', '"rollback": false', "a deployment that fails is taken back"),
]
"""Shape, what its stack says, what is written for it, and the assertion that then fails."""


def test_what_is_taken_away_is_missed(workspace: Workspace) -> None:
    stacks = {shape: workspace.folder / f"stacks/serving-{shape}/cdk.tf.json" for shape, *_ in BROKEN}
    texts = {shape: path.read_text() for shape, path in stacks.items()}
    try:
        for shape, right, wrong, _ in BROKEN:
            text = stacks[shape].read_text()
            assert right in text
            stacks[shape].write_text(text.replace(right, wrong))
        ended = workspace.test()
    finally:
        for shape, text in texts.items():
            stacks[shape].write_text(text)
    assert ended.returncode != 0
    assert [said for *_, said in BROKEN if said not in ended.stdout + ended.stderr] == []
