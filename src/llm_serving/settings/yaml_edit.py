"""Another value at a top-level key of a settings file: only its line changes, and no comment is lost."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from llm_serving.settings import yaml_source
from llm_serving.settings.errors import InputError, Mistake

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#](?:[^#\r\n]|(?<=\S)#)*?(?=\s*(?:\s#|[\r\n]|\Z))""")
"""A value on one line: in quotes, or up to a comment or the line's end."""


def set_value(path: Path, key: str, value: str, *, after: str) -> str:
    """Return a file's text with a plain value at a top-level key, which is added where the file has none.

    Args:
        after: the key below which the line is added.

    Raises:
        InputError: the file cannot be read, or is laid out so that one line cannot do it.
    """
    yaml_file = yaml_source.read(path)
    text = path.read_bytes().decode("utf-8")
    lines = _LINE.findall(text)
    position = yaml_file.positions.get((key,))
    if position:
        line = lines[position.line - 1]
        start = position.column - 1
        lines[position.line - 1] = line[:start] + _VALUE.sub(lambda _: value, line[start:], count=1)
    else:
        anchor = yaml_file.positions.get((after,))
        index = anchor.line if anchor else len(lines)
        ending = "\r\n" if text.count("\r\n") else "\n"
        if index and not lines[index - 1].endswith(("\r", "\n")):
            lines[index - 1] += ending
        lines.insert(index, f"{key}: {value}{ending}")
    changed = "".join(lines)
    _require_only(path, yaml_file, changed, key, value)
    return changed


def _require_only(path: Path, before: yaml_source.YamlFile, changed: str, key: str, value: str) -> None:
    """Check that the text says what the file says, with the other value.

    Raises:
        InputError: it does not.
    """
    try:
        data = yaml_source.parse(path, changed).data
    except (InputError, yaml.YAMLError):
        data = None
    if not isinstance(before.data, dict) or data != {**before.data, key: value}:
        position = before.positions.get((key,)) or yaml_source.Position(1, 1, 1, 1)
        reason = "it is laid out so that no single line can be rewritten"
        raise InputError(
            [Mistake(path, position.line, position.column, key, "", reason, f"write {key}: {value} yourself")]
        )
