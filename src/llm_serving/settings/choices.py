"""A text that is one of a list of names, read on validation: rows of a catalog, directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema
from pydantic_core.core_schema import CoreSchema

Task = Literal["generate", "embed", "rerank", "classify", "draw"]
"""What a model is for: text, a vector of a text, the score of a text for a query, the labels of a text, pictures."""


@dataclass(frozen=True)
class OneOf:
    """One of the names that `list_names` returns; refused and published as a `Literal` of them would be."""

    list_names: Callable[[], Sequence[str]]

    @property
    def example(self) -> str:
        """The first name."""
        return self.list_names()[0]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._check, serialization=core_schema.to_string_ser_schema()
        )

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.list_names())}

    def _check(self, value: Any) -> str:
        names = self.list_names()
        if isinstance(value, str) and value in names:
            return value
        *others, last = (f"'{name}'" for name in names)
        raise PydanticCustomError(
            "literal_error",
            "it is not one of {expected}",
            {"expected": f"{', '.join(others)} or {last}" if others else last},
        )
