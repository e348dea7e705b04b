from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.targets.local import subreaper

# A command with a child in a session of its own and a grandchild; it writes all their process ids.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
grandchild = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
pids = [os.getpid(), child.pid, grandchild.pid, int(grandchild.stdout.readline())]
open(sys.argv[1], "w").write(" ".join(map(str, pids)) + "\\n")
time.sleep(600)
"""


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _family(tmp_path: Path, *, kept: bool) -> tuple[subprocess.Popen[bytes], list[int]]:
    """The process that was started, and the ids of the command and all that it started."""
    told = tmp_path / "pids"
    family = [sys.executable, "-c", FAMILY, str(told)]
    child = _started([sys.executable, subreaper.__file__, *family] if kept else family)
    processes.wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the family", 20)
    return child, [int(pid) for pid in told.read_text().split()]


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_a_command_that_is_killed_leaves_nothing_that_it_started(tmp_path: Path) -> None:
    keeper, pids = _family(tmp_path, kept=True)
    psutil.Process(pids[0]).kill()
    assert keeper.wait(20) == 128 + signal.SIGKILL
    assert _alive(pids) == []


def test_without_it_a_killed_command_leaves_what_it_started(tmp_path: Path) -> None:
    child, pids = _family(tmp_path, kept=False)
    try:
        child.kill()
        child.wait(20)
        time.sleep(0.5)
        assert _alive(pids[1:])
    finally:
        for pid in _alive(pids):
            psutil.Process(pid).kill()


def test_a_command_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    keeper, pids = _family(tmp_path, kept=True)
    keeper.terminate()
    assert keeper.wait(20) == 128 + signal.SIGTERM
    assert _alive(pids) == []


def test_a_keeper_that_is_killed_takes_its_command_with_it(tmp_path: Path) -> None:
    keeper, pids = _family(tmp_path, kept=True)
    try:
        keeper.kill()
        keeper.wait(20)
        processes.wait_until(lambda: _alive(pids[:1]) == [], "the command's end", 20)
    finally:
        for pid in _alive(pids):
            psutil.Process(pid).kill()


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_commands_own(code: int) -> None:
    keeper = _started([sys.executable, subreaper.__file__, "sh", "-c", f"exit {code}"])
    assert keeper.wait(20) == code


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    keeper = _started([sys.executable, subreaper.__file__, str(tmp_path / "nowhere")])
    _, said = keeper.communicate(timeout=20)
    assert keeper.returncode == 127
    assert said.decode() == f"{tmp_path / 'nowhere'}: No such file or directory\n"


def test_a_command_that_does_not_end_when_told_is_killed() -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    program = (
        "import sys; from llm_serving.targets.local import subreaper; subreaper.GRACE_S = 1; "
        f"sys.exit(subreaper.main({[sys.executable, '-c', deaf]!r}))"
    )
    keeper = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == b"up\n"
    keeper.terminate()
    assert keeper.wait(20) == 128 + signal.SIGKILL
