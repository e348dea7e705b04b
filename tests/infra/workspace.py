"""A folder in which `terraform test` runs on synthesized stacks, with a mocked AWS provider."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_serving.rehearsal import mocked
from llm_serving.terraform import provider_reattach, runner


@dataclass(frozen=True)
class Workspace:
    """A folder with the stacks, the tests and the provider."""

    folder: Path
    program: runner.Terraform

    def test(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Terraform's tests."""
        with provider_reattach.start_provider(self.folder, self.program.environment) as extra_environment:
            return self.run("test", *arguments, extra_environment=extra_environment)

    def run(
        self, *arguments: str, extra_environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program.program, *arguments, "-no-color"],
            cwd=self.folder,
            env={**os.environ, **self.program.environment, **(extra_environment or {})},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


def create(folder: Path, synthesized: Path, *, tests: Iterable[Path], stack: str, data: Path) -> Workspace:
    """Copies the stacks and tests to `folder` and starts Terraform there.

    Args:
        stack: one of the stacks, below `synthesized`; all ask for the same provider.
    """
    shutil.copytree(synthesized, folder, dirs_exist_ok=True)
    shutil.copytree(mocked.MOCKS, folder / "mocks")
    for file in tests:
        shutil.copy(file, folder)
    (folder / "main.tf.json").write_text(json.dumps({"terraform": {"required_version": ">= 1.10"}}))
    provider = json.loads((folder / stack / "cdk.tf.json").read_text())["terraform"]["required_providers"]["aws"]
    workspace = Workspace(folder, runner.find_terraform(data, provider["version"]))
    result = workspace.run("init", "-input=false")
    assert result.returncode == 0, result.stderr
    return workspace
