"""Values on the command line that are read as the settings files read them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from llm_serving.settings.errors import InputError, quote_value


def parse(option: str, text: str, kind: Any) -> Any:
    """Return the value of a type of the settings, such as `30s`, in that type's unit.

    Raises:
        InputError: it is none; says what it may be.
    """
    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"{option}: {quote_value(text)}: {reason}.") from None
