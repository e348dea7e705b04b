"""The prompt and the events' schema, files of the blueprint: read and checked before anything is deployed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.kinds.streaming.blueprint import Blueprint
from llm_serving.settings import untrusted_json
from llm_serving.settings.document import Conflict, Document, raise_mistakes
from llm_serving.settings.errors import InputError, Mistake, quote_value

REQUIRED = ("id", "shopper", "type", "at")
"""What the job reads of each event."""

_FIELD = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.ASCII)
"""As PromptTemplate.java of images/stream-job has it."""

_EVENT = "event."


class EventFiles(NamedTuple):
    """Texts of both files."""

    prompt: str
    schema: str


def read(blueprint: Document[Blueprint]) -> EventFiles:
    """Read both files.

    Raises:
        InputError: one cannot be read, or is wrong; with each mistake at its line.
    """
    folder, settings = blueprint.path.parent, blueprint.value
    prompt = _read_file(blueprint, "prompt", folder / settings.prompt)
    schema = _read_file(blueprint, "events", folder / settings.events)
    parsed = _read_schema(folder / settings.events, schema)
    raise_mistakes(_check_prompt(folder / settings.prompt, prompt, tuple(parsed.get("properties", {}))))
    raise_mistakes(blueprint.locate(_check_kept_types(settings, parsed)))
    return EventFiles(prompt, schema)


def _read_file(blueprint: Document[Blueprint], key: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        mistake = blueprint.build_mistake((key,), file.name, f"it cannot be read: {reason}", "write the file")
        raise InputError([mistake]) from None


def _read_schema(file: Path, text: str) -> dict[str, Any]:
    """Return the schema, which requires what the job reads."""
    import jsonschema  # takes a moment
    import referencing.jsonschema

    try:
        schema: Any = untrusted_json.parse(text)
        jsonschema.Draft202012Validator.check_schema(schema)
    except json.JSONDecodeError as error:
        reason = f"it is not JSON: {error}"
        raise InputError([Mistake(file, error.lineno, 1, "", "", reason, "correct the line")]) from None
    except jsonschema.SchemaError as error:
        reason, field = f"it is not a JSON Schema: {error.message}", ".".join(map(str, error.absolute_path))
        raise InputError([Mistake(file, 1, 1, field, "", reason, "correct the field")]) from None
    resource = referencing.Resource.from_contents(schema, referencing.jsonschema.DRAFT202012)
    resolver = referencing.Registry().resolver_with_root(resource)
    for reference in _find_references([schema]):
        try:
            resolver.lookup(reference)
        except referencing.exceptions.Unresolvable:
            reason, value = "this file has nothing there", quote_value(reference)
            raise InputError([Mistake(file, 1, 1, "$ref", value, reason, "write it below $defs")]) from None
    required = schema.get("required", []) if isinstance(schema, dict) else []
    missing_names = [name for name in REQUIRED if name not in required]
    if missing_names:
        reason = f"it does not require {', '.join(missing_names)}, which the job reads"
        raise InputError([Mistake(file, 1, 1, "required", "", reason, f"add {', '.join(missing_names)}")])
    return dict(schema)


def _find_references(schema: Any) -> Iterator[str]:
    """Yield where a schema refers to without a URL, its own `$id` among them: those the job reads itself."""
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key == "$ref" and isinstance(value, str) and "://" not in value:
            yield value
        elif not (isinstance(value, dict) and "$id" in value):
            yield from _find_references(value)


def _check_kept_types(settings: Blueprint, schema: dict[str, Any]) -> Iterator[Conflict]:
    type_schema = schema.get("properties", {}).get("type")
    types = type_schema.get("enum", ()) if isinstance(type_schema, dict) else ()
    for kept in settings.shed.keep if settings.shed else ():
        if types and kept not in types:
            reason, fix = f"{settings.events} allows no such `type`", f"use {' or '.join(map(str, types))}"
            yield Conflict(("shed", "keep"), reason, fix, kept)


def _check_prompt(file: Path, text: str, properties: tuple[str, ...]) -> Iterator[Mistake]:
    fields = ("shopper", "session", *(f"{_EVENT}{name}" for name in properties))
    for match in _FIELD.finditer(text):
        if match[1] not in fields:
            line, column = text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())
            reason, fix = "there is no such field", f"use {' or '.join(fields)}"
            yield Mistake(file, line, column, "", quote_value(match[1]), reason, fix)
