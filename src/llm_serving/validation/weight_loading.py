"""How the engine read its weights, from the line that the weight streamer writes into the engine's log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from llm_serving.validation.report import WeightsRead
from llm_serving.workloads.serving.deployment import Weights

_LINE = re.compile(r"Overall time to stream ([\d.]+) (Bytes?|[KMGT]iB) of all files to \S+: ([\d.]+)s")
_UNIT = {"Byte": 1, "Bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def read(weights: Weights, logs: Iterable[Path]) -> WeightsRead:
    """What one replica read, and how long the slowest took; null where no log tells.

    The bytes are as the log rounds them, to a tenth of its unit.
    """
    found = [each for log in logs if (each := _last(log))]
    return WeightsRead(
        source=weights.uri,
        bytes=max((size for size, _ in found), default=None),
        seconds=max((seconds for _, seconds in found), default=None),
        random=weights.random,
    )


def _last(log: Path) -> tuple[int, float] | None:
    """Bytes and seconds of the last start that the log tells of."""
    if not log.is_file():
        return None
    found = _LINE.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        return None
    size, unit, seconds = found[-1]
    return round(float(size) * _UNIT[unit]), float(seconds)
