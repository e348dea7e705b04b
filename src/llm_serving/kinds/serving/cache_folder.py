"""Starts an engine, and keeps its folders of cached prompts within their sizes: engines delete nothing there.

    python3 -c TEXT FOLDER=BYTES... -- PROGRAM ...

A child removes the files that were read longest ago once a folder is larger than it may be, down to nine tenths. An
engine recomputes what it does not find. This text is all of the program: it runs in the engine's image.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

INTERVAL_S = 10.0
"""Between two looks; a look that takes long is followed by nine times as long a pause."""

KEPT_SHARE = 0.9


def list_files(folder: str) -> Iterator[tuple[float, int, Path]]:
    """Yield last use, bytes and path of the files below a folder; what vanishes meanwhile is left out."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            try:
                status = path.stat()
            except OSError:
                continue
            yield max(status.st_atime, status.st_mtime), status.st_size, path


def trim(folder: str, max_bytes: int) -> None:
    """Remove the files that were used longest ago, if the folder is too large."""
    files = sorted(list_files(folder))
    size = sum(file_bytes for _, file_bytes, _ in files)
    if size <= max_bytes:
        return
    for _, file_bytes, path in files:
        if size <= KEPT_SHARE * max_bytes:
            return
        try:
            path.unlink()
        except OSError:  # another replica was faster, or may not
            continue
        size -= file_bytes


def main(words: list[str]) -> None:
    """Become the program, with a child that trims as long as it lives."""
    separator = words.index("--")
    folders = {folder: int(size) for folder, _, size in (word.rpartition("=") for word in words[:separator])}
    engine = os.getpid()
    if os.fork() == 0:
        while os.getppid() == engine:
            start = time.monotonic()
            for folder, max_bytes in folders.items():
                trim(folder, max_bytes)
            time.sleep(max(INTERVAL_S, 9 * (time.monotonic() - start)))
        return
    program = words[separator + 1 :]
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
