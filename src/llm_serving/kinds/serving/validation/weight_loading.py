"""How the engine loaded its weights, from the weight streamer's line in the engine's log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from llm_serving.services.models import Weights
from llm_serving.validation.reports.report import WeightLoading

_UNITS = {"Byte": 1, "Bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def read(weights: Weights, logs: Iterable[Path], line: str) -> WeightLoading:
    """Return what one replica read, and how long the slowest took; null if no log has the line.

    The log rounds the bytes to a tenth of its unit.

    Args:
        line: `streaming.log_line` of the engine's row; empty if it writes none.
    """
    loads = [load for log in logs if line and (load := _parse_last_load(log, line))]
    return WeightLoading(
        source=weights.uri,
        bytes=max((size for size, _ in loads), default=None),
        seconds=max((seconds for _, seconds in loads), default=None),
        random=weights.random,
    )


def _parse_last_load(log: Path, line: str) -> tuple[int, float] | None:
    """Return bytes and seconds of the last start in the log."""
    if not log.is_file():
        return None
    matches = re.findall(line, log.read_text(encoding="utf-8", errors="replace"))
    if not matches:
        return None
    size, unit, seconds = matches[-1]
    return round(float(size) * _UNITS[unit]), float(seconds)
