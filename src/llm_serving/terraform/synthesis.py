"""Stacks from a fleet file, by the CDKTF app in `infra/`, and the order in which to apply them.

The app runs as `cdktf` runs it, in a process of its own: nothing of the library imports it.
"""

from __future__ import annotations

import graphlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_serving import processes
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import BlueprintError, CheckFailed, InputError, Unavailable
from llm_serving.terraform import stack_folder

# No -c, no script: the app is found where it is installed, whatever the current directory holds.
_COMMAND = (sys.executable, "-P", "-m", "infra.main")

_TIMEOUT_S = 600.0
"""A fleet takes seconds; a machine that is short of memory takes minutes."""

_ERRORS: Mapping[int, type[BlueprintError]] = {
    error.exit_code: error for error in (CheckFailed, InputError, Unavailable)
}


def synthesize(
    document: Document[Fleet], out: Path, *, deployments: Sequence[Path] | None = (), stack_names: Sequence[str] = ()
) -> dict[str, Path]:
    """Write `out`/stacks/STACK/cdk.tf.json; return the directory of each stack, in the order to apply them in.

    Args:
        document: the fleet as its file says it: the app reads the file again.
        deployments: what is rendered for ECS; if None, what lies in ./rendered for this fleet.
        stack_names: the only stacks to write; all if empty.

    Raises:
        InputError: AWS would refuse something of the fleet, or a rendered file is wrong.
        CheckFailed: a stack breaks a rule that all stacks keep.
        Unavailable: this machine lacks what CDKTF needs.
    """
    environment = {
        "BLUEPRINT_FLEET": str(document.path),
        "BLUEPRINT_STACKS": ",".join(stack_names),
        "CDKTF_OUTDIR": str(out),
    }
    if deployments is not None:
        environment["BLUEPRINT_DEPLOYMENTS"] = os.pathsep.join(map(str, deployments))
    _run_app(environment)
    # The manifest may be that of a deployment which is brought up beside this one.
    written = stack_names or json.loads((out / "manifest.json").read_text(encoding="utf-8"))["stacks"]
    folders = {name: out / "stacks" / name for name in sorted(written)}
    return {name: folder for wave in split_waves(folders) for name, folder in wave.items()}


def _run_app(environment: Mapping[str, str]) -> None:
    # CDKTF unpacks its runtime into the temporary directory, and leaves it there when it is killed.
    with tempfile.TemporaryDirectory(prefix="blueprint-synthesis-") as folder:
        log = Path(folder) / "output.log"
        with log.open("wb") as output:
            child = processes.spawn(_COMMAND, environment={**environment, "TMPDIR": folder}, output=output)
        try:
            child.wait(_TIMEOUT_S)
        finally:
            processes.stop(child)
        message = log.read_text(encoding="utf-8", errors="replace").rstrip()
    if child.returncode in _ERRORS:
        raise _ERRORS[child.returncode](message)
    if child.returncode:
        raise RuntimeError(f"{' '.join(_COMMAND[1:])} ended with code {child.returncode}:\n{message}")


def read_needs(folder: Path) -> tuple[str, ...]:
    """Return the names of the stacks that the synthesized stack in `folder` needs."""
    return tuple(stack_folder.read_stack(folder)["//"]["needs"])


def split_waves(folders: Mapping[str, Path]) -> list[dict[str, Path]]:
    """Group stacks that may be applied side by side; each wave needs the ones before it.

    A stack that is needed and not among `folders` is taken to be applied already.
    """
    sorter = graphlib.TopologicalSorter(
        {name: [need for need in read_needs(folder) if need in folders] for name, folder in folders.items()}
    )
    sorter.prepare()
    waves: list[dict[str, Path]] = []
    while ready := sorter.get_ready():
        waves.append({name: folders[name] for name in folders if name in ready})
        sorter.done(*ready)
    return waves
