"""Other values for keys of a settings file: `KEY=VALUE,VALUE` as a person writes them, and the file's text with them.

Comments, order and layout of the file stay as they are.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

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
    values = tuple(value.strip() for value in _split(written))
    if not separator or not key.strip() or not all(values):
        raise InputError(f"{option}: {quote_value(text)}: it is not KEY=VALUE,VALUE. Fix: tuning.batch_tokens=2k,8k.")
    if len(set(values)) < len(values):
        raise InputError(f"{option}: {quote_value(text)}: a value is there twice. Fix: each value once.")
    for value in values:
        try:
            _create_yaml().load(value)
        except YAMLError:
            raise InputError(
                f"{option}: {quote_value(text)}: {value} is no YAML. Fix: a value as in blueprint.yaml."
            ) from None
    return Override(key.strip(), values)


def _split(text: str) -> Iterator[str]:
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
        data: the file's data.
        reserved: top-level keys that are not for overrides.

    Raises:
        InputError: it may not; names the nearest key.
    """
    steps = key.split(".")
    current = data
    for index, (step, settings) in enumerate(diagnostics.walk_models(model, steps)):
        if settings is not None:
            names = [name for name in diagnostics.get_fields(settings) if index or name not in reserved]
        elif isinstance(current, Mapping):
            names = list(current)
        else:
            names = []
        if step not in names:
            parent = ".".join(steps[:index])
            reason = f"{parent or 'the file'} has no key {step} to vary"
            raise InputError(f"{option}: {quote_value(key)}: {reason}. Fix: {_suggest(parent, str(step), names)}.")
        current = current.get(step) if isinstance(current, Mapping) else None


def _suggest(parent: str, step: str, names: list[str]) -> str:
    matches = difflib.get_close_matches(step, names, n=1)
    prefix = f"{parent}." if parent else ""
    if matches:
        return f"{prefix}{matches[0]}"
    return f"one of {', '.join(f'{prefix}{name}' for name in names)}" if names else f"{parent} itself"


def apply(text: str, changes: Mapping[str, str]) -> str:
    """Return a file's text with other values at some keys; keys that it has not are added."""
    yaml = _create_yaml()
    document = yaml.load(text)
    for key, value in changes.items():
        *parents, last = key.split(".")
        mapping = document
        for parent in parents:
            mapping = mapping.setdefault(parent, CommentedMap())
        mapping[last] = yaml.load(value)
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _create_yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10**6  # no line is folded
    return yaml
