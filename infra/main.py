"""The fleet file in, Terraform stacks out: `python -m infra.main` writes cdktf.out/stacks/STACK/cdk.tf.json.

A deployment that is rendered for ECS (rendered/NAME/ecs/ecs.yaml) is a stack as well.
BLUEPRINT_FLEET names another file than ./fleet.yaml, CDKTF_OUTDIR another folder than ./cdktf.out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from infra import stack_rules
from infra.bindings import cdktf
from infra.stacks import ecs, eks, network, storage
from infra.stacks import serving as serving_stack
from llm_serving.fleet import aws_limits, loading
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import BlueprintError, InputError
from llm_serving.targets.ecs import manifest

STACKS = (network, storage, eks, ecs)
"""In the order in which one may need another."""

ORCHESTRATORS = ("eks", "ecs")
"""Stacks that only a fleet with the orchestrator of the same name has."""


def synthesize(document: Document[Fleet], out: Path, manifest_files: Sequence[Path] = ()) -> dict[str, Path]:
    """Writes every stack under `out`; returns the folder of each, in the order to apply them in.

    Args:
        servings: what was rendered for ECS: each file becomes a stack serving-NAME.

    Raises:
        InputError: AWS would refuse something of the fleet, or a rendered file is wrong.
        AnswerIsNo: a stack breaks a rule that every stack keeps.
    """
    if mistakes := aws_limits.find_mistakes(document):
        raise InputError(mistakes)
    out.mkdir(parents=True, exist_ok=True)
    # In full: the process that CDKTF runs in stays in the folder in which it was started.
    app = cdktf.App(outdir=str(out.resolve()))
    selected = [
        stack for stack in STACKS if stack.NAME not in ORCHESTRATORS or stack.NAME in document.value.orchestrators
    ]
    for stack in selected:
        stack.add(app, document)
        if stack.NAME in ORCHESTRATORS:
            # They find the network by its tags, so nothing in them tells `cdktf deploy` to make it first.
            app.node.find_child(stack.NAME).add_dependency(app.node.find_child(network.NAME))
    deployments = [manifest.read(file, document).value for file in manifest_files]
    for deployment in deployments:
        serving_stack.add(app, document, deployment)
        app.node.find_child(serving_stack.build_stack_name(deployment.name)).add_dependency(
            app.node.find_child(ecs.NAME)
        )
    app.synth()
    stack_names = [
        *(stack.NAME for stack in selected),
        *(serving_stack.build_stack_name(item.name) for item in deployments),
    ]
    folders = {name: out / "stacks" / name for name in stack_names}
    stack_rules.validate_stacks(document, folders)
    return folders


def synthesize_deployment(document: Document[Fleet], out: Path, file: Path) -> dict[str, Path]:
    """Writes the stack of one deployment alone; returns its folder, by its name.

    Raises:
        InputError: the rendered file is wrong.
        AnswerIsNo: the stack breaks a rule that every stack keeps.
    """
    deployment = manifest.read(file, document).value
    # In full: the process that CDKTF runs in stays in the folder in which it was started.
    app = cdktf.App(outdir=str(out.resolve()))
    serving_stack.add(app, document, deployment)
    app.synth()
    name = serving_stack.build_stack_name(deployment.name)
    folders = {name: out / "stacks" / name}
    stack_rules.validate_stacks(document, folders)
    return folders


def find_rendered(fleet: Fleet, root: Path) -> list[Path]:
    """What lies rendered for ECS below `root`, of that fleet."""
    files = sorted(root.glob("rendered/*/ecs/ecs.yaml"))
    return [file for file in files if f"\nfleet: {fleet.name}\n" in file.read_text(encoding="utf-8")]


def main() -> None:
    """Synthesizes; a refusal ends with its text and exit code."""
    try:
        document = loading.load_fleet(Path(os.environ.get("BLUEPRINT_FLEET", "fleet.yaml")))
        out = Path(os.environ.get("CDKTF_OUTDIR", "cdktf.out"))
        synthesize(document, out, find_rendered(document.value, Path()))
    except BlueprintError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
