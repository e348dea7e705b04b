"""How long a replica took to start: the parts that its image, its weights and its engine take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llm_serving.catalog import engines


@dataclass(frozen=True)
class Start:
    """One replica's start; None where nothing says how long a part took."""

    name: str
    role: str
    pull_s: float | None
    """Pulling the images; None on this machine, and where Kubernetes has forgotten its events."""

    load_s: float | None
    """Loading the weights, as the engine says."""

    compile_s: float | None
    """Profiling, the KV cache, compiling and warming up, as the engine says."""

    first_answer_s: float | None
    """All of it: from the start of the process here, of the pod or the task, to its first answer."""

    copy_s: float | None = None
    """Copying weights that are not streamed to the disk; None on ECS, which has no times of single containers."""


def read_log(log: Iterable[str], engine: str) -> tuple[float | None, float | None]:
    """Return the seconds of loading and compiling in the last start of an engine's log; None what it does not say."""
    row = engines.load_engines().get(engine)
    if row is None or row.start_lines is None:
        return None, None
    lines = row.start_lines
    last_start: list[str] = []
    for line in log:
        if re.search(lines.begins, line):
            last_start.clear()
        last_start.append(line)
    return _find_longest(last_start, lines.load), _find_longest(last_start, lines.compile)


def _find_longest(log: Iterable[str], pattern: str) -> float | None:
    matches = (re.search(pattern, line) for line in log)
    return max((float(match[1]) for match in matches if match), default=None)
