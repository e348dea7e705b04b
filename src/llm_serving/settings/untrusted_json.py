"""Read JSON that others wrote, within limits; whatever is wrong with it is a `json.JSONDecodeError`."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NoReturn

from llm_serving.settings.untrusted_file import open_regular

MAX_DEPTH = 100
"""Most levels of lists and mappings: what walks a value calls itself once or more for each."""

MAX_DIGITS = 20
"""Most digits of a whole number, as many as 64 bits have."""

MAX_FILE_BYTES = 256_000_000


def parse(text: str | bytes, *, infinite: bool = False) -> Any:
    """Return the value that a text in JSON has.

    Args:
        infinite: takes NaN and Infinity, which JSON does not have and transformers writes.

    Raises:
        json.JSONDecodeError: it is not JSON, or beyond the limits.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = (_INFINITE if infinite else _FINITE).decode(decoded)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError(f"more than {MAX_DEPTH} levels", "", 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
    if decoded.count("[") + decoded.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def read(path: Path, *, infinite: bool = False) -> Any:
    """Return the value of a file in JSON.

    Raises:
        OSError: it cannot be read, or is no file.
        json.JSONDecodeError: it is not JSON, or beyond the limits.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise json.JSONDecodeError(f"{size} bytes, more than {MAX_FILE_BYTES}", "", 0)
        return parse(file.read(), infinite=infinite)


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number without bound")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which JSON does not have")


_FINITE = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_constant)
_INFINITE = json.JSONDecoder(parse_int=_parse_int)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _list_children(parent)]
        if not level:
            return
    raise json.JSONDecodeError(f"more than {MAX_DEPTH} levels", "", 0)


def _list_children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
