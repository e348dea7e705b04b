"""Another value at a key of a settings file: only its line changes, and no comment is lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from llm_serving.settings import yaml_source
from llm_serving.settings.errors import InputError, Mistake

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#](?:[^#\r\n]|(?<=\S)#)*?(?=\s*(?:\s#|[\r\n]|\Z))""")
"""A value on one line: in quotes, or up to a comment or the line's end."""


def set_value(path: Path, key_path: Sequence[str], value: str, *, after: str) -> str:
    """Return a file's text with a value at a key, which is added where the file has none.

    Args:
        key_path: one key, or a key and another below it.
        value: as YAML writes it, plain or in double quotes.
        after: the key below which the line is added.

    Raises:
        InputError: the file cannot be read, or is laid out so that one line cannot do it.
    """
    yaml_file = yaml_source.read(path)
    text = path.read_bytes().decode("utf-8")
    lines = _LINE.findall(text)
    position = yaml_file.positions.get(tuple(key_path))
    if position:
        line = lines[position.line - 1]
        start = position.column - 1
        lines[position.line - 1] = line[:start] + _VALUE.sub(lambda _: value, line[start:], count=1)
    elif (key_path[0],) not in yaml_file.positions:
        anchor = yaml_file.positions.get((after,))
        index = anchor.line if anchor else len(lines)
        ending = "\r\n" if text.count("\r\n") else "\n"
        if index and not lines[index - 1].endswith(("\r", "\n")):
            lines[index - 1] += ending
        lines.insert(index, f"{_format_line(key_path, value)}{ending}")
    changed = "".join(lines)
    _require_only(path, yaml_file, changed, key_path, value)
    return changed


def _format_line(key_path: Sequence[str], value: str) -> str:
    first, *rest = key_path
    return f"{first}: {{{_format_line(rest, value)}}}" if rest else f"{first}: {value}"


def _require_only(path: Path, before: yaml_source.YamlFile, changed: str, key_path: Sequence[str], value: str) -> None:
    """Check that the text says what the file says, with the other value.

    Raises:
        InputError: it does not.
    """
    try:
        data = yaml_source.parse(path, changed).data
    except (InputError, yaml.YAMLError):
        data = None
    if not isinstance(before.data, dict) or data != _replace(before.data, key_path, value.strip('"')):
        position = before.positions.get(tuple(key_path)) or yaml_source.Position(1, 1, 1, 1)
        reason = "it is laid out so that no single line can be rewritten"
        fix = f"write {_format_line(key_path, value)} yourself"
        raise InputError([Mistake(path, position.line, position.column, ".".join(key_path), "", reason, fix)])


def _replace(data: Any, key_path: Sequence[str], value: str) -> dict[str, Any]:
    first, *rest = key_path
    known = data if isinstance(data, dict) else {}
    return {**known, first: _replace(known.get(first), rest, value) if rest else value}
