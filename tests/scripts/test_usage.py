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


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ((), ()),
        (("--fleet", "fleet.yaml", "--yes"), ("--fleet", "HERE/fleet.yaml", "--yes")),
        (("--target", "eks", "--fleet=fleet.yaml"), ("--target", "eks", "--fleet=HERE/fleet.yaml")),
        (("--blueprint", "mine", "--fleet", "/a.yaml"), ("--blueprint", "HERE/mine", "--fleet", "/a.yaml")),
        (
            ("--blueprint", "aggregated", "--fleet", "infra/a.yaml"),
            ("--blueprint", "aggregated", "--fleet", "infra/a.yaml"),
        ),
    ],
)
def test_install_takes_the_files_of_the_folder_that_it_is_called_from(
    tmp_path: Path, words: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    clone, here = tmp_path / "clone", tmp_path / "my work"
    for folder in (clone / "scripts", clone / ".venv/bin", here / "mine", here / "eks"):
        folder.mkdir(parents=True)
    for folder in (clone, here):
        (folder / "fleet.yaml").touch()
    shutil.copy(ROOT / "install.sh", clone)
    programs = {
        "scripts/find-python": "echo true",
        "scripts/setup": ":",
        ".venv/bin/blueprint": "printf '%s\\n' \"$@\"",
    }
    for name, line in programs.items():
        (clone / name).write_text(f"#!/bin/sh\n{line}\n")
        (clone / name).chmod(0o755)
    for folder, expected in ((clone, words), (here, tuple(word.replace("HERE", str(here)) for word in passed))):
        command = [clone / "install.sh", *words]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
        assert tuple(result.stdout.splitlines()[3:]) == expected, "behind install --set-up-seconds 0"
