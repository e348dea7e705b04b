"""Other values for keys of a settings file: `KEY=VALUE,VALUE` as a person writes them, and the file's text with them.

Comments, order and layout of the file stay as they are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from llm_serving.settings import diagnostics
from llm_serving.settings.errors import InputError, quote_value


class Override(NamedTuple):
    """A key, and the values to write there one after the other."""

    key: str
    """With dots, such as `tuning.batch_tokens`."""

    values: tuple[str, ...]
    """As YAML."""


def parse(option: str, text: str) -> Override:
    """Read `KEY=VALUE,VALUE`; commas within brackets and braces belong to a value.

    Raises:
        InputError: it has no key, or a value that is empty, there twice, or no YAML.
    """
    key, separator, written = text.partition("=")
    values = tuple(value.strip() for value in _split_flow(written))
    if not separator or not key.strip() or not all(values):
        raise InputError(
            f"{option}: {quote_value(text)}: it is not KEY=VALUE,VALUE. Fix: write tuning.batch_tokens=2k,8k."
        )
    if len(set(values)) < len(values):
        raise InputError(f"{option}: {quote_value(text)}: a value is there twice. Fix: write each value once.")
    for value in values:
        _load_value(f"{option}: {quote_value(text)}", value)
    return Override(key.strip(), values)


def _load_value(subject: str, value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # a date that there is not is a ValueError
        raise InputError(f"{subject}: {value} is not YAML. Fix: write a value as in blueprint.yaml.") from None


def _split_flow(text: str) -> Iterator[str]:
    depth, value = 0, ""
    for char in text:
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            yield value
            value = ""
        else:
            value += char
    yield value


def require_key(option: str, model: type[BaseModel], data: Any, key: str, reserved: Collection[str] = ()) -> None:
    """Check that a settings file may have a key; of a mapping with names of its own, that the file has the name.

    Args:
        reserved: top-level keys that are not for overrides.

    Raises:
        InputError: it may not; names the nearest key.
    """
    steps = key.split(".")
    node = data
    for index, (step, settings) in enumerate(diagnostics.walk_models(model, steps)):
        if settings is not None:
            names = [name for name in diagnostics.get_fields(settings) if index or name not in reserved]
        elif isinstance(node, Mapping):
            names = list(node)
        else:
            names = []
        if step not in names:
            parent = ".".join(steps[:index])
            lacks = f"{parent or 'the file'} has no key {step} to vary"
            reason = f"{step} is the same for all that are compared" if not index and step in reserved else lacks
            raise InputError(
                f"{option}: {quote_value(key)}: {reason}. Fix: use {_suggest_key(parent, str(step), names)}."
            )
        node = node.get(step) if isinstance(node, Mapping) else None


def _suggest_key(parent: str, step: str, names: list[str]) -> str:
    matches = difflib.get_close_matches(step, names, n=1)
    prefix = f"{parent}." if parent else ""
    if matches:
        return f"{prefix}{matches[0]}"
    return f"one of {', '.join(f'{prefix}{name}' for name in names)}" if names else f"{parent} itself"


def apply(text: str, changes: Mapping[str, str], *, after: str = "") -> str:
    """Return a file's text with other values at some keys; keys that it does not have are added.

    Args:
        after: the top-level key below which one is added; the last one where the file has none of this name.

    Raises:
        InputError: a value is no YAML, or shared by an anchor.
    """
    data = yaml.safe_load(text)
    for key, value in changes.items():
        steps = key.split(".")
        data = _set_value(data, steps, _load_value(key, value))
        text = _write_value(text, steps, value, after)
        try:
            is_kept = yaml.safe_load(text) == data
        except (yaml.YAMLError, ValueError):
            is_kept = False
        if not is_kept:
            raise InputError(f"{key}: its value is shared by an anchor. Fix: write {key} without an anchor.")
    return text


def _set_value(data: Any, steps: list[str], value: Any) -> Any:
    """Return a copy of nested mappings with another value at the end of `steps`."""
    if not steps:
        return value
    mapping = data if isinstance(data, dict) else {}
    return {**mapping, steps[0]: _set_value(mapping.get(steps[0]), steps[1:], value)}


def _write_value(text: str, steps: list[str], value: str, after: str) -> str:
    """Return a text with a value at the end of `steps`, in place of the one there or below its nearest parent."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    key = None
    for index, step in enumerate(steps):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        pair_of_step = next((pair for pair in pairs if pair[0].value == step), None)
        if pair_of_step is None and pairs and not node.flow_style:
            above = next((pair for pair in pairs if pair[0].value == after and not index), pairs[-1])
            return _add_lines(text, node.start_mark.column, _find_end(above[1]), steps[index:], value)
        if pair_of_step is None:
            flow_text = _format_flow(steps[index:], value)
            if pairs:
                end = _find_end(node.value[-1][1])
                return f"{text[:end]}, {flow_text}{text[end:]}"
            value = f"{{{flow_text}}}"
            break
        key, node = pair_of_step
    start = node.start_mark.index
    if key and key.start_mark.line != node.start_mark.line:
        start, value = key.end_mark.index + 1, f" {value}"
    return text[:start] + value + text[_find_end(node) :]


def _format_flow(steps: list[str], value: str) -> str:
    """Return `a: {b: value}`."""
    for step in reversed(steps[1:]):
        value = f"{{{step}: {value}}}"
    return f"{steps[0]}: {value}"


def _add_lines(text: str, column: int, above: int, steps: list[str], value: str) -> str:
    """Return a text with lines for `steps` in a column, below the line of the position `above`."""
    line_end = re.compile(r"\r?\n|\Z").search(text, above)
    assert line_end, "a text has an end"
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = [f"{ending}{' ' * (column + 2 * depth)}{step}:" for depth, step in enumerate(steps)]
    return f"{text[: line_end.start()]}{''.join(lines)} {value}{text[line_end.start() :]}"


def _find_end(node: Any) -> int:
    """Return where the text of a node ends, without the comments below it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _find_end(last[1] if isinstance(node, yaml.MappingNode) else last)
