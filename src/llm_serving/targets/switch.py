"""Another engine or framework for a blueprint: what would be rendered, before its file changes."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_serving import paths, processes
from llm_serving.services import inputs
from llm_serving.services.blueprint import FILE_NAME
from llm_serving.settings import overrides, yaml_source
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets import planning

_ANCHOR = "model"
"""Key of `blueprint.yaml` below which a key is added."""


@dataclass(frozen=True)
class Switch:
    """A blueprint's file with other values, which can be rendered."""

    file: Path
    text: str
    """The whole file."""

    lines: tuple[str, ...]
    """Its changed lines, as a unified diff without context; empty where it has the values already."""

    rendered: tuple[str, ...]
    """What changes of the rendered file, as a unified diff."""

    def write(self) -> None:
        processes.write_whole(self.file, self.text)


def plan(folder: Path, fleet_file: Path, target: str, values: Mapping[str, str]) -> Switch:
    """Plan other values for top-level keys of a blueprint; writes nothing.

    Args:
        values: by key: `engine`, `framework`.

    Raises:
        InputError: the blueprint cannot work with them on the target; with every reason, by line of its file.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        inputs.read_blueprint(folder)  # which says so
    with tempfile.TemporaryDirectory() as scratch:
        # A deployment without a name has its folder's.
        copy = Path(scratch) / folder.resolve().name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*paths.NOT_COPIED))
        try:
            if mistakes := yaml_source.read(copy / FILE_NAME).mistakes:
                raise InputError(mistakes)
            before = file.read_bytes().decode("utf-8")
            text = overrides.apply(before, values, after=_ANCHOR)
            (copy / FILE_NAME).write_bytes(text.encode("utf-8"))
            new = _render_target(copy, fleet_file, target)
        except InputError as error:
            raise InputError(_translate_mistakes(error, copy, folder)) from None
    old: list[str] = []
    with contextlib.suppress(InputError):  # as it is it cannot work yet
        old = _render_target(folder, fleet_file, target)
    words = ", ".join(f"{key}: {value}" for key, value in values.items())
    rendered = difflib.unified_diff(old, new, "rendered now", f"rendered with {words}", lineterm="")
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=0)
    changed_lines = tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))
    return Switch(file, text, changed_lines, tuple(rendered))


def _render_target(folder: Path, fleet_file: Path, target: str) -> list[str]:
    return planning.plan_offline(folder, fleet_file, target).text.splitlines()


def _translate_mistakes(error: InputError, copy: Path, folder: Path) -> list[Mistake | str]:
    """Return the mistakes with the files that the user has."""
    return [
        dataclasses.replace(part, file=folder / part.file.relative_to(copy))
        if isinstance(part, Mistake) and part.file.is_relative_to(copy)
        else part
        if isinstance(part, Mistake)
        else part.replace(str(copy), str(folder))
        for part in error.parts
    ]
