"""Runs a program: its settings, its logs and its exit codes."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from collections.abc import Callable

from batch import memory, settings
from batch.endpoint import FIELDS, REQUESTS
from batch.secrets import Unreadable
from batch.settings import BadSettings, Settings
from batch.team_keys import BadKeys

BAD_SETTINGS, NO_SECRET = 2, 3
"""Exit codes."""


def run(name: str, open_program: Callable[[Settings], Callable[[], object]]) -> int:
    """Open a program and let it work until SIGTERM; returns the exit code."""
    memory.limit_arenas()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    for quiet in ("botocore", REQUESTS):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    try:
        read = settings.read()
        if read.logs == "json":
            log_json(name)
        work = open_program(read)
    except (BadSettings, BadKeys, Unreadable) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_SETTINGS if isinstance(error, BadSettings) else NO_SECRET
    work()
    return 0


class JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object, with the `fields` that its call adds."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "program": self._program, "level": record.levelname.lower()}
        line |= {"message": record.getMessage(), **getattr(record, FIELDS, {})}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_json(program: str) -> None:
    """Log JSON from here on, with a line for each request to the endpoint."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(program))
    logging.getLogger(REQUESTS).setLevel(logging.INFO)
