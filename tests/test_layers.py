"""Dependencies between packages run one way, and one that runs back is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BACKWARD_IMPORTS = (
    ("src/llm_serving/settings/units.py", "from llm_serving import console"),
    ("src/llm_serving/targets/render.py", "from llm_serving.kinds.serving import resolve"),
    ("src/llm_serving/kinds/serving/price.py", "from llm_serving.kinds.batch import secrets"),
    ("src/llm_serving/kinds/serving/tuning.py", "from llm_serving.kinds.serving.checks import models"),
    ("src/llm_serving/kinds/batch/cloud.py", "from llm_serving.kinds.serving import patterns"),
    ("src/llm_serving/targets/base.py", "from llm_serving.kinds.batch import secrets"),
    ("src/llm_serving/validation/statistics/gate.py", "from llm_serving.kinds.serving import patterns"),
    ("src/llm_serving/services/slo.py", "from llm_serving.kinds.serving import patterns"),
    ("src/llm_serving/fleet/cost.py", "from llm_serving.services import inputs"),
    ("src/llm_serving/console.py", "import infra"),
    ("src/llm_serving/catalog/instances.py", "import boto3"),
    ("infra/constructs/network.py", "import boto3"),
    ("infra/stacks/batch.py", "from llm_serving.kinds.batch import resolve"),
    ("infra/stacks/serving.py", "from llm_serving.targets import planning"),
    ("infra/stack_rules.py", "import cdktf"),
    ("infra/functions/ecs_fallback.py", "from llm_serving.settings import errors"),
)
"""A file, and an import that it must not have."""


def run_lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on the packages in `folder`."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def source_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages' Python files and of the contracts."""
    folder = tmp_path_factory.mktemp("layers")
    for package in ("infra", "src/llm_serving"):
        shutil.copytree(ROOT / package, folder / package, ignore=_ignore_other_files)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _ignore_other_files(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".py") and not (Path(folder) / name).is_dir()]


@pytest.fixture(scope="module")
def verdicts(source_copy: Path) -> tuple[str, str]:
    """import-linter's on the packages as they are, and on those with every backward import, each of which it names."""
    before = run_lint_imports(source_copy)
    for file, line in BACKWARD_IMPORTS:
        with (source_copy / file).open("a") as module:
            module.write(f"\n{line}\n")
    after = run_lint_imports(source_copy)
    assert (before.returncode, after.returncode) == (0, 1), before.stdout
    return before.stdout, after.stdout


def test_packages_depend_only_on_lower_layers(verdicts: tuple[str, str]) -> None:
    assert "0 broken" in verdicts[0]


@pytest.mark.parametrize(("file", "line"), BACKWARD_IMPORTS)
def test_a_dependency_on_a_higher_layer_is_refused(verdicts: tuple[str, str], file: str, line: str) -> None:
    importer = re.escape(file.removeprefix("src/").removesuffix(".py").replace("/", "."))
    package, name = (re.escape(word) for word in [*line.split()[1::2], ""][:2])
    import_text = rf"{importer} -> {package}(\.{name})? \(l\.\d+\)"  # a name may be no module
    of_siblings = rf"\.{importer.rpartition('.')[2]} -> \.{package.rpartition('.')[2]} \(1 import\)"
    refusal = rf"^- +({import_text}|{of_siblings})$"
    assert [bool(re.search(refusal, verdict, re.MULTILINE)) for verdict in verdicts] == [False, True]
