"""How long a replica took to start: the parts that its image, its weights and its engine take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llm_serving.catalog import engines
from llm_serving.catalog.engines import StartLines


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


def find_lines(engine: str) -> StartLines | None:
    """Return what an engine logs of its start; None of programs that are no engine."""
    row = engines.load_engines().get(engine)
    return row.start_lines if row else None


def read_log(log: Iterable[str], lines: StartLines | None) -> tuple[float | None, float | None]:
    """Return the seconds of loading and of compiling in the last start of a log; None what it does not say."""
    if lines is None:
        return None, None
    last_start: list[str] = []
    for line in log:
        if re.search(lines.begins, line):
            last_start.clear()
        last_start.append(line)
    return _find_longest(last_start, lines.load), _find_longest(last_start, lines.compile)


def _find_longest(log: Iterable[str], pattern: str) -> float | None:
    matches = (re.search(pattern, line) for line in log)
    return max((float(match[1]) for match in matches if match), default=None)
