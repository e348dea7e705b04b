"""Bases of data: frozen, a field that a class does not know is refused; those of a published schema are described."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core.core_schema import CoreSchema


class Described(BaseModel):
    """Base of models with a published schema.

    Pydantic's own `use_attribute_docstrings` reads the source of each class as it is made, in every process: a fifth of
    the CPU of `blueprint check`.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in _read_descriptions(cls).items():
            key = cls.model_fields[name].alias or name
            if key in properties:
                properties[key]["description"] = text
        return schema


class PlainData(BaseModel):
    """Frozen data that no person writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedData(PlainData, Described):
    """Plain data whose schema is published."""


def _read_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field, of the class itself or of the base that it comes from."""
    bases = [base for base in reversed(model.__mro__) if issubclass(base, Described) and base is not Described]
    texts = {name: text for base in bases for name, text in _read_own(base).items()}
    return {name: text for name, text in texts.items() if name in model.model_fields}


@functools.cache  # Python parses a class's whole module for its source
def _read_own(model: type[BaseModel]) -> dict[str, str]:
    texts = {}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value.value if isinstance(below.value, ast.Constant) else None
            if isinstance(text, str):
                texts[field.target.id] = inspect.cleandoc(text)
    return texts
