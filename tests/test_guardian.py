"""What a test starts ends with pytest, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from tests import guardian

ROOT = Path(__file__).parents[1]

TEST = """
import pathlib, subprocess, time

def test_starts_a_service_that_outlives_it():
    service = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path({pid_file!r}).write_text(f"{{service.pid}}\\n")
    time.sleep({duration})
"""


def _start_pytest(folder: Path, duration: int) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Start pytest on a test that starts a detached service; return both."""
    pid_file = folder / "pid"
    (folder / "test_service.py").write_text(TEST.format(pid_file=str(pid_file), duration=duration))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.guardian", "-p", "no:cacheprovider"]
    session = subprocess.Popen(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != guardian.VARIABLE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    processes.wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the service", 60)
    return session, psutil.Process(int(pid_file.read_text()))


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_service_ends_with_an_interrupted_pytest(tmp_path: Path, how: signal.Signals) -> None:
    session, service = _start_pytest(tmp_path, 600)
    assert not _has_ended(service)
    session.send_signal(how)
    assert session.wait(60) != 0
    processes.wait_until(lambda: _has_ended(service), "the service's end", 90)


def test_a_leaked_service_ends_when_pytest_finishes(tmp_path: Path) -> None:
    session, service = _start_pytest(tmp_path, 0)
    assert session.wait(60) == 0
    processes.wait_until(lambda: _has_ended(service), "the service's end", 90)


def test_every_process_of_these_tests_has_their_session_id() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in {process.pid for process in guardian.find_processes(os.environ[guardian.VARIABLE])}
        child.kill()
