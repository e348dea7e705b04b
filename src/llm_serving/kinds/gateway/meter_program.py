"""Records the engines' counters each minute, warns of budgets, exports the audit and deletes what is old.

meter_program.py DATABASE_PORT DATA_FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from llm_serving.kinds.gateway import audit, database, litellm_settings, meter
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import DATABASE, Backend
from llm_serving.settings.errors import Unavailable

BACKENDS_VARIABLE, KEEP_VARIABLE, EXPORT_VARIABLE = "GATEWAY_METERED", "GATEWAY_KEEP_S", "GATEWAY_EXPORT"

INTERVAL_S = 60


def build_settings(backends: Sequence[Backend], keep_s: float, location: str) -> dict[str, str]:
    settings = {BACKENDS_VARIABLE: litellm_settings.dump(backends), KEEP_VARIABLE: f"{keep_s:g}"}
    return {**settings, EXPORT_VARIABLE: location} if location else settings


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
            if location := os.environ.get(EXPORT_VARIABLE):
                export(login, location)
            audit.delete_old(login, keep_s)
        except Unavailable as error:
            print(error, flush=True)
        time.sleep(INTERVAL_S)


def export(login: Login, location: str) -> None:
    """Export the audit; what S3 refuses is tried again in a minute.

    Raises:
        Unavailable: the database does not answer.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        for key in audit.export(login, boto3.client("s3"), location):
            print(f"audit: {key} is in {location}", flush=True)
    except (BotoCoreError, ClientError) as error:
        print(f"audit: {location}: S3 refuses: {error}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
