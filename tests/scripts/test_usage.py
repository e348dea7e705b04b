"""What a person runs here says how it is run, and does nothing then."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("images/build", "scripts/check", "scripts/lock", "scripts/security", "scripts/test")


def _run_alone(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the program beside nothing else: it fails as soon as it begins its work."""
    copy = folder / program
    copy.parent.mkdir()
    shutil.copy(ROOT / program, copy)
    return subprocess.run([copy, *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_prints_how_it_is_run_and_runs_nothing(tmp_path: Path, program: str) -> None:
    result = _run_alone(tmp_path, program, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert program in result.stdout


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("images/build", ("router", "--fleet")),
        ("images/build", ("router", "--builder")),
        ("scripts/check", ("--fixx",)),
        ("scripts/lock", ("engines",)),
    ],
)
def test_a_mistyped_option_is_refused_with_those_that_there_are(
    tmp_path: Path, program: str, words: tuple[str, ...]
) -> None:
    result = _run_alone(tmp_path, program, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert program in result.stderr
