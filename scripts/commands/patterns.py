"""`blueprint list` and `blueprint new`: the patterns, and a copy of one to work on."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from scripts import console
from scripts.commands import completions
from scripts.commands.arguments import FLEET, AsJson

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ROOT / "blueprints"


def list_(as_json: AsJson = False) -> None:
    """List the patterns that `new` copies."""
    from blueprints import render

    found = [
        {"name": folder.name, "targets": render.targets(folder), "about": _about(folder), "folder": str(folder)}
        for folder in _patterns()
    ]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for one in found:
        console.out.print(f"[bold]{one['name']}[/bold] ({', '.join(one['targets'])})", end="  ")
        console.out.print(one["about"], markup=False)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder to make, and the deployment's name.")],
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="PATTERN", help="What to copy; `list` names all.", autocompletion=completions.patterns
        ),
    ],
) -> None:
    """Copy a pattern to a folder of your own."""
    from pydantic import TypeAdapter, ValidationError

    from infra.errors import InputError
    from infra.fleet import Name

    source = PATTERNS / from_
    names = [folder.name for folder in _patterns()]
    if from_ not in names:
        raise InputError(f"--from: now {from_!r}: there is no such pattern. Write {' or '.join(names)}.")
    try:
        TypeAdapter(Name).validate_python(Path(name).name)
    except ValidationError:
        why = "its last part is to be the deployment's name"
        raise InputError(f"NAME: now {name!r}: {why}. Write 2 to 32 of a-z, 0-9 and -, a letter first.") from None
    to = Path(name)
    if to.exists():
        raise InputError(f"{to}: it is there already, and nothing is overwritten. Write another name.")
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
    _complete_templates(to)
    _lead_to_schema(to / "blueprint.yaml", "blueprints/blueprint.schema.json")
    console.out.print(f"{to}: a copy of the pattern {from_}", markup=False)
    if not FLEET.exists():
        shutil.copy(ROOT / "fleet.yaml", FLEET)
        _lead_to_schema(FLEET, "infra/fleet.schema.json")
        console.out.print(f"{FLEET}: none was here, so this is a copy of the default fleet", markup=False)
    console.out.print(f"Next: edit {to / 'blueprint.yaml'}, then blueprint deploy {to}", markup=False)


def _complete_templates(folder: Path) -> None:
    """Puts what the patterns' templates share into the copies, so that a user finds every line there to change."""
    for template in folder.glob("*.j2"):
        shared = re.sub(
            r'^\{% include "(targets/[\w.]+)" %\}\n',
            lambda found: (PATTERNS / found[1]).read_text(encoding="utf-8"),
            template.read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
        template.write_text(shared, encoding="utf-8")


def _patterns() -> list[Path]:
    return sorted(path.parent for path in PATTERNS.glob("*/blueprint.yaml"))


def _about(folder: Path) -> str:
    """The first line of the pattern's README after its title."""
    lines = [line for line in (folder / "README.md").read_text(encoding="utf-8").splitlines() if line.strip()]
    return lines[1]


def _lead_to_schema(file: Path, schema: str) -> None:
    """Mends the comment by which editors find the schema: the copy lies elsewhere than what it was copied from."""
    there = min(os.path.relpath(ROOT / schema, file.resolve().parent), str(ROOT / schema), key=len)
    file.write_text(re.sub(r"(?<=\$schema=)\S+", there, file.read_text(encoding="utf-8")), encoding="utf-8")
