from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from llm_serving import console, processes
from llm_serving.cli import main
from llm_serving.rehearsal import stacks
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import deploy, resource_check, supervisor
from llm_serving.workflows import quickstart

ROOT = Path(__file__).parents[2]
FLEET, BLUEPRINT = ROOT / "fleet.yaml", ROOT / "blueprints" / "aggregated"


def _find_processes(folder: Path) -> list[psutil.Process]:
    """Find the processes that run in a directory or name it."""
    matches = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            matches.append(process)
    return matches


@pytest.mark.terraform
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_install_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    program, fleet = Path(sys.executable).with_name("blueprint"), tmp_path / "fleet.yaml"
    # A small network: this test is not about it.
    fleet.write_text(FLEET.read_text().replace("us-west-2b, us-west-2c]", "us-west-2b]"))
    command = [str(program), "install", "--blueprint", str(BLUEPRINT), "--fleet", str(fleet)]
    output_path = tmp_path / "output"
    with output_path.open("wb") as output:
        child = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    try:
        processes.wait_until(
            lambda: {b"terraform", b"apply"} <= set(output_path.read_bytes().split()), "Terraform", 240
        )
        running = " ".join(" ".join(process.info["cmdline"] or ()) for process in _find_processes(tmp_path))
        assert "supervisord" in running and "moto" in running  # else nothing could be left behind
        child.send_signal(how)
        child.wait(120)
        assert child.returncode != 0
        processes.wait_until(lambda: not _find_processes(tmp_path), f"the end of {_find_processes(tmp_path)}", 120)
    finally:
        for process in _find_processes(tmp_path):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert not (tmp_path / ".blueprint" / "aggregated" / "deployment.json").exists()
    assert "Traceback" not in output_path.read_text()


def test_a_mistake_in_a_file_ends_the_workflow_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.read_text().replace("size: 0..8", "size: 8..0"))
    with pytest.raises(InputError, match=r'fleet\.yaml:\d+:\d+: pools\.general\.size: "8\.\.0"'):
        quickstart.run(BLUEPRINT, fleet)
    assert not (tmp_path / ".blueprint").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing", "--blueprint: \"nothing\": it is neither a blueprint's folder nor a pattern's name. "),
        ("offline-batch", 'blueprint.yaml:4:7: kind: "batch": install.sh load-tests models here. Fix: run `blueprint '),
    ],
)
def test_a_pattern_is_found_by_its_name_and_what_serves_no_model_is_refused(
    source: str, message: str, small_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["install", "--blueprint", source]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.fixture
def small_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a fleet of its own; it is the current one."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(FLEET, tmp_path))


def test_a_second_install_beside_the_first_waits_for_it(tmp_path: Path, small_copy: Path) -> None:
    with DeploymentDir("aggregated", tmp_path).lock(), pytest.raises(Unavailable) as error:
        quickstart.run(BLUEPRINT, small_copy)
    assert str(error.value) == "another command is deploying or destroying aggregated. Fix: wait until it ends."
    assert error.value.exit_code == 3


def test_an_install_does_not_stop_what_is_deployed(small_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "find_running", lambda directory: supervisor.Supervisor(directory))
    with pytest.raises(Unavailable) as error:
        quickstart.run(BLUEPRINT, small_copy)
    command = f"blueprint destroy {console.shorten_path(BLUEPRINT)}"
    assert str(error.value) == f"aggregated is deployed and runs. Fix: run `{command}` first."
    assert error.value.exit_code == 3


@pytest.fixture
def fake_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that ran: all but the apply do nothing else."""
    done = list[str]()

    def note(name: str, result: object = None) -> Callable[..., object]:
        def run(*_: object, **__: object) -> object:
            done.append(name)
            return result

        return run

    @contextlib.contextmanager
    def start_attached(*_: object) -> Iterator[supervisor.Supervisor]:
        try:
            yield SimpleNamespace(shut_down=note("shut down"))  # type: ignore[misc]
        finally:
            done.append("everything stopped")

    monkeypatch.setattr(resource_check, "check", note("check"))
    for name in ("prepare_start", "start_emulator", "serve"):
        monkeypatch.setattr(deploy, name, note(name))
    monkeypatch.setattr(deploy, "is_bucket_ready", lambda _: True)
    monkeypatch.setattr(supervisor, "start_attached", start_attached)
    monkeypatch.setattr(quickstart, "_start_engine_setup", lambda _: contextlib.nullcontext(lambda: None))
    monkeypatch.setattr(stacks, "prepare", note("prepare", {}))
    monkeypatch.setattr(quickstart.stack_folder, "find_terraform", note("find_terraform"))
    monkeypatch.setattr(stacks, "check_unchanged", note("check_unchanged"))
    monkeypatch.setattr(quickstart, "_validate", note("validate", (None, Path("report"))))
    return done


@pytest.mark.parametrize("failure", [None, CheckFailed("Terraform: no such key")])
def test_the_load_test_runs_beside_the_apply_whose_failure_fails_the_workflow(
    failure: CheckFailed | None, fake_steps: list[str], small_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Apply:
        def wait_until(self, is_ready: Callable[[], bool], _: object) -> None:
            assert is_ready()

        def wait(self, _: object) -> None:
            fake_steps.append("wait for the apply")
            if failure:
                raise failure

    @contextlib.contextmanager
    def apply_in_background(*_: object, **__: object) -> Iterator[Apply]:
        try:
            yield Apply()
        finally:
            fake_steps.append("apply stopped")

    monkeypatch.setattr(stacks, "apply_in_background", apply_in_background)
    with pytest.raises(CheckFailed, match="no such key") if failure else contextlib.nullcontext():
        quickstart.run(BLUEPRINT, small_copy)
    steps = fake_steps[fake_steps.index("serve") :]
    assert steps[:4] == ["serve", "validate", "wait for the apply", "apply stopped"]
    assert steps[4:] == [*([] if failure else ["check_unchanged", "shut down"]), "everything stopped"]
