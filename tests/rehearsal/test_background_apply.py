"""An apply beside other steps, with a program in Terraform's place that ends when the test says so."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from llm_serving import console, processes
from llm_serving.rehearsal import emulator
from llm_serving.rehearsal.stacks import BackgroundApply
from llm_serving.terraform.runner import Terraform

LIMIT_S = 60.0
FAKE_TERRAFORM = """\
#!/bin/bash
cd "${1#-chdir=}"
[ "$2" = init ] && exit
trap 'touch stopped; exit 1' INT
touch started
until [ -e end ]; do sleep 0.05; done
cat answer
exit "$(cat end)"
"""
SUMMARY = {"type": "change_summary", "changes": {"operation": "apply", "add": 2, "change": 0, "remove": 0}}
REFUSAL = {"type": "diagnostic", "diagnostic": {"severity": "error", "summary": "no such key"}, "@message": "Error"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stack = tmp_path / "storage"
    (stack / ".terraform").mkdir(parents=True)
    settings = {"//": {"needs": []}, "terraform": {"required_providers": {"aws": {"version": "5.100.0"}}}}
    (stack / "cdk.tf.json").write_text(json.dumps(settings))
    return stack


@pytest.fixture
def start_apply(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], BackgroundApply]:
    monkeypatch.setattr(emulator, "is_reachable", lambda _: True)
    program = tmp_path / "terraform"
    program.write_text(FAKE_TERRAFORM)
    program.chmod(0o755)
    terraform = Terraform(str(program), "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return lambda: BackgroundApply(terraform, {"storage": folder}, "http://127.0.0.1:9")


@contextlib.contextmanager
def run(start_apply: Callable[[], BackgroundApply], folder: Path) -> Iterator[BackgroundApply]:
    apply = start_apply()
    try:
        processes.wait_until((folder / "started").exists, "Terraform", LIMIT_S)
        yield apply
    finally:
        apply.stop()


def end(folder: Path, code: int, answer: dict[str, object]) -> None:
    (folder / "answer").write_text(f"{json.dumps(answer)}\n")
    (folder / "end.new").write_text(f"{code}\n")
    (folder / "end.new").rename(folder / "end")


def test_other_steps_run_meanwhile_and_the_summary_has_the_time_of_each(
    start_apply: Callable[[], BackgroundApply], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = list[str]()
    with console.record_steps() as steps, run(start_apply, folder) as apply:
        apply.wait_until(lambda: True, notes.append)  # returns though Terraform still runs
        with console.step("Load test"):
            assert not (folder / "end").exists()
        end(folder, 0, SUMMARY)
        apply.wait(notes.append)
    assert notes[-1] == "storage +2 ~0 -0"
    assert [step.title for step in steps] == ["Load test", "Apply storage with Terraform 1.11.4"]
    steps[0].seconds, steps[1].seconds = 34.0, 59.0
    console.out.print(console.render_times(steps))
    lines = [line.strip() for line in re.sub(" {2,}", " ", capsys.readouterr().out).splitlines()]
    assert lines == [
        "Load test 34.0 s",
        "Total 34.0 s",
        "In the background: Apply storage with Terraform 1.11.4 59.0 s",
    ]


def test_an_apply_that_fails_after_its_bucket_was_used_fails_with_its_message(
    start_apply: Callable[[], BackgroundApply], folder: Path
) -> None:
    with run(start_apply, folder) as apply:
        apply.wait_until(lambda: True, lambda _: None)
        end(folder, 1, REFUSAL)
        with pytest.raises(
            console.CommandFailed, match=r"exit code 1; the full log is .*apply\.log:\n +Error: no such key"
        ):
            apply.wait(lambda _: None)


def test_an_apply_that_fails_before_what_is_waited_for_ends_the_wait(
    start_apply: Callable[[], BackgroundApply], folder: Path
) -> None:
    with run(start_apply, folder) as apply:
        end(folder, 1, REFUSAL)
        with pytest.raises(console.CommandFailed, match="no such key"):
            apply.wait_until(lambda: False, lambda _: None)


def test_terraform_is_interrupted_and_gone_where_its_caller_ends_before(
    start_apply: Callable[[], BackgroundApply], folder: Path
) -> None:
    with run(start_apply, folder):
        assert find_terraform(folder)
    assert (folder / "stopped").exists()
    assert not find_terraform(folder)
    assert "terraform-apply" not in " ".join(thread.name for thread in threading.enumerate())


def find_terraform(folder: Path) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # its sleeps come and go
            if str(folder.parent / "terraform") in " ".join(child.cmdline()):
                found.append(child)
    return found
