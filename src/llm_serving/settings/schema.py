"""The JSON Schema of a settings model, for editors: one plain tree in the words of the file."""

from __future__ import annotations

import json
from typing import Any

from llm_serving.settings.document import Settings

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest draft that the YAML plugins of editors all know."""


def text(kind: type[Settings], title: str) -> str:
    """The schema as the file that is published."""
    return json.dumps(schema(kind, title), indent=2, ensure_ascii=False) + "\n"


def schema(kind: type[Settings], title: str) -> dict[str, Any]:
    """The JSON Schema of `kind`, draft 7, without references, titles of inner parts, and nulls."""
    made = kind.model_json_schema(by_alias=True)
    tree = _plain(made, made.get("$defs", {}))
    return {"$schema": DRAFT, "title": title, **tree}


def _plain(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        # Draft 7 reads nothing beside a reference; the field's own sentence says more than its model's.
        node = {**definitions[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    plain: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            plain[key] = {name: _plain(field, definitions) for name, field in value.items()}
        elif key == "patternProperties":
            # Pydantic says of keys what they may be, and not that there are no others.
            plain |= {key: _plain(value, definitions), "additionalProperties": False}
        elif key == "anyOf":
            # A key without a value is refused: what may be left out is not written as null.
            choices = [_plain(choice, definitions) for choice in value if choice != {"type": "null"}]
            plain |= {**choices[0], **plain} if len(choices) == 1 else {key: choices}
        elif key == "default":
            # An object's default is those of its own fields, and an empty one means "left out".
            plain |= {} if isinstance(value, dict) or value in (None, []) else {key: value}
        elif key not in ("title", "$defs", "propertyNames"):
            plain[key] = _plain(value, definitions)
    return plain
