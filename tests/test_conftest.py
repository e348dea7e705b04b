"""What the tests' own conftest.py does for a run."""

from __future__ import annotations

import subprocess
import sys

from llm_serving import paths

FIRST, BETWEEN, AGAIN = (
    "tests/charts/test_release_names.py",
    "tests/test_console.py",
    "tests/charts/test_values.py",
)


def test_files_of_a_folder_have_its_fixtures_in_whatever_order_they_are_asked_for() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--setup-plan", "-q", FIRST, BETWEEN, AGAIN]
    plan = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert plan.returncode == 0, plan.stdout[-3000:]
    assert "SETUP    S helm" in plan.stdout, "a fixture of tests/charts/conftest.py"
