"""A model into S3, from a hub or from a folder: several files at a time, each checked, none sent twice.

`config.json` goes last: what looks at a prefix while a copy is under way, or after one that broke off, finds no model.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

from llm_serving.aws import s3
from llm_serving.hub import client
from llm_serving.settings.errors import InputError

AT_ONCE = 4
"""Files under way at a time: with the parts in memory and the network of one machine, more does not help."""

_LAST = "config.json"

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all. Bytes that were there already count as done."""


class Copied(NamedTuple):
    """What a copy came to. Bytes."""

    to: str
    files: int
    bytes: int
    sent: int
    """Of `bytes`, those that went to S3 now."""

    received: int
    """Bytes that came from the hub now; 0 for a folder."""


class _Stopped(Exception):
    """Another file failed, or the user stopped the copy."""


class _Tally:
    """Counts for several threads, and stops them."""

    def __init__(self, total: int, progress: Progress | None, *, ways: int = 1) -> None:
        """Args: ways: how often a file is moved: once from a folder, twice from a hub."""
        self._lock = threading.Lock()
        self._total, self._progress, self._ways = total, progress or (lambda _done, _total: None), ways
        self._done = 0
        self._moved: dict[str, int] = {}
        self.sent = self.received = 0
        self.stop = threading.Event()

    def send(self, name: str, count: int) -> None:
        """Bytes of a file went to S3."""
        self._move(name, count)
        with self._lock:
            self.sent += count

    def receive(self, name: str, count: int) -> None:
        """Bytes of a file came from the hub."""
        self._move(name, count)
        with self._lock:
            self.received += count

    def finish(self, name: str, size: int) -> None:
        """A whole file is done, moved now or there before."""
        with self._lock:
            self._moved.pop(name, None)
            self._done += size
            self._report()

    def _move(self, name: str, count: int) -> None:
        if self.stop.is_set():
            raise _Stopped
        with self._lock:
            self._moved[name] = self._moved.get(name, 0) + count
            self._report()

    def _report(self) -> None:
        self._progress(self._done + sum(self._moved.values()) // self._ways, self._total)


def is_folder(source: str) -> bool:
    """Whether `source` is a folder here; otherwise it is an id on the hub."""
    return Path(source).expanduser().is_dir()


def upload(
    folder: Path,
    uri: str,
    *,
    endpoint: str | None = None,
    environment: Mapping[str, str] | None = None,
    all_files: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copies the files of a model that lies in `folder` to s3://BUCKET/PREFIX.

    Args:
        endpoint, environment: of another S3 than the process's own settings lead to; see `s3.Bucket`.
        all_files: other files than those that serving needs as well.

    Raises:
        InputError: it holds no safetensors, or `uri` is no place in S3.
        Unavailable: S3 does not answer, has no such bucket, or refuses.
    """
    bucket = s3.Bucket(s3.place(uri), endpoint=endpoint, environment=environment)
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    names = set(found) if all_files else client.wanted(list(found), str(folder))
    sizes = {name: found[name].stat().st_size for name in names}
    tally = _Tally(sum(sizes.values()), progress)

    def one(name: str) -> None:
        sha256 = client.file_sha256(found[name])
        if not bucket.has(name, sizes[name], sha256):
            bucket.send(found[name], name, sha256, partial(tally.send, name))
        tally.finish(name, sizes[name])

    _all(one, names, tally)
    return Copied(str(bucket.where), len(names), sum(sizes.values()), tally.sent, tally.received)


def from_hub(
    name: str,
    uri: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    environment: Mapping[str, str] | None = None,
    all_files: bool = False,
    staging: Path | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copies a repository of the hub to s3://BUCKET/PREFIX.

    Args:
        endpoint, environment: of another S3 than the process's own settings lead to; see `s3.Bucket`.
        staging: each file passes through this folder, and is deleted there when S3 has it.

    Raises:
        InputError: there is no such repository, or it holds no safetensors, or `uri` is no place in S3.
        Unavailable: the hub or S3 went away or refused, the disk is too full, or a file came damaged.
    """
    bucket = s3.Bucket(s3.place(uri), endpoint=endpoint, environment=environment)
    found = client.listing(name, revision)
    files = {file.name: file for file in client.chosen(found, all_files=all_files)}
    folder = (staging or default_staging()) / name.replace("/", "--") / found.commit
    client.room(folder, sum(sorted((file.size for file in files.values()), reverse=True)[:AT_ONCE]))
    tally = _Tally(sum(file.size for file in files.values()), progress, ways=2)

    def one(path: str) -> None:
        file = files[path]
        # Small files have no SHA-256 on the hub: they are fetched to know it.
        if not (file.sha256 and bucket.has(path, file.size, file.sha256)):
            here = client.download(found, file, folder, partial(tally.receive, path))
            sha256 = file.sha256 or client.file_sha256(here)
            if not bucket.has(path, file.size, sha256):
                bucket.send(here, path, sha256, partial(tally.send, path))
            here.unlink()
        tally.finish(path, file.size)

    with client.alone(folder):
        _all(one, files, tally)
    size = sum(file.size for file in files.values())
    return Copied(str(bucket.where), len(files), size, tally.sent, tally.received)


def default_staging() -> Path:
    """Where files lie on their way: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blueprint" / "models"


def source_name(source: str) -> str:
    """What the model is called in the bucket: its id on the hub, or its folder's name.

    Raises:
        InputError: `source` is neither a folder nor an id.
    """
    if is_folder(source):
        return Path(source).expanduser().resolve().name
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise InputError(
            f"{source}: it is neither a folder nor an id on the hub. Write a folder or ORGANIZATION/MODEL."
        )
    return source


def _all(one: Callable[[str], None], names: Iterable[str], tally: _Tally) -> None:
    """Runs `one` for each name, several at a time, the last one when all others are done."""
    first = sorted(name for name in names if name != _LAST)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy") as pool:
        try:
            futures = [pool.submit(one, name) for name in first]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future.exception() for future in done if future.exception()]
            if failed:
                raise next((error for error in failed if not isinstance(error, _Stopped)), failed[0])  # type: ignore[misc]
            if _LAST in set(names):
                pool.submit(one, _LAST).result()
        except BaseException:
            # The others stop at their next piece; what they have moved stays for the next try.
            tally.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
