"""The JSON Schema of a settings model, for editors: one plain tree in the words of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from llm_serving.settings.document import Settings

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest draft that the YAML plugins of editors all know."""


def render(model_type: type[Settings], title: str, others: Mapping[str, type[Settings]] = MappingProxyType({})) -> str:
    """Return the JSON Schema of a file, draft 7, without references, titles of inner parts, and nulls.

    Args:
        others: what takes the place of `model_type` where the file's key `kind` has their names.
    """
    tree = build_tree(model_type)
    for kind, other in others.items():
        condition = {"required": ["kind"], "properties": {"kind": {"const": kind}}}
        tree = {"if": condition, "then": build_tree(other), "else": tree}
    return json.dumps({"$schema": DRAFT, "title": title, **tree}, indent=2, ensure_ascii=False) + "\n"


def build_tree(model_type: type[BaseModel]) -> dict[str, Any]:
    """Return the tree of a model alone, for a schema that it is a part of."""
    document = model_type.model_json_schema(by_alias=True)
    tree: dict[str, Any] = _inline_references(document, document.get("$defs", {}))
    return tree


def _inline_references(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline_references(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        # Draft 7 reads nothing beside a reference; the field's own sentence says more than its model's.
        node = {**definitions[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    inlined: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            inlined[key] = {name: _inline_references(field, definitions) for name, field in value.items()}
        elif key == "patternProperties":
            # Pydantic says of keys what they may be, and not that there are no others.
            inlined |= {key: _inline_references(value, definitions), "additionalProperties": False}
        elif key == "anyOf":
            # A key without a value is refused: what may be left out is not written as null.
            choices = [_inline_references(choice, definitions) for choice in value if choice != {"type": "null"}]
            inlined |= {**choices[0], **inlined} if len(choices) == 1 else {key: choices}
        elif key == "default":
            # An object's default is its fields' defaults, and an empty one means "left out".
            inlined |= {} if isinstance(value, dict) or value in (None, []) else {key: value}
        elif key not in ("title", "$defs", "propertyNames"):
            inlined[key] = _inline_references(value, definitions)
    return inlined
