"""Starts an engine, and keeps what holds its cached prompts: folders within their sizes, and a server beside it.

    python3 -c "exec(TEXT)" FOLDER=BYTES... -- SERVER ... -- PROGRAM ...

Each FOLDER is an engine's own, in that of the whole deployment, with those of earlier versions and other models.
Engines delete nothing: a child removes the oldest files of them all once they take more than BYTES, down to nine
tenths. An engine recomputes what it does not find. The child starts the server, if there is one, again whenever it
ends; an engine computes all prompts meanwhile. This text is all of the program: it runs in the engine's image.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

INTERVAL_S = 10.0
"""Between two looks at the folders, and between two starts of the server; a look that takes longer is followed by as
long a pause."""

LOOK_S = 60.0
"""How long other replicas leave a folder to the one that looks; after that it may have ended."""

MARK = ".next-look"
"""File in a deployment's folder, whose time is that of the next look: hundreds of replicas have one file system."""

POLL_S = 0.5

KEPT_SHARE = 0.9


def list_files(folder: str) -> Iterator[tuple[float, int, Path]]:
    """Yield last use, bytes and path of the files below a folder; what vanishes meanwhile is left out.

    Where times of reading are not kept, as on the nodes' NVMe (noatime), the last use is the writing.
    """
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            try:
                status = path.stat()
            except OSError:
                continue
            yield max(status.st_atime, status.st_mtime), status.st_size, path


def trim(folder: str, max_bytes: int) -> None:
    """Remove the files that were used longest ago, if the folder is too large, and folders that this leaves empty.

    Engines make these again, but not their own, the first below `folder`.
    """
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
        if len(path.relative_to(folder).parts) > 2:
            with contextlib.suppress(OSError):  # other files are in it
                path.parent.rmdir()


def look(folder: Path, max_bytes: int) -> None:
    """Trim a folder, unless another replica does or has lately."""
    mark, start = folder / MARK, time.time()
    with contextlib.suppress(OSError):
        if mark.stat().st_mtime > start:
            return
    set_time(mark, start + LOOK_S)
    trim(str(folder), max_bytes)
    end = time.time()
    set_time(mark, end + max(INTERVAL_S, end - start))


def set_time(file: Path, at: float) -> None:
    """Make a file, or give it another time; without that, replicas look each by itself."""
    with contextlib.suppress(OSError):
        file.touch()
        os.utime(file, (at, at))


def keep(engine: int, folders: Mapping[str, int], server: Sequence[str]) -> None:
    """Trim the folders and keep the server running as long as the engine, the parent, lives."""
    process: subprocess.Popen[bytes] | None = None
    next_look = next_start = 0.0
    while os.getppid() == engine:
        now = time.monotonic()
        if server and now >= next_start and (process is None or process.poll() is not None):
            process, next_start = subprocess.Popen(server), now + INTERVAL_S
        if now >= next_look:
            for folder, max_bytes in folders.items():
                look(Path(folder).parent, max_bytes)
            next_look = time.monotonic() + INTERVAL_S
        time.sleep(POLL_S)
    if process is not None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERVAL_S)


def main(words: list[str]) -> None:
    """Become the program, with a child that keeps its cache."""
    first = words.index("--")
    second = words.index("--", first + 1)
    folders = {folder: int(size) for folder, _, size in (word.rpartition("=") for word in words[:first])}
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
    engine = os.getpid()
    if os.fork() == 0:
        keep(engine, folders, words[first + 1 : second])
        return
    program = words[second + 1 :]
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
