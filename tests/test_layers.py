"""The arrows between the rooms run one way, and a step back is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of the packages in `folder`."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def source_copy(tmp_path: Path) -> Path:
    """A copy of the packages' Python files and of the contracts."""
    for package in ("infra", "src/llm_serving"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=_ignore_non_python)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _ignore_non_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".py") and not (Path(folder) / name).is_dir()]


def test_every_dependency_between_the_packages_runs_one_way(source_copy: Path) -> None:
    result = lint(source_copy)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


def test_a_step_back_breaks_the_contract_that_forbids_it(source_copy: Path) -> None:
    for file, line in (
        ("src/llm_serving/settings/units.py", "from llm_serving import console"),
        ("src/llm_serving/settings/errors.py", "from llm_serving import fleet"),
        ("src/llm_serving/workloads/serving/resolve.py", "from infra.stacks import network"),
        ("infra/constructs/vpc.py", "import boto3"),
        ("src/llm_serving/console.py", "import cdktf"),
        ("src/llm_serving/processes.py", "from llm_serving import cli"),
        ("infra/functions/ecs_fallback.py", "from llm_serving.settings import errors"),
    ):
        path = source_copy / file
        path.write_text(f"{path.read_text()}\n{line}\n")
    result = lint(source_copy)
    assert result.returncode == 1
    assert "0 kept, 7 broken" in result.stdout
