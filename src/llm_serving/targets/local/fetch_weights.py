"""Copies weights from S3 into folders, then becomes the engine: `python fetch_weights.py FOLDER URI ... -- COMMAND...`.

The step before an engine that reads its weights from a folder, as the init container is on EKS and a task's first
container on ECS. Replicas share a folder: the first one copies, and a restart finds the files of the same size there.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from llm_serving import processes
from llm_serving.aws import s3
from llm_serving.catalog import gguf
from llm_serving.settings.errors import BlueprintError


def main(words: list[str]) -> NoReturn:
    """Copy, then replace this process by the command."""
    separator = words.index("--")
    pairs, command = words[:separator], words[separator + 1 :]
    started = time.monotonic()
    try:
        for folder, uri in zip(pairs[::2], pairs[1::2], strict=True):
            fetch(uri, Path(folder))
        print(f"copied all in {time.monotonic() - started:.2f} s", flush=True)
    except BlueprintError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    os.execvp(command[0], command)


def find_seconds(log: Iterable[str]) -> float | None:
    """Return how long the last start in a log copied; None where it copied nothing, or has not yet."""
    matches = [match for line in log if (match := re.fullmatch(r"copied all in ([\d.]+) s\n?", line))]
    return float(matches[-1][1]) if matches else None


def fetch(uri: str, folder: Path) -> None:
    """Copy the files below `uri` to `folder`, except those that are there; a GGUF file must be all of a model.

    Raises:
        Unavailable: S3 does not answer or refuses.
        ModelError: a file cannot be used.
    """
    bucket = s3.Bucket(s3.parse_location(uri))
    folder.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(folder.with_name(f"{folder.name}.lock")):
        for name, size in bucket.list_sizes().items():
            path = folder / name
            if not (path.is_file() and path.stat().st_size == size):
                _copy_file(bucket, name, size, path)
            if path.suffix == gguf.SUFFIX:
                gguf.read_file(path)


def _copy_file(bucket: s3.Bucket, name: str, size: int, path: Path) -> None:
    draft = path.with_name(f".{path.name}.part")
    draft.parent.mkdir(parents=True, exist_ok=True)
    print(f"copying {bucket.location}{name}, {size} bytes", flush=True)
    bucket.download(name, draft)
    draft.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
