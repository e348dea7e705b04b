"""Every resource of every shape of deployment on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import workspace as workspaces
from tests.infra.serving.conftest import SHAPES
from tests.infra.workspace import Break, Workspace

pytestmark = pytest.mark.terraform

TEST_FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def workspace(synth_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspaces.create(
        tmp_path_factory.mktemp("terraform"),
        synth_folder,
        tests=[TEST_FOLDER / "serving.tftest.hcl"],
        stack="stacks/serving-single",
        data=tmp_path_factory.mktemp("data"),
    )


def test_terraform_plans_and_applies_every_resource_as_expected(workspace: Workspace) -> None:
    result = workspace.test()
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(SHAPES) + 1} passed, 0 failed" in result.stdout, "one shape is planned in two networks"


BROKEN = [
    Break(
        "stacks/serving-disaggregated",
        '"referenced_security_group_id": "${aws_security_group.engine-group.id}",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
        '"referenced_security_group_id": "sg-0fffffffffffffff0",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
        "prefill and decode reach each other, in and out",
    ),
    Break(
        "stacks/serving-disaggregated",
        "/dev/infiniband/uverbs15",
        "/dev/infiniband/uverbs16",
        "tasks see EFA's devices",
    ),
    Break(
        "stacks/serving-aggregated", '"rollback": true', '"rollback": false', "a deployment that fails is taken back"
    ),
]


def test_a_removed_resource_is_reported(workspace: Workspace) -> None:
    assert workspace.find_unreported(*BROKEN) == []
