"""npm's asl-validator, the linter of state machines: installed once from a lock with hashes, in the user's cache."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from llm_serving import console, processes
from llm_serving.settings.errors import BlueprintError, Unavailable
from llm_serving.validation import on_demand

FindErrors = Callable[[Mapping[str, str]], dict[str, str]]
"""The linter's errors of each definition that is wrong, by its name; takes definitions by their names."""

FOLDER = Path(__file__).parent
PINS = ("package.json", "package-lock.json")

_INSTALL_S = 120.0
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
    for name in ("node", "npm"):
        if not shutil.which(name):
            raise Unavailable(f"{name}: not found on PATH. Fix: install Node.js 20 or later.")
    pins = b"".join((FOLDER / name).read_bytes() for name in PINS)
    folder = on_demand.locate_cache() / f"asl-validator-{hashlib.sha256(pins).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(folder.with_suffix(".lock")):
        if not folder.is_dir():
            partial = folder.with_suffix(".part")  # renamed when complete
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for name in PINS:
                shutil.copy(FOLDER / name, partial)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            console.run(command, log=folder.with_suffix(".log"), cwd=partial, timeout_s=_INSTALL_S)
            partial.rename(folder)
    return folder / "node_modules" / ".bin" / "asl-validator"


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
