"""Tests of a folder's stacks by the real Terraform with a mocked AWS provider: FOLDER.tftest.hcl says what they must be.

A module of the folder takes them, and has in BROKEN the settings that are broken one by one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.infra import workspace as workspaces
from tests.infra.workspace import Workspace

__all__ = (
    "pytestmark",
    "test_a_broken_setting_is_reported",
    "test_terraform_plans_and_applies_every_resource_as_expected",
    "workspace",
)

pytestmark = pytest.mark.terraform


@pytest.fixture(scope="module")
def workspace(
    request: pytest.FixtureRequest, synth_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Workspace:
    return workspaces.create(
        tmp_path_factory.mktemp("terraform"),
        synth_folder,
        tests=[_find_tests(request)],
        stack=request.module.BROKEN[0].stack,
        data=tmp_path_factory.mktemp("data"),
    )


def _find_tests(request: pytest.FixtureRequest) -> Path:
    folder = request.path.parent
    return folder / f"{folder.name}.tftest.hcl"


def test_terraform_plans_and_applies_every_resource_as_expected(
    request: pytest.FixtureRequest, workspace: Workspace, synth_folder: Path
) -> None:
    text = _find_tests(request).read_text()
    planned = set(re.findall(r'source += "\./stacks/(\S+)"', text))
    assert planned == {folder.name for folder in (synth_folder / "stacks").iterdir()}
    result = workspace.test()
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(re.findall('(?m)^run ', text))} passed, 0 failed" in result.stdout


def test_a_broken_setting_is_reported(request: pytest.FixtureRequest, workspace: Workspace) -> None:
    assert workspace.find_unreported(*request.module.BROKEN) == []
