"""Runs a program: its settings, its logs and its exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from batch import memory, settings
from batch.secrets import Unreadable
from batch.settings import BadSettings, Settings
from batch.team_keys import BadKeys

BAD_SETTINGS, NO_SECRET = 2, 3
"""Exit codes."""


def run(name: str, open_program: Callable[[Settings], Callable[[], object]]) -> int:
    """Open a program and let it work until SIGTERM; returns the exit code."""
    memory.limit_arenas()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        work = open_program(settings.read())
    except (BadSettings, BadKeys, Unreadable) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_SETTINGS if isinstance(error, BadSettings) else NO_SECRET
    work()
    return 0
