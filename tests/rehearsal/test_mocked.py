"""All example fleets planned by the real Terraform with a mocked provider, by the command that a user runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from llm_serving import console
from llm_serving.rehearsal import emulator_gaps, mocked, stacks

pytestmark = pytest.mark.terraform

ROOT = Path(__file__).parents[2]


def blueprint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("blueprint")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all example fleets were planned; the answer is in said.json."""
    folder = tmp_path_factory.mktemp("rehearsed")
    ended = blueprint(folder, "rehearse", "--fleet", str(ROOT / "infra/fleets"), "--mocked", "--json")
    assert ended.returncode == 0, ended.stderr
    (folder / "said.json").write_text(ended.stdout)
    return folder


def test_every_resource_of_every_example_is_planned(rehearsed: Path) -> None:
    said = json.loads((rehearsed / "said.json").read_text())["rehearsals"]
    assert [one["fleet"] for one in said] == sorted(path.stem for path in (ROOT / "infra/fleets").glob("*.yaml"))
    for one in said:
        assert {"network", "storage"} < set(one["stacks"])
        for stack in one["stacks"].values():
            assert stack["resources"] == stack["mocked"] >= 18
            assert stack["applied"] is None
            assert set(stack["not_held"]) <= set(emulator_gaps.REASONS)


def test_a_stack_that_cannot_be_planned_is_refused_with_its_name(rehearsed: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "network"
    wrong.mkdir()
    text = (rehearsed / "cdktf.out/one-gpu/stacks/network/cdk.tf.json").read_text()
    (wrong / "cdk.tf.json").write_text(text.replace('"traffic_type": "ALL"', '"traffic_type": "EVERYTHING"'))
    program = stacks.find_terraform({"network": wrong}, tmp_path)
    with pytest.raises(console.CommandFailed) as caught:
        mocked.plan({"network": wrong}, program=program, data=tmp_path)
    assert 'expected traffic_type to be one of ["ACCEPT" "REJECT" "ALL"]' in str(caught.value)


def test_a_run_of_terraform_starts_the_provider_once(rehearsed: Path, tmp_path: Path) -> None:
    folders = {"storage": rehearsed / "cdktf.out/one-gpu/stacks/storage"}
    program = stacks.find_terraform(folders, tmp_path)
    with providers_counted() as seen:
        mocked.plan(folders, program=program, data=tmp_path)
    assert len(seen) == 1
    with providers_counted() as seen:
        mocked.plan(folders, program=replace(program, attached=False), data=tmp_path)
    assert len(seen) > 1, "what Terraform does by itself"


@contextlib.contextmanager
def providers_counted() -> Iterator[set[int]]:
    """Processes of providers among the children of this process; each lives for some tenths of a second."""
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process().children(recursive=True)
                seen.update(child.pid for child in children if child.name().startswith("terraform-prov"))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        done.set()
        looker.join()


def test_mocked_takes_no_stacks_and_an_empty_folder_is_no_fleet(tmp_path: Path) -> None:
    ended = blueprint(tmp_path, "rehearse", "network", "--mocked")
    assert (ended.returncode, ended.stderr) == (
        2,
        "--mocked plans all stacks. Write no stack, or leave --mocked out\n",
    )
    ended = blueprint(tmp_path, "rehearse", "--fleet", str(tmp_path))
    assert ended.returncode == 2
    assert "holds no fleet file. Write a folder with fleet files, *.yaml, or a file" in ended.stderr
