"""Programs of scripts/benchmarks end as `blueprint` does: one message in place of a traceback, and its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IN_ANOTHER_ENVIRONMENT = ("replay_dynamo.py", "stream_weights.py")
"""Parts of benchmarks that import nothing of this project."""


def test_every_benchmark_ends_by_the_one_way() -> None:
    files = [file for file in (ROOT / "scripts" / "benchmarks").glob("*.py") if file.name not in IN_ANOTHER_ENVIRONMENT]
    endings = {file.name: file.read_text("utf-8").rpartition('if __name__ == "__main__":\n')[2] for file in files}
    assert len(endings) > 10
    assert set(endings.values()) == {"    raise SystemExit(program.run(main))\n"}


@pytest.mark.parametrize("module", ["knee", "batch_use"])
def test_a_mistake_is_one_message_and_exit_2(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"scripts.benchmarks.{module}", str(tmp_path / "nowhere")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"{tmp_path}/nowhere") and "Fix: " in line
