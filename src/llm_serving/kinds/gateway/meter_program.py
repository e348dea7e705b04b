"""Records the engines' counters each minute, warns of budgets and deletes what is old.

meter_program.py DATABASE_PORT DATA_FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from llm_serving.kinds.gateway import audit, database, meter
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import DATABASE
from llm_serving.settings.errors import Unavailable

BACKENDS_VARIABLE, KEEP_VARIABLE = "GATEWAY_METERED", "GATEWAY_KEEP_S"

INTERVAL_S = 60


def main(port: int, data_folder: Path) -> NoReturn:
    """Record into the database of this machine."""
    run(lambda: database.read_login(port, data_folder / DATABASE))


def run(read_login: Callable[[], Login]) -> NoReturn:
    """Record until a signal; a database that is away for a while leaves out a row."""
    backends, keep_s = meter.load(os.environ[BACKENDS_VARIABLE]), float(os.environ[KEEP_VARIABLE])
    while True:
        try:
            login = read_login()
            meter.record(login, backends)
            for warning in audit.warn(login):
                print(f"team {warning}", flush=True)
            audit.delete_old(login, keep_s)
        except Unavailable as error:
            print(error, flush=True)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
