"""`blueprint list`, `new` and `baseline`: the patterns, and blueprints copied from them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.table import Table
from rich.text import Text

from llm_serving import console, paths
from llm_serving.fleet.model import Name
from llm_serving.kinds.serving import baseline as baselines
from llm_serving.kinds.serving import blueprint
from llm_serving.kinds.serving.patterns import FACTS_FILE
from llm_serving.options import completions
from llm_serving.options.arguments import FLEET, AsJson, Folder
from llm_serving.services import inputs
from llm_serving.services.blueprint import FILE_NAME
from llm_serving.services.kinds import Capability
from llm_serving.settings.errors import InputError, quote_value, require_choice
from llm_serving.targets import render

ROOT = paths.ROOT
PATTERNS = paths.PATTERNS
PRESETS = "presets"
"""Folder of a pattern with other blueprints, each a replacement of the pattern's own."""

_NOT_COPIED = shutil.ignore_patterns(*paths.NOT_COPIED, PRESETS, FACTS_FILE)


def list_(as_json: AsJson = False) -> None:
    """List the patterns that `new` copies."""
    entries = [
        {
            "name": folder.name,
            "targets": render.list_targets(folder),
            "about": _read_summary(folder),
            "folder": str(folder),
            "presets": _list_presets(folder),
        }
        for folder in paths.list_patterns()
    ]
    console.print_rows(entries, _render_patterns(entries), as_json=as_json, soft_wrap=False)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder to create, and the deployment's name.")],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PATTERN",
            help="The pattern to copy; see `blueprint list`.",
            autocompletion=completions.complete_patterns,
        ),
    ],
    preset: Annotated[
        str | None, typer.Option(metavar="PRESET", help="Preset to start from; see `blueprint list`.")
    ] = None,
) -> None:
    """Copy a pattern to a folder of your own."""
    source = PATTERNS / from_
    require_choice("--from", from_, "pattern", [folder.name for folder in paths.list_patterns()])
    presets = _list_presets(source)
    if preset is not None and preset not in presets:
        choices = " or ".join(presets) or "no --preset"
        raise InputError(f"--preset: {quote_value(preset)}: {from_} has no such preset. Fix: use {choices}.")
    destination = require_new_folder(Path(name), "NAME")
    with remove_unfinished(destination):
        copy_pattern(source, destination)
        if preset is not None:
            shutil.copy(source / PRESETS / f"{preset}.yaml", destination / "blueprint.yaml")
        _update_schema_comment(destination / "blueprint.yaml", "blueprints/blueprint.schema.json")
    console.out.print(
        f"{destination}: copied from the pattern {from_}{f', preset {preset}' if preset else ''}", markup=False
    )
    if not FLEET.exists():
        shutil.copy(ROOT / "fleet.yaml", FLEET)
        _update_schema_comment(FLEET, "infra/fleet.schema.json")
        console.out.print(f"{FLEET}: copied from the default fleet", markup=False)
    console.out.print(f"Next: edit {destination / 'blueprint.yaml'}, then blueprint deploy {destination}", markup=False)


def baseline(
    folder: Folder,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The folder to create; DIR-baseline if left out.")
    ] = None,
) -> None:
    """Create the aggregated baseline of a disaggregated blueprint.

    It has the same accelerators, model, traffic and SLO. Validate both to see what disaggregation gains.
    """
    inputs.require_capability(folder, Capability.BASELINE)
    original = blueprint.read(folder)
    baseline_text, pattern = baselines.render(original), baselines.get_pattern(original)
    source = folder.resolve()
    destination = require_new_folder(
        Path(name or console.shorten_path(source.with_name(f"{source.name}-baseline"))), "NAME"
    )
    # The user may have edited the templates; prompts and adapters are next to them.
    with remove_unfinished(destination):
        shutil.copytree(source, destination, ignore=_NOT_COPIED)
        (destination / FILE_NAME).write_text(baseline_text, encoding="utf-8")
        shutil.copy(PATTERNS / pattern / "README.md", destination)
        _inline_includes(destination)
    console.out.print(f"{destination}: the accelerators of {folder} as {pattern} replicas", markup=False)
    console.out.print(f"Next: validate both, then blueprint compare {destination} {folder}", markup=False)


def copy_pattern(source: Path, destination: Path) -> None:
    """Copy a pattern's files for a user, without its presets."""
    shutil.copytree(source, destination, ignore=_NOT_COPIED)
    _inline_includes(destination)


@contextlib.contextmanager
def remove_unfinished(folder: Path) -> Iterator[None]:
    """Remove a folder again if the block that creates it fails: the next try may have its name."""
    try:
        yield
    except FileExistsError:  # another command was first
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def require_new_folder(folder: Path, argument: str) -> Path:
    """Return the folder.

    Raises:
        InputError: it exists, or its name cannot be a deployment's.
    """
    try:
        TypeAdapter(Name).validate_python(folder.name)
    except ValidationError:
        reason = "the folder's name becomes the deployment's name"
        fix = "use 2 to 32 characters of a-z, 0-9 and -, starting with a letter"
        raise InputError(f"{argument}: {quote_value(folder)}: {reason}. Fix: {fix}.") from None
    if folder.exists():
        raise InputError(f"{argument}: {quote_value(folder)}: it exists already. Fix: use another name.")
    return folder


def _list_presets(pattern: Path) -> list[str]:
    return sorted(path.stem for path in (pattern / PRESETS).glob("*.yaml"))


def _inline_includes(folder: Path) -> None:
    """Replace the includes of the templates by their text, so that users can edit every line."""
    for template in folder.glob("*.j2"):
        template.write_text(render.inline_includes(template.read_text(encoding="utf-8")), encoding="utf-8")


def _read_summary(folder: Path) -> str:
    """Read the first paragraph of the pattern's README after its title."""
    _title, summary, *_ = (folder / "README.md").read_text(encoding="utf-8").split("\n\n")
    return " ".join(summary.split())


def _update_schema_comment(file: Path, schema: str) -> None:
    schema_path = min(os.path.relpath(ROOT / schema, file.resolve().parent), str(ROOT / schema), key=len)
    file.write_text(re.sub(r"(?<=\$schema=)\S+", schema_path, file.read_text(encoding="utf-8")), encoding="utf-8")


def _render_patterns(entries: Iterable[Mapping[str, Any]]) -> Table:
    table = Table("pattern", "targets", "description", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for entry in entries:
        presets = f" Presets: {', '.join(entry['presets'])}." if entry["presets"] else ""
        table.add_row(Text(entry["name"], "bold"), ", ".join(entry["targets"]), Text(f"{entry['about']}{presets}"))
    return table
