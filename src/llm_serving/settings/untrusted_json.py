"""Read JSON that others wrote, within limits; whatever is wrong with it is a `json.JSONDecodeError`."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any, NoReturn

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
        value = json.loads(
            decoded,
            parse_int=_parse_int,
            parse_float=float if infinite else _parse_float,
            parse_constant=None if infinite else _refuse_constant,
        )
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
        OSError: it cannot be read.
        json.JSONDecodeError: it is no regular file, not JSON, or beyond the limits.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise json.JSONDecodeError("no regular file", "", 0)
    if status.st_size > MAX_FILE_BYTES:
        raise json.JSONDecodeError(f"{status.st_size} bytes, more than {MAX_FILE_BYTES}", "", 0)
    return parse(path.read_bytes(), infinite=infinite)


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
