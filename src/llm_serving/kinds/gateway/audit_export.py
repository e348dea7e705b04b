"""Exports the audit to S3: an object of JSON lines for each hour, UTC, once the hour is over."""

from __future__ import annotations

import gzip
import io
import json
import time
from typing import Any

from llm_serving.kinds.gateway import audit, database
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.usage import Period
from llm_serving.services.rendered import split_location

TABLE = "blueprint_export"

_CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (until float8)"

_HOUR_S, _MINUTE_S = 3600, 60
_SETTLED_S = 300
"""How long after its end an hour is exported: LiteLLM writes its last records by then."""


def export(login: Login, s3: Any, location: str, now: float | None = None) -> list[str]:
    """Write the hours that ended since the last export; return the keys of their objects.

    An object is written again, the same, where what has been exported could not be noted.
    """
    bucket, prefix = split_location(location)
    database.execute(login, ["--command", _CREATE])
    [row] = database.query(login, database.read_statement("export_next"))
    end = (time.time() if now is None else now) - _SETTLED_S
    keys = []
    for start in range(round(row["start"] or end), round(end) - _HOUR_S + 1, _HOUR_S):
        if body := _pack_hour(login, start):
            key = f"{prefix}/{time.strftime('%Y/%m/%d/%H', time.gmtime(start))}.jsonl.gz"
            s3.put_object(Bucket=bucket, Key=key, Body=body)
            keys.append(key)
        database.execute(login, ["--command", f"DELETE FROM {TABLE}; INSERT INTO {TABLE} VALUES ({start + _HOUR_S})"])
    return keys


def _pack_hour(login: Login, start: int) -> bytes:
    """Pack the entries of an hour, of which a minute's are in memory at a time; empty where there are none."""
    packed, count = io.BytesIO(), 0
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        for minute in range(start, start + _HOUR_S, _MINUTE_S):
            for entry in audit.read(login, Period(minute, minute + _MINUTE_S)):
                file.write(f"{json.dumps(entry)}\n".encode())
                count += 1
    return packed.getvalue() if count else b""
