"""The fleet file in, Terraform stacks out: `python -m infra.main` writes cdktf.out/stacks/STACK/cdk.tf.json.

BLUEPRINT_FLEET names another file than ./fleet.yaml, CDKTF_OUTDIR another folder than ./cdktf.out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from infra import reading
from infra.bindings import cdktf
from infra.constructs import limits
from infra.errors import BlueprintError, InputError
from infra.fleet import Fleet
from infra.settings import Document
from infra.stacks import ecs, eks, network, rules, storage

STACKS = (network, storage, eks, ecs)
"""In the order in which one may need another."""

ORCHESTRATORS = ("eks", "ecs")
"""Stacks that only a fleet with the orchestrator of the same name has."""


def synthesize(document: Document[Fleet], out: Path) -> dict[str, Path]:
    """Writes every stack under `out`; returns the folder of each, in the order to apply them in.

    Raises:
        InputError: AWS would refuse something of the fleet.
        AnswerIsNo: a stack breaks a rule that every stack keeps.
    """
    if wrong := limits.mistakes(document):
        raise InputError(wrong)
    out.mkdir(parents=True, exist_ok=True)
    app = cdktf.App(outdir=str(out))
    made = [stack for stack in STACKS if stack.NAME not in ORCHESTRATORS or stack.NAME in document.value.orchestrators]
    for stack in made:
        stack.add(app, document)
        if stack.NAME in ORCHESTRATORS:
            # They find the network by its tags, so nothing in them tells `cdktf deploy` to make it first.
            app.node.find_child(stack.NAME).add_dependency(app.node.find_child(network.NAME))
    app.synth()
    folders = {stack.NAME: out / "stacks" / stack.NAME for stack in made}
    rules.require(document, folders)
    return folders


def main() -> None:
    """Synthesizes; a refusal ends with its text and exit code."""
    try:
        document = reading.read(Path(os.environ.get("BLUEPRINT_FLEET", "fleet.yaml")))
        synthesize(document, Path(os.environ.get("CDKTF_OUTDIR", "cdktf.out")))
    except BlueprintError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
