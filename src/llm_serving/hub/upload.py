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

MAX_PARALLEL = 4
"""Files under way at a time: with the parts in memory and the network of one machine, more does not help."""

_LAST_FILE = "config.json"

OnProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all. Bytes that were there already count as done."""


class UploadResult(NamedTuple):
    """What a copy came to. Bytes."""

    uri: str
    files: int
    bytes: int
    sent: int
    """Of `bytes`, those that went to S3 now."""

    received: int
    """Bytes that came from the hub now; 0 for a folder."""


class _UploadCancelled(Exception):
    """Another file failed, or the user stopped the copy."""


class _TransferCounter:
    """Counts for several threads, and stops them."""

    def __init__(self, total: int, on_progress: OnProgress | None, *, moves_per_file: int = 1) -> None:
        """Args: ways: how often a file is moved: once from a folder, twice from a hub."""
        self._lock = threading.Lock()
        self._total, self._on_progress, self._moves_per_file = (
            total,
            on_progress or (lambda _done, _total: None),
            moves_per_file,
        )
        self._finished = 0
        self._moved: dict[str, int] = {}
        self.sent = self.received = 0
        self.stop = threading.Event()

    def add_sent(self, name: str, count: int) -> None:
        """Bytes of a file went to S3."""
        self._add_moved(name, count)
        with self._lock:
            self.sent += count

    def add_received(self, name: str, count: int) -> None:
        """Bytes of a file came from the hub."""
        self._add_moved(name, count)
        with self._lock:
            self.received += count

    def finish_file(self, name: str, size: int) -> None:
        """A whole file is done, moved now or there before."""
        with self._lock:
            self._moved.pop(name, None)
            self._finished += size
            self._report()

    def _add_moved(self, name: str, count: int) -> None:
        if self.stop.is_set():
            raise _UploadCancelled
        with self._lock:
            self._moved[name] = self._moved.get(name, 0) + count
            self._report()

    def _report(self) -> None:
        self._on_progress(self._finished + sum(self._moved.values()) // self._moves_per_file, self._total)


def is_folder(source: str) -> bool:
    """Whether `source` is a folder here; otherwise it is an id on the hub."""
    return Path(source).expanduser().is_dir()


def upload(
    folder: Path,
    uri: str,
    *,
    endpoint: str | None = None,
    env: Mapping[str, str] | None = None,
    all_files: bool = False,
    on_progress: OnProgress | None = None,
) -> UploadResult:
    """Copies the files of a model that lies in `folder` to s3://BUCKET/PREFIX.

    Args:
        endpoint, environment: of another S3 than the process's own settings lead to; see `s3.Bucket`.
        all_files: other files than those that serving needs as well.

    Raises:
        InputError: it holds no safetensors, or `uri` is no place in S3.
        Unavailable: S3 does not answer, has no such bucket, or refuses.
    """
    bucket = s3.Bucket(s3.parse_location(uri), endpoint=endpoint, env=env)
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    names = set(paths) if all_files else client.select_names(list(paths), str(folder))
    sizes = {name: paths[name].stat().st_size for name in names}
    counter = _TransferCounter(sum(sizes.values()), on_progress)

    def transfer(name: str) -> None:
        sha256 = client.compute_sha256(paths[name])
        if not bucket.has_object(name, sizes[name], sha256):
            bucket.upload(paths[name], name, sha256, partial(counter.add_sent, name))
        counter.finish_file(name, sizes[name])

    _transfer_all(transfer, names, counter)
    return UploadResult(str(bucket.location), len(names), sum(sizes.values()), counter.sent, counter.received)


def copy_from_hub(
    name: str,
    uri: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    env: Mapping[str, str] | None = None,
    all_files: bool = False,
    staging: Path | None = None,
    on_progress: OnProgress | None = None,
) -> UploadResult:
    """Copies a repository of the hub to s3://BUCKET/PREFIX.

    Args:
        endpoint, environment: of another S3 than the process's own settings lead to; see `s3.Bucket`.
        staging: each file passes through this folder, and is deleted there when S3 has it.

    Raises:
        InputError: there is no such repository, or it holds no safetensors, or `uri` is no place in S3.
        Unavailable: the hub or S3 went away or refused, the disk is too full, or a file came damaged.
    """
    bucket = s3.Bucket(s3.parse_location(uri), endpoint=endpoint, env=env)
    snapshot = client.fetch_snapshot(name, revision)
    files = {file.name: file for file in client.select_files(snapshot, all_files=all_files)}
    folder = (staging or find_staging_folder()) / name.replace("/", "--") / snapshot.commit
    client.check_disk_space(folder, sum(sorted((file.size for file in files.values()), reverse=True)[:MAX_PARALLEL]))
    counter = _TransferCounter(sum(file.size for file in files.values()), on_progress, moves_per_file=2)

    def transfer(path: str) -> None:
        file = files[path]
        # Small files have no SHA-256 on the hub: they are fetched to know it.
        if not (file.sha256 and bucket.has_object(path, file.size, file.sha256)):
            local_path = client.download(snapshot, file, folder, partial(counter.add_received, path))
            sha256 = file.sha256 or client.compute_sha256(local_path)
            if not bucket.has_object(path, file.size, sha256):
                bucket.upload(local_path, path, sha256, partial(counter.add_sent, path))
            local_path.unlink()
        counter.finish_file(path, file.size)

    with client.lock_folder(folder):
        _transfer_all(transfer, files, counter)
    size = sum(file.size for file in files.values())
    return UploadResult(str(bucket.location), len(files), size, counter.sent, counter.received)


def find_staging_folder() -> Path:
    """Where files lie on their way: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blueprint" / "models"


def resolve_source_name(source: str) -> str:
    """What the model is called in the bucket: its id on the hub, or its folder's name.

    Raises:
        InputError: `source` is neither a folder nor an id.
    """
    if is_folder(source):
        return Path(source).expanduser().resolve().name
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise InputError(f"{source}: it is neither a folder nor an id on the hub. Fix: a folder or ORGANIZATION/MODEL.")
    return source


def _transfer_all(transfer: Callable[[str], None], names: Iterable[str], counter: _TransferCounter) -> None:
    """Runs `one` for each name, several at a time, the last one when all others are done."""
    earlier_names = sorted(name for name in names if name != _LAST_FILE)
    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="copy") as pool:
        try:
            futures = [pool.submit(transfer, name) for name in earlier_names]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future.exception() for future in done if future.exception()]
            if failed:
                raise next((error for error in failed if not isinstance(error, _UploadCancelled)), failed[0])  # type: ignore[misc]
            if _LAST_FILE in set(names):
                pool.submit(transfer, _LAST_FILE).result()
        except BaseException:
            # The others stop at their next piece; what they have moved stays for the next try.
            counter.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
