"""All example fleets planned by the real Terraform with a mocked provider, by the command that a user runs."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_serving import console
from llm_serving.cli import main
from llm_serving.rehearsal import override, run
from llm_serving.terraform import stack_folder
from tests.infra import deployments

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def run_cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("blueprint")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def rehearsal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all example fleets were planned; the answer is in said.json."""
    folder = tmp_path_factory.mktemp("rehearsed")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.chdir(folder)
        deployments.synthesize_here(patch)
        assert main.run(["rehearse", "--fleet", str(ROOT / "infra/fleets"), "--mocked", "--json"]) == 0
    (folder / "said.json").write_text(output.getvalue())
    return folder


def test_every_resource_of_every_example_is_planned(rehearsal_folder: Path) -> None:
    rehearsals = json.loads((rehearsal_folder / "said.json").read_text())["rehearsals"]
    assert [rehearsal["fleet"] for rehearsal in rehearsals] == sorted(
        path.stem for path in (ROOT / "infra/fleets").glob("*.yaml")
    )
    for rehearsal in rehearsals:
        assert {"network", "storage"} < set(rehearsal["stacks"])
        for stack in rehearsal["stacks"].values():
            assert stack["resources"] == stack["mocked"] >= 18
            assert stack["applied"] is None
            assert set(stack["not_held"]) <= set(override.REASONS)


def test_a_stack_that_cannot_be_planned_is_refused_with_its_name(rehearsal_folder: Path, tmp_path: Path) -> None:
    network = tmp_path / "network"
    network.mkdir()
    text = (rehearsal_folder / "cdktf.out/one-gpu/stacks/network/cdk.tf.json").read_text()
    (network / "cdk.tf.json").write_text(text.replace('"traffic_type": "ALL"', '"traffic_type": "EVERYTHING"'))
    program = stack_folder.find_terraform({"network": network}, tmp_path)
    with pytest.raises(console.CommandFailed) as error:
        run.plan_mocked({"network": network}, program=program, data=tmp_path)
    assert 'expected traffic_type to be one of ["ACCEPT" "REJECT" "ALL"]' in str(error.value)


def test_a_run_of_terraform_starts_no_provider_beside_the_one_that_it_is_given(
    rehearsal_folder: Path, tmp_path: Path
) -> None:
    folders = {"storage": rehearsal_folder / "cdktf.out/one-gpu/stacks/storage"}
    program, log = stack_folder.find_terraform(folders, tmp_path), tmp_path / "terraform.log"
    logged = {**program.environment, "TF_LOG_PROVIDER": "DEBUG", "TF_LOG_PATH": str(log)}

    def count_starts(*, reuse_provider: bool) -> int:
        log.write_text("")
        run.plan_mocked(
            folders, program=replace(program, environment=logged, reuse_provider=reuse_provider), data=tmp_path
        )
        return log.read_text().count("starting plugin: ")

    assert count_starts(reuse_provider=True) == 0
    assert count_starts(reuse_provider=False) > 1, "what Terraform does by itself"


def test_mocked_takes_no_stacks_and_an_empty_folder_is_no_fleet(tmp_path: Path) -> None:
    result = run_cli(tmp_path, "rehearse", "network", "--mocked")
    assert (result.returncode, result.stderr) == (
        2,
        "--mocked: it plans all stacks. Fix: remove --mocked, or the stacks.\n",
    )
    result = run_cli(tmp_path, "rehearse", "--fleet", str(tmp_path))
    assert result.returncode == 2
    assert "the folder has no fleet file (*.yaml). Fix: use another folder, or a file." in result.stderr
