"""Every resource of a gateway on both orchestrators, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import workspace as workspaces
from tests.infra.gateway.conftest import SHAPES
from tests.infra.workspace import Break, Workspace

pytestmark = pytest.mark.terraform

STACK = "stacks/gateway-edge"


@pytest.fixture(scope="module")
def workspace(synth_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspaces.create(
        tmp_path_factory.mktemp("terraform"),
        synth_folder,
        tests=[Path(__file__).with_name("gateway.tftest.hcl")],
        stack=STACK,
        data=tmp_path_factory.mktemp("data"),
    )


def test_terraform_plans_and_applies_every_resource_as_expected(workspace: Workspace) -> None:
    result = workspace.test()
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(SHAPES)} passed, 0 failed" in result.stdout


BROKEN = (
    ('"multi_az": true', '"multi_az": false', "with a standby in another zone"),
    ('"delete_automated_backups": false', '"delete_automated_backups": true', "also after it is gone"),
    ('"multi_az_enabled": true', '"multi_az_enabled": false', "the cache fails over to another zone"),
)
"""What the stack says, what is written for it, and the assertion that then fails."""


def test_a_broken_setting_is_reported(workspace: Workspace) -> None:
    assert workspace.find_unreported(*(Break(STACK, *entry) for entry in BROKEN)) == []
