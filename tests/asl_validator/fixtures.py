"""npm's asl-validator, the linter of state machines: installed once from a lock with hashes, in the user's cache."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from llm_serving.settings.errors import BlueprintError
from tests import npm_tools

FindErrors = Callable[[Mapping[str, str]], dict[str, str]]
"""The linter's errors of each definition that is wrong, by its name; takes definitions by their names."""

FOLDER = Path(__file__).parent
PINS = ("package.json", "package-lock.json")

_LINT_S = 120.0


@pytest.fixture(scope="session")
def find_asl_errors(tmp_path_factory: pytest.TempPathFactory) -> FindErrors:
    """Lint definitions in Amazon States Language; a test without Node or npm is skipped."""
    try:
        program = install()
    except BlueprintError as error:
        pytest.skip(f"no asl-validator: {error}")
    return lambda definitions: lint(program, definitions, tmp_path_factory.mktemp("asl"))


def install() -> Path:
    """Return the linter's program, installed if it is not.

    Raises:
        BlueprintError: Node or npm is missing, or npm failed.
    """
    return npm_tools.install("asl-validator", FOLDER, PINS) / "node_modules" / ".bin" / "asl-validator"


def lint(program: Path, definitions: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Lint all definitions by one process; each must have a verdict."""
    files = {name: folder / f"{number}.json" for number, name in enumerate(definitions)}
    for name, file in files.items():
        file.write_text(definitions[name])
    words = [word for file in files.values() for word in ("--json-path", str(file))]
    result = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=_LINT_S, check=False)
    output = result.stdout + result.stderr
    verdicts = dict(re.findall(r'definition "(.+)" is (valid|invalid)', output))
    assert set(verdicts) == set(map(str, files.values())), output
    errors = dict(re.findall(r'definition "(.+)" is invalid:\n((?: ?[A-Z_]+: .+\n)+)', result.stderr + "\n"))
    return {name: errors.get(str(file), "").strip() for name, file in files.items() if verdicts[str(file)] == "invalid"}
