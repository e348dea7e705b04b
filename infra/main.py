"""Turn a fleet file into Terraform stacks: `python -m infra.main` writes cdktf.out/stacks/STACK/cdk.tf.json.

`cdktf` runs this (see cdktf.json), and so does the command line. Settings come as environment variables:

BLUEPRINT_FLEET        the fleet file; ./fleet.yaml if unset
BLUEPRINT_DEPLOYMENTS  rendered deployments with a stack of their own, as a list of files like PATH; if unset, those of
                       this fleet in ./rendered/NAME/TARGET/
BLUEPRINT_STACKS       the only stacks to write, separated by commas; if unset, all
CDKTF_OUTDIR           the output directory; ./cdktf.out if unset
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_serving import startup

if __name__ == "__main__":
    startup.defer_garbage_collection(0)  # this process ends in seconds

# isort: split
from infra import stack_rules
from infra.bindings import cdktf
from infra.stacks import base
from llm_serving.fleet import loading
from llm_serving.fleet.model import Fleet
from llm_serving.services import rendered
from llm_serving.settings import os_errors
from llm_serving.settings.document import Document
from llm_serving.settings.errors import BlueprintError, InputError

PROVIDER_LOCK = Path(__file__).with_name(".terraform.lock.hcl")
"""Hashes of the AWS provider, which every stack's folder gets; Terraform refuses a provider that has none of them."""

_NODE_ERROR = re.compile(r"\b(E[A-Z]+): [^,\n]+, \w+(?: '([^'\n]+)')?")
"""How Node names what the system refuses to CDKTF's own process: `EROFS: read-only file system, open '/x'`."""


def synthesize(
    document: Document[Fleet], out: Path, files: Sequence[Path] = (), *, stack_names: Sequence[str] = ()
) -> dict[str, Path]:
    """Write the fleet's stacks below `out`; return the directory of each, in the order to apply them in.

    Args:
        files: rendered deployments; each becomes a stack KIND-NAME.
        stack_names: the only stacks to write; all if empty.

    Raises:
        InputError: a rendered file is wrong, or there is no stack of a name.
        CheckFailed: a stack breaks a rule that all stacks keep.
    """
    stacks = base.discover(document, files)
    existing_names = [stack.NAME for stack in stacks]
    if unknown := sorted(set(stack_names).difference(existing_names)):
        names = ", ".join(unknown)
        raise InputError(
            f"stacks: {names}: this fleet has no such stack. Fix: write one of {', '.join(existing_names)}."
        )
    selected = [stack for stack in stacks if not stack_names or stack.NAME in stack_names]
    out.mkdir(parents=True, exist_ok=True)
    # Absolute: CDKTF's own process stays in the directory in which it was started.
    app = cdktf.App(outdir=str(out.resolve()))
    for stack in selected:
        stack.add(app, document)
    base.add_dependencies(app, selected)
    app.synth()
    folders = {stack.NAME: out / "stacks" / stack.NAME for stack in selected}
    if not stack_names:
        _remove_others(out / "stacks", folders)
    stack_rules.validate_stacks(document, folders)
    for folder in folders.values():
        _lock_provider(folder)
    return folders


def _remove_others(parent: Path, folders: Mapping[str, Path]) -> None:
    """Remove stacks that were written here before, of another fleet or a module that is gone.

    Who runs Terraform in each folder would apply them. A folder that holds a state keeps all but its stack.
    """
    for folder in parent.iterdir():
        if folder.name not in folders and (folder / "cdk.tf.json").is_file():
            if any(folder.glob("*.tfstate")):
                (folder / "cdk.tf.json").unlink()
            else:
                shutil.rmtree(folder)


def _lock_provider(folder: Path) -> None:
    """Copy the provider's hashes into a stack's folder. OpenTofu's registry has builds of its own, and locks them."""
    file = folder / PROVIDER_LOCK.name
    if not file.is_file() or "registry.opentofu.org" not in file.read_text(encoding="utf-8"):
        shutil.copyfile(PROVIDER_LOCK, file)


def run(environment: Mapping[str, str]) -> dict[str, Path]:
    """Synthesize as the environment variables above say; return the directory of each stack.

    Raises:
        BlueprintError: as from `synthesize`, or the fleet file is wrong.
    """
    document = loading.load_fleet(Path(environment.get("BLUEPRINT_FLEET", "fleet.yaml")))
    deployments = environment.get("BLUEPRINT_DEPLOYMENTS")
    files = (
        rendered.find(document.value, Path())
        if deployments is None
        else [Path(file) for file in deployments.split(os.pathsep) if file]
    )
    stack_names = [name for name in environment.get("BLUEPRINT_STACKS", "").split(",") if name]
    out = Path(environment.get("CDKTF_OUTDIR", "cdktf.out"))
    return synthesize(document, out, files, stack_names=stack_names)


def main() -> None:
    """Synthesize; end with the message and the exit code of what is wrong."""
    try:
        run(os.environ)
    except Exception as error:  # noqa: BLE001 - Python's own code is 1, and that is a failed check's
        if user_error := _convert(error):
            print(user_error, file=sys.stderr)
            sys.exit(user_error.exit_code)
        traceback.print_exc()
        sys.exit(70)  # as the command line


def _convert(error: Exception) -> BlueprintError | None:
    """Return the error that the user sees as its message only; None of one whose fix is not known."""
    if isinstance(error, BlueprintError):
        return error
    if node_error := _NODE_ERROR.search(str(error)):
        number = getattr(errno, node_error[1], 0)
        error = OSError(number, os.strerror(number), node_error[2])
    return os_errors.convert(error) if isinstance(error, OSError) else None


if __name__ == "__main__":
    main()
