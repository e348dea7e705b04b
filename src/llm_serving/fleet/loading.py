"""Load `fleet.yaml`, and check it against the catalog and AWS's limits."""

from __future__ import annotations

from pathlib import Path

from llm_serving.fleet import checks
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import InputError


def load_fleet(path: Path) -> Document[Fleet]:
    """Load the fleet file `path`.

    Raises:
        InputError: with all mistakes: of the file, then of what cannot be rented or created.
    """
    document = load(path, Fleet)
    if mistakes := checks.find_mistakes(document):
        raise InputError(mistakes)
    return document
