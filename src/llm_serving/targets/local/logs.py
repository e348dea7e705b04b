"""Log files of a deployment's processes: the last lines, and what is written after them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from llm_serving import console
from llm_serving.settings.errors import CheckFailed, InputError, quote_value
from llm_serving.targets.deployment_dir import DeploymentDir

_POLL_INTERVAL_S = 0.3


def show_logs(directory: DeploymentDir, process: str | None, *, lines: int, follow: bool) -> None:
    """Print the last lines of one process's log, or of all; with `follow`, new lines until the user interrupts."""
    files = _select_files(directory, process)
    offsets = {}
    for file in files:
        content = _read_whole_lines(file, 0)
        offsets[file] = len(content)
        log_lines = content.decode("utf-8", "replace").splitlines()
        for line in log_lines[len(log_lines) - min(lines, len(log_lines)) :]:
            _print_line(file, line, len(files) > 1)
    if follow:
        for file, line in _follow_lines(offsets):
            _print_line(file, line, len(files) > 1)


def _select_files(directory: DeploymentDir, process: str | None) -> list[Path]:
    log_files = sorted(directory.logs.glob("*.log")) if directory.logs.is_dir() else []
    if not log_files:
        raise CheckFailed(f"{directory.name}: no logs; nothing has run here yet")
    if process is None:
        return log_files
    if directory.get_log_path(process) not in log_files:
        names = ", ".join(file.stem for file in log_files)
        raise InputError(
            f"PROCESS: {quote_value(process)}: {directory.name} has no such process. Fix: use one of {names}."
        )
    return [directory.get_log_path(process)]


def _follow_lines(offsets: dict[Path, int]) -> Iterator[tuple[Path, str]]:
    """Yield whole lines that are written after each file's offset, in bytes, until the user interrupts."""
    while True:
        for file in offsets:
            if file.exists() and file.stat().st_size < offsets[file]:
                offsets[file] = 0  # the log was rotated
            content = _read_whole_lines(file, offsets[file])
            offsets[file] += len(content)
            for line in content.decode("utf-8", "replace").splitlines():
                yield file, line
        time.sleep(_POLL_INTERVAL_S)


def _read_whole_lines(file: Path, start: int) -> bytes:
    if not file.exists():
        return b""
    with file.open("rb") as log:
        log.seek(start)
        content = log.read()
    return content[: content.rfind(b"\n") + 1]


def _print_line(file: Path, line: str, show_name: bool) -> None:
    console.print_log(f"{file.stem} | {line}" if show_name else line)
