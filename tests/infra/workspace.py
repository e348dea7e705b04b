"""A folder in which `terraform test` runs on synthesized stacks, with a mocked AWS provider."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from llm_serving.rehearsal import run
from llm_serving.terraform import provider_reattach, runner


class Break(NamedTuple):
    """A setting that is broken: what the stack says, what is written for it, and the assertion that then fails."""

    stack: str
    """Its folder, below the workspace's."""

    old: str
    new: str
    message: str


@dataclass(frozen=True)
class Workspace:
    """A folder with the stacks, the tests and the provider."""

    folder: Path
    program: runner.Terraform

    def test(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Terraform's tests."""
        with provider_reattach.start_provider(self.folder, self.program.environment) as extra_environment:
            return self.run("test", *arguments, extra_environment=extra_environment)

    def find_unreported(self, *breaks: Break) -> list[str]:
        """Break settings of stacks, run their tests, and return those messages that no assertion ends with."""
        stacks = {entry.stack: self.folder / entry.stack / "cdk.tf.json" for entry in breaks}
        tests = list(self.folder.glob("*.tftest.hcl"))
        texts = {file: file.read_text() for file in (*stacks.values(), *tests)}
        try:
            for entry in breaks:
                text = stacks[entry.stack].read_text()
                assert entry.old in text
                stacks[entry.stack].write_text(text.replace(entry.old, entry.new))
            for file in tests:
                head, *runs = re.split(r"(?m)^(?=run )", texts[file])
                runs = [run for run in runs if any(f'"./{stack}"' in run for stack in stacks)]
                file.write_text("".join([head, *runs])) if runs else file.unlink()
            result = self.test()
        finally:
            for file, text in texts.items():
                file.write_text(text)
        assert result.returncode != 0
        return [entry.message for entry in breaks if entry.message not in result.stdout + result.stderr]

    def run(
        self, *arguments: str, extra_environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program.program, *arguments, "-no-color"],
            cwd=self.folder,
            env={**os.environ, **self.program.environment, **(extra_environment or {})},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )


def create(folder: Path, synthesized: Path, *, tests: Iterable[Path], stack: str, data: Path) -> Workspace:
    """Copies the stacks and tests to `folder` and starts Terraform there.

    Args:
        stack: one of the stacks, below `synthesized`; all ask for the same provider.
    """
    shutil.copytree(synthesized, folder, dirs_exist_ok=True)
    shutil.copytree(run.MOCKS, folder / "mocks")
    for file in tests:
        shutil.copy(file, folder)
    shutil.copy(folder / stack / ".terraform.lock.hcl", folder)
    (folder / "main.tf.json").write_text(json.dumps({"terraform": {"required_version": ">= 1.10"}}))
    provider = json.loads((folder / stack / "cdk.tf.json").read_text())["terraform"]["required_providers"]["aws"]
    workspace = Workspace(folder, runner.find_terraform(data, provider["version"]))
    result = workspace.run("init", "-input=false")
    assert result.returncode == 0, result.stderr
    return workspace
