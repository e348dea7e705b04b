from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.targets.local import subreaper

# A command with a child in its own session and a grandchild; it writes the process ids of all.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
grandchild = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
pids = [os.getpid(), child.pid, grandchild.pid, int(grandchild.stdout.readline())]
open(sys.argv[1], "w").write(" ".join(map(str, pids)) + "\\n")
time.sleep(600)
"""


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _start_family(tmp_path: Path, *, with_subreaper: bool) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start the family; return its first process, and the ids of the command and its descendants."""
    pid_file = tmp_path / "pids"
    family = [sys.executable, "-c", FAMILY, str(pid_file)]
    child = _start([sys.executable, subreaper.__file__, *family] if with_subreaper else family)
    processes.wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the family", 90)
    return child, [int(pid) for pid in pid_file.read_text().split()]


def _find_alive(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two looks
            alive += [pid] * (psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return alive


def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    process, pids = _start_family(tmp_path, with_subreaper=True)
    psutil.Process(pids[0]).kill()
    assert process.wait(60) == 128 + signal.SIGKILL
    assert _find_alive(pids) == []


def test_without_the_subreaper_a_killed_command_leaves_processes(tmp_path: Path) -> None:
    child, pids = _start_family(tmp_path, with_subreaper=False)
    try:
        child.kill()
        child.wait(60)
        time.sleep(0.5)
        assert _find_alive(pids[1:])
    finally:
        for pid in _find_alive(pids):
            psutil.Process(pid).kill()


def test_a_terminated_command_leaves_no_process(tmp_path: Path) -> None:
    process, pids = _start_family(tmp_path, with_subreaper=True)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert _find_alive(pids) == []


def test_a_signal_that_comes_as_soon_as_the_command_has_started_ends_it() -> None:
    program = (
        "import os, signal, subprocess, sys; from llm_serving.targets.local import subreaper\n"
        "class Popen(subprocess.Popen):\n"
        "  def __init__(self, *words, **named): super().__init__(*words, **named); os.kill(os.getpid(), signal.SIGTERM)\n"
        "subreaper.subprocess.Popen = Popen; sys.exit(subreaper.main(['sleep', '600']))"
    )
    assert _start([sys.executable, "-c", program]).wait(60) == 128 + signal.SIGTERM


def test_a_killed_subreaper_ends_its_command(tmp_path: Path) -> None:
    process, pids = _start_family(tmp_path, with_subreaper=True)
    try:
        process.kill()
        process.wait(60)
        processes.wait_until(lambda: _find_alive(pids[:1]) == [], "the command's end", 90)
    finally:
        for pid in _find_alive(pids):
            psutil.Process(pid).kill()


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_commands_own(code: int) -> None:
    process = _start([sys.executable, subreaper.__file__, "sh", "-c", f"exit {code}"])
    assert process.wait(60) == code


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    process = _start([sys.executable, subreaper.__file__, str(tmp_path / "nowhere")])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 127
    assert errors.decode() == f"{tmp_path / 'nowhere'}: No such file or directory\n"


def test_a_command_that_ignores_sigterm_is_killed() -> None:
    stubborn_code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    program = (
        "import sys; from llm_serving.targets.local import subreaper; subreaper.GRACE_S = 1; "
        f"sys.exit(subreaper.main({[sys.executable, '-c', stubborn_code]!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGKILL
