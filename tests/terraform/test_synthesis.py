"""The CDKTF app as a program: what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.terraform import synthesis

ROOT = Path(__file__).parents[2]

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  general: {types: g6e.2xlarge, size: 0..8}
"""


def write_fleet(folder: Path, text: str = FLEET) -> Document[Fleet]:
    file = folder / "fleet.yaml"
    file.write_text(text)
    return load(file, Fleet)


def write_stack(folder: Path, needs: list[str]) -> Path:
    folder.mkdir(parents=True)
    (folder / "cdk.tf.json").write_text(json.dumps({"//": {"needs": needs}}))
    return folder


def test_stacks_come_with_their_needs_in_the_order_to_apply_them_in(tmp_path: Path) -> None:
    document = write_fleet(tmp_path, FLEET + "orchestrator: both\n")
    folders = synthesis.synthesize(document, tmp_path / "out")
    assert list(folders) == ["network", "storage", "ecs", "eks"]
    assert all((folder / "cdk.tf.json").is_file() for folder in folders.values())
    assert {name: synthesis.read_needs(folder) for name, folder in folders.items()} == {
        "network": (),
        "storage": (),
        "ecs": ("network",),
        "eks": ("network",),
    }
    assert [list(wave) for wave in synthesis.split_waves(folders)] == [["network", "storage"], ["ecs", "eks"]]


def test_two_commands_that_write_to_one_folder_get_stacks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two deployments do that are brought up from one directory."""
    document, out, names = write_fleet(tmp_path), tmp_path / "out", ["serving-a", "serving-b"]
    for name in names:
        write_stack(out / "stacks" / name, [])
    second = threading.Thread(target=lambda: synthesis.synthesize(document, out, stack_names=names[1:]))

    def run_app(environment: Mapping[str, str]) -> None:
        name = environment["BLUEPRINT_STACKS"]
        stacks = {name: {"workingDirectory": f"stacks/{name}"}}
        (out / "manifest.json").write_text(json.dumps({"stacks": stacks}))
        if name == names[0]:
            second.start()
            second.join(0.05)

    monkeypatch.setattr(synthesis, "_run_app", run_app)
    assert list(synthesis.synthesize(document, out, stack_names=names[:1])) == names[:1]
    second.join(60)


def test_some_stacks_can_be_written_alone(tmp_path: Path) -> None:
    folders = synthesis.synthesize(write_fleet(tmp_path), tmp_path / "out", stack_names=["storage"])
    assert list(folders) == ["storage"]
    with pytest.raises(
        InputError,
        match=r"^stacks: storrage: this fleet has no such stack\. Fix: write one of network, storage, eks\.$",
    ):
        synthesis.synthesize(write_fleet(tmp_path), tmp_path / "out", stack_names=["storrage"])


def test_waves_follow_the_needs_and_skip_stacks_that_are_applied_already(tmp_path: Path) -> None:
    needs = {"serving-a": ["ecs", "storage"], "ecs": ["network"], "storage": []}
    folders = {name: write_stack(tmp_path / name, required) for name, required in needs.items()}
    assert [list(wave) for wave in synthesis.split_waves(folders)] == [["ecs", "storage"], ["serving-a"]]
    assert [list(wave) for wave in synthesis.split_waves({"serving-a": folders["serving-a"]})] == [["serving-a"]]


def test_a_refusal_of_the_app_has_the_text_and_the_exit_code_of_the_command_line(tmp_path: Path) -> None:
    document = write_fleet(tmp_path, FLEET.replace("[us-west-2a, us-west-2b]", "[us-west-2a]"))
    with pytest.raises(InputError, match=r"^\S+/fleet\.yaml:3:8: zones: .*Fix: [^\n]*$"):
        synthesis.synthesize(document, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("code", "error"), [(1, CheckFailed), (2, InputError), (70, RuntimeError)])
def test_each_exit_code_is_an_error_with_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(synthesis, "_COMMAND", ("sh", "-c", f"echo what is wrong >&2; exit {code}"))
    with pytest.raises(error, match=r"what is wrong$"):
        synthesis.synthesize(write_fleet(tmp_path), tmp_path / "out")


def test_a_file_in_the_place_of_the_stacks_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the directory should be")
    with pytest.raises(Unavailable, match=r"/out: file exists\. Fix: rename what is there, or use another name\.$"):
        synthesis.synthesize(write_fleet(tmp_path), tmp_path / "out")


def test_synthesis_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    synthesis.synthesize(write_fleet(tmp_path), tmp_path / "out")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_interrupt_ends_synthesis_without_a_traceback_and_without_files(tmp_path: Path) -> None:
    write_fleet(tmp_path)
    (tmp_path / "tmp").mkdir()
    node = tmp_path / "node"  # CDKTF starts it once it has unpacked its runtime, and waits for its answer
    node.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 600\n")
    node.chmod(0o755)
    log = tmp_path / "output.log"
    with log.open("wb") as output:
        command = subprocess.Popen(
            [Path(sys.executable).with_name("blueprint"), "fleet", "synth", "--fleet", tmp_path / "fleet.yaml"],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "JSII_NODE": str(node)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    processes.wait_until((tmp_path / "started").exists, "CDKTF's runtime", 120)
    assert list((tmp_path / "tmp").glob("blueprint-synthesis-*/*/bin"))
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert "Traceback" not in log.read_text()
    assert "Broken" not in log.read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
