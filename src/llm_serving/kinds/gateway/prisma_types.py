"""Leaves the types of a schema out of Prisma's Python client, which type checkers alone read.

    PYTHON prisma_types.py CLIENT_FOLDER

Of LiteLLM's schema they are 10.7 MB of source: a start's import of the client took 6.4 CPU-seconds and 250 MB with
them, byte code and all, and takes 1.3 and 66 without (prisma 0.15.0, medians of 3, 2026-11-27). The client names them
in annotations, which nothing evaluates, and in casts; LiteLLM makes dictionaries of some, so each of them is `dict`.
It imports nothing of this package: the gateway's image runs it too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_FIRST_MODEL = re.compile(r"(?m)^# \w+ types$")
"""What comes before it is the same for each schema, and used when the client runs."""

_LEFT_OUT = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return dict
"""


def leave_out(client: Path) -> None:
    file = client / "types.py"
    text = file.read_text(encoding="utf-8")
    first = _FIRST_MODEL.search(text)
    assert first, file
    file.write_text(text[: first.start()] + _LEFT_OUT, encoding="utf-8")


if __name__ == "__main__":
    leave_out(Path(sys.argv[1]))
