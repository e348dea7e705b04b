"""Blueprints rendered and synthesized as stacks, in this one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_serving.fleet import loading
from llm_serving.targets import planning
from llm_serving.terraform import synthesis

Stack = dict[str, Any]

ACCOUNT = "123456789012"

ROOT = Path(__file__).parents[2]


def write_blueprint(folder: Path, name: str, text: str) -> Path:
    """The folder of a blueprint `name`, with the templates of the pattern that `text` names."""
    blueprint_folder = folder / name
    [pattern] = [line.removeprefix("pattern: ") for line in text.splitlines() if line.startswith("pattern: ")]
    shutil.copytree(ROOT / "blueprints" / pattern, blueprint_folder)
    (blueprint_folder / "blueprint.yaml").write_text(text)
    return blueprint_folder


def render(folder: Path, blueprint_folder: Path, fleet: Path, target: str) -> Path:
    """What a blueprint is rendered to for a target, below `folder`."""
    return planning.write_rendered(planning.plan(blueprint_folder, fleet, target=target, root=folder, account=ACCOUNT))


def synthesize(out: Path, fleet: Path, files: Mapping[str, Path]) -> Path:
    """Write stacks/NAME/cdk.tf.json of each rendered file below `out`."""
    from infra import main

    document = loading.load_fleet(fleet)
    for name, file in files.items():
        main.synthesize(document, out, [file], stack_names=[name])
    return out


def synthesize_here(patch: pytest.MonkeyPatch) -> None:
    """Let commands synthesize in this one process too; theirs is tests/terraform/test_synthesis.py's."""
    from infra import main

    patch.setattr(synthesis, "_run_app", main.run)


def read_stack(out: Path, name: str) -> Stack:
    """A synthesized stack."""
    stack: Stack = json.loads((out / f"stacks/{name}/cdk.tf.json").read_text())
    return stack
