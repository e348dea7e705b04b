"""Every resource of every stack, planned and applied by the real Terraform with a mocked AWS provider.

The mocked provider keeps the real one's schema and its checks of values, and reaches no AWS. What the stacks must come
to is asserted in Terraform's own language, in the *.tftest.hcl files beside this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import workspace as workspaces
from tests.infra.conftest import FLEETS
from tests.infra.workspace import Break, Workspace

pytestmark = pytest.mark.terraform

TEST_FOLDER = Path(__file__).parent
STACKS = [f"{shape}/stacks/{name}" for shape in FLEETS for name in ("network", "storage")]


@pytest.fixture(scope="module")
def workspace(synth_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspaces.create(
        tmp_path_factory.mktemp("terraform"),
        synth_folder,
        tests=TEST_FOLDER.glob("*.tftest.hcl"),
        stack=STACKS[0],
        data=tmp_path_factory.mktemp("data"),
    )


def test_terraform_plans_and_applies_every_resource_as_expected(workspace: Workspace) -> None:
    result = workspace.test()
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 failed" in result.stdout


BROKEN = [
    Break(
        "eks/stacks/storage",
        '\\"aws:SecureTransport\\": \\"false\\"',
        '\\"aws:SecureTransport\\": \\"true\\"',
        "plain HTTP is refused for buckets and objects",
    ),
    Break(
        "trn2/stacks/eks",
        '"network_card_index": 15',
        '"network_card_index": 14',
        "Trainium2 has EFA on each of its 16 cards",
    ),
]


def test_a_missing_bucket_policy_and_an_efa_interface_on_the_wrong_card_are_reported(workspace: Workspace) -> None:
    assert workspace.find_unreported(*BROKEN) == []


def test_the_runs_cover_every_kind_of_stack() -> None:
    sources = {
        line.split('"')[1].removeprefix("./")
        for file in TEST_FOLDER.glob("*.tftest.hcl")
        for line in file.read_text().splitlines()
        if "source" in line and "stacks" in line
    }
    # The rest differ from these in ways that tests of the synthesized text cover: names, zones, the location of the state.
    assert sources == {
        "eks/stacks/network",
        "ecs/stacks/network",
        "closed/stacks/network",
        "existing/stacks/network",
        "machines/stacks/network",
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
