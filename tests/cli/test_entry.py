"""The start of `blueprint`, before it can catch anything itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

BLUEPRINT = Path(sys.executable).with_name("blueprint")
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError('it goes on')\n"


@pytest.mark.parametrize(("ignored", "status", "error"), [(False, -signal.SIGINT, ""), (True, 1, "it goes on")])
def test_an_interrupt_while_it_is_imported_ends_it_without_a_traceback(
    tmp_path: Path, ignored: bool, status: int, error: str
) -> None:
    (tmp_path / "typer.py").write_text(INTERRUPT)  # stands for any that it imports
    command = [*(["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if ignored else []), str(BLUEPRINT), "list"]
    ended = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == status
    assert (error in ended.stderr) if error else ended.stderr == ""
