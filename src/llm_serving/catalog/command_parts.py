"""Parts of command lines, environments and files of settings, with values in braces.

values.yaml has all values that exist, and a row that uses another is refused when it is read.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

VALUES_FILE = Path(__file__).with_name("values.yaml")
"""All values that rows can use, with what each is."""

Values = Mapping[str, str | int | tuple[str, ...]]


def _parse_field_names(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def _check_field_names(text: str) -> str:
    if unknown := _parse_field_names(text) - _load_field_names():
        raise ValueError(f"{text}: no value is called {', '.join(sorted(unknown))}")
    return text


@functools.cache
def _load_field_names() -> frozenset[str]:
    return frozenset(own_yaml.read(VALUES_FILE))


Template = Annotated[str, AfterValidator(_check_field_names)]


def _check_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    for value in settings.values():
        if isinstance(value, Mapping):
            _check_settings(value)
        elif isinstance(value, str):
            _check_field_names(value)
    return settings


FileSettings = Annotated[Mapping[str, Any], AfterValidator(_check_settings)]
"""Keys of an engine's file of settings; a text that is one value in braces becomes that value, a number too."""


class CommandPart(PlainData):
    """Arguments and environment that one option or circumstance adds."""

    arguments: tuple[Template, ...] = ()
    settings: FileSettings = Field(default_factory=dict)
    """For engines that take a file of settings (`Engine.settings_arguments`)."""

    environment: Mapping[str, Template] = {}
    address_variables: tuple[str, ...] = ()
    """Variables that must hold the address by which other nodes reach the process."""

    beside: tuple[Template, ...] = ()
    """A program that runs beside the engine, and starts again where it ends."""


class NamedChoice(PlainData):
    """A row that a blueprint names."""

    source: str
    read_on: str
    default: bool = False
    """Whether it is the one of blueprints that name none."""


def get_default(rows: Mapping[str, NamedChoice]) -> str:
    """Return the name of the row that blueprints get which name none: the one with `default`, else the first."""
    return next((name for name, row in rows.items() if row.default), next(iter(rows)))


def list_option_names(words: Iterable[str]) -> list[str]:
    """Return the options among the words of a command line, as `engine_arguments` names them."""
    options = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    return [option.removeprefix("no-").replace("-", "_") for option in options]


def fill_arguments(templates: Iterable[str], values: Values) -> tuple[str, ...]:
    """Return the arguments with their values filled in.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    filled: list[str] = []
    for template in templates:
        lists = {name: value for name in _parse_field_names(template) if isinstance(value := values.get(name), tuple)}
        name, items = next(iter(lists.items()), ("", ("",)))
        filled += [template.format_map({**values, name: item}) for item in items]
    return tuple(filled)


def fill_settings(parts: Iterable[Mapping[str, Any]], values: Values) -> dict[str, Any]:
    """Return a file of settings with the keys of all parts; a later part wins, key by key one level down.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    settings: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            filled = _fill_setting(value, values)
            settings[key] = {**settings.get(key, {}), **filled} if isinstance(filled, dict) else filled
    return settings


def _fill_setting(value: Any, values: Values) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill_setting(item, values) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    names = _parse_field_names(value)
    is_whole = len(names) == 1 and value == f"{{{next(iter(names))}}}"
    return values[next(iter(names))] if is_whole else value.format_map(values)


def fill_env(parts: Iterable[Mapping[str, str]], values: Values) -> dict[str, str]:
    """Return the environments of all parts as one; a later part wins.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    return {name: template.format_map(values) for part in parts for name, template in part.items()}
