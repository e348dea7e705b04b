"""Upload a model to S3 from a hub or a folder: several files at a time, each verified, none sent twice.

`config.json`, or the index of a pipeline, comes last, so that an unfinished copy is not mistaken for a model. Where a
model is replaced, that file goes first, for an engine that starts meanwhile would load files of both.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.aws import s3
from llm_serving.catalog import gguf, pipelines, records, safetensors
from llm_serving.catalog.records import ModelRecord
from llm_serving.hub import client, files, read
from llm_serving.hub import source as source_record
from llm_serving.hub.files import OnProgress
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError

MAX_PARALLEL = 4
"""Concurrent files: more do not help, given the parts in memory and one machine's network."""

_LAST_FILES = ("config.json", pipelines.INDEX_FILE)


class UploadResult(NamedTuple):
    """Result of a copy, in bytes."""

    uri: str
    files: int
    bytes: int
    sent: int
    """Of `bytes`, those sent to S3 now."""

    received: int
    """Bytes downloaded from the hub now; 0 for a folder."""

    removed: int
    """Files of an earlier copy that were deleted."""

    commit: str | None = None
    """Commit on the hub; None for a folder."""


class _UploadCancelled(Exception):
    """Another file failed, or the user stopped the copy."""


class _Copy:
    """Files on their way to a place in S3, by several threads; an engine must load nothing there beside them."""

    def __init__(
        self, bucket: s3.Bucket, sizes: Mapping[str, int], on_progress: OnProgress | None, *, moves_per_file: int = 1
    ) -> None:
        """Look for what lies at the destination.

        Args:
            moves_per_file: transfers of each file: one from a folder, two from a hub.

        Raises:
            InputError: weights are there that no copy has sent: engines would load them too.
        """
        present = bucket.list_sizes()
        self._bucket, self._sizes, self._moves_per_file = bucket, sizes, moves_per_file
        self._on_progress = on_progress or (lambda _done, _total: None)
        self._counting, self._withdrawing, self._stop = threading.Lock(), threading.Lock(), threading.Event()
        self._finished = self._sent = self._received = 0
        self._moved: dict[str, int] = {}
        self._last_files = [name for name in _LAST_FILES if name in present]
        # Streamers load every file; an index binds them to nothing. Source: vLLM 0.32.0, runai_streamer_loader.py.
        self._leftovers = [
            name for name in present if name.endswith(safetensors.SUFFIX) and "/" not in name and name not in sizes
        ]
        for name in self._leftovers:
            if not bucket.is_copied(name):
                raise InputError(
                    f"{bucket.location}{name}: it is not of this model, and engines would load it too. "
                    "Fix: delete it, or copy to another place with --to."
                )

    def add(self, name: str, count: int, *, sent: bool) -> None:
        """Add bytes of a file: sent to S3, or else received from the hub."""
        if self._stop.is_set():
            raise _UploadCancelled
        with self._counting:
            self._moved[name] = self._moved.get(name, 0) + count
            self._sent += count * sent
            self._received += count * (not sent)
            self._report()

    def _report(self) -> None:
        moved = sum(self._moved.values()) // self._moves_per_file
        self._on_progress(self._finished + moved, sum(self._sizes.values()))

    def has(self, name: str, sha256: str) -> bool:
        """Return whether the very file is there."""
        return self._bucket.has_object(name, self._sizes[name], sha256)

    def send(self, path: Path, name: str, sha256: str) -> None:
        """Send a file unless it is there."""
        if not self.has(name, sha256):
            self._withdraw(name)
            self._bucket.upload(path, name, sha256, partial(self.add, name, sent=True))

    def _withdraw(self, replaced: str) -> None:
        """Take away what makes it a model, before the first of its files is replaced, unless that one alone is."""
        with self._withdrawing:
            while self._last_files and replaced not in _LAST_FILES:
                self._bucket.delete(self._last_files[-1])
                self._last_files.pop()

    def run(self, transfer: Callable[[str], None]) -> None:
        """Transfer the files concurrently, and the last ones after all others; then nothing else is left."""

        def finish(name: str) -> None:
            transfer(name)
            with self._counting:
                self._moved.pop(name, None)
                self._finished += self._sizes[name]
                self._report()

        earlier_names = sorted(name for name in self._sizes if name not in _LAST_FILES)
        with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="copy") as pool:
            try:
                futures = [pool.submit(finish, name) for name in earlier_names]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                errors = [future.exception() for future in done if future.exception()]
                if errors:
                    raise next((error for error in errors if not isinstance(error, _UploadCancelled)), errors[0])  # type: ignore[misc]
                for name in self._leftovers:
                    self._withdraw(name)
                    self._bucket.delete(name)
                for name in sorted(self._sizes.keys() & set(_LAST_FILES)):
                    pool.submit(finish, name).result()
            except BaseException:
                # The others stop at their next chunk; their data is resumed by the next copy.
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def build_result(self, commit: str | None = None) -> UploadResult:
        return UploadResult(
            str(self._bucket.location),
            len(self._sizes),
            sum(self._sizes.values()),
            self._sent,
            self._received,
            len(self._leftovers),
            commit,
        )


def is_folder(source: str) -> bool:
    """Return whether `source` is a local folder; otherwise it is an id on the hub."""
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
    """Copy the model in `folder` to s3://BUCKET/PREFIX.

    Args:
        endpoint, env: of another S3 than the environment's; see `s3.Bucket`.
        all_files: include files that serving does not need.

    Raises:
        InputError: it has no safetensors, a link leads out of it, or `uri` is not an S3 URI.
        Unavailable: S3 is unreachable, has no such bucket, or denies access.
    """
    location = s3.parse_location(uri, "--to: ")
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    if is_gguf_folder(folder) and not all_files:
        names = {gguf.FILE}
        paths = {gguf.FILE: find_gguf(folder)}
    else:
        read_json = partial(_read_json, folder)
        names = set(paths) if all_files else client.select_names(list(paths), str(folder), read_json)
    for name in sorted(names):
        _require_inside(paths[name], folder)
    bucket = s3.Bucket(location, endpoint=endpoint, env=env)
    copy = _Copy(bucket, {name: paths[name].stat().st_size for name in names}, on_progress)
    copy.run(lambda name: copy.send(paths[name], name, files.compute_sha256(paths[name])))
    if source_record.FILE in bucket.list_sizes():  # of a copy from a hub, which this one replaces
        with tempfile.TemporaryDirectory() as staging:
            source_record.write(bucket, Path(staging), ModelRecord(source=folder.name))
    return copy.build_result()


def _read_json(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        content = untrusted_json.read(folder / name, infinite=True)
    except ValueError:
        raise InputError(f"{folder / name}: it is not JSON. Fix: copy or download it again.") from None
    return content if isinstance(content, dict) else {}


def is_pipeline_folder(folder: Path) -> bool:
    return (folder / pipelines.INDEX_FILE).is_file()


def is_gguf_folder(folder: Path) -> bool:
    """Return whether a folder holds a model as a GGUF file, and not as safetensors too."""
    return any(folder.glob(f"*{gguf.SUFFIX}")) and not any(folder.glob("*.safetensors"))


def find_gguf(folder: Path) -> Path:
    """Return the one GGUF file of a folder.

    Raises:
        InputError: there are several, or the file is not all of a model that llama.cpp runs.
    """
    files = sorted(folder.glob(f"*{gguf.SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:4])
        raise InputError(f"{folder}: it holds {len(files)} GGUF files, {names}. Fix: use a folder with one of them.")
    gguf.check_known(gguf.read_file(files[0]), str(files[0]))
    return files[0]


def _require_inside(path: Path, folder: Path) -> None:
    """Check that the content of a file is the folder's own, or of the same model in a cache of the hub."""
    content, root = path.resolve(), folder.resolve()
    # The hub's cache: models--ORG--NAME/snapshots/COMMIT/FILE is a link to models--ORG--NAME/blobs/HASH.
    is_cached = root.parent.name == "snapshots" and content.parent == root.parents[1] / "blobs"
    if not (content.is_relative_to(root) or is_cached):
        raise InputError(
            f"{path}: it is a link to {content}, outside {folder}, and would be uploaded as a file of the model. "
            "Fix: remove the link, or put the file itself there."
        )


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
    """Copy a repository of the hub to s3://BUCKET/PREFIX.

    Args:
        endpoint, env: of another S3 than the environment's; see `s3.Bucket`.
        staging: folder for each file until it is in S3.

    Raises:
        InputError: the repository does not exist or has no safetensors, or `uri` is not an S3 URI.
        Unavailable: the hub or S3 is unreachable or denies access, the disk is full, or a file is damaged.
    """
    bucket = s3.Bucket(s3.parse_location(uri, "--to: "), endpoint=endpoint, env=env)
    repository, _, quantization = name.partition(":")
    snapshot = client.fetch_snapshot(repository, revision)
    gguf_record = None
    if quantization:
        file = client.select_gguf(snapshot, quantization)
        gguf_record, repo_files = read.fetch_gguf_record(snapshot, revision, name, file), {gguf.FILE: file}
    else:
        repo_files = {file.name: file for file in client.select_files(snapshot, all_files=all_files)}
    folder = (staging or find_staging_folder()) / repository.replace("/", "--") / snapshot.commit
    sizes = {path: file.size for path, file in repo_files.items()}
    largest = sorted(sizes.values(), reverse=True)[:MAX_PARALLEL]
    files.check_disk_space(folder, sum(largest), purpose="staging", fix="use --staging FOLDER on another disk")
    copy = _Copy(bucket, sizes, on_progress, moves_per_file=2)
    hashes: dict[str, str] = {}
    """SHA-256 of files, of which the hub has only that of large ones."""

    def transfer(path: str) -> None:
        file = repo_files[path]
        if not (file.sha256 and copy.has(path, file.sha256)):
            local_path = client.download(snapshot, file, folder, partial(copy.add, path, sent=False))
            hashes[file.name] = file.sha256 or files.compute_sha256(local_path)
            copy.send(local_path, path, hashes[file.name])
            local_path.unlink()

    with client.lock_folder(folder):
        copy.run(transfer)
        read_json = partial(read.read_s3_json, bucket)
        record = gguf_record or read.build_record(snapshot, revision, repo_files.values(), hashes, read_json)
        source_record.write(bucket, folder, record)
    records.save(record)
    return copy.build_result(snapshot.commit)


def find_staging_folder() -> Path:
    """Return the default staging folder, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blueprint" / "models"


def resolve_source_name(source: str) -> str:
    """Return the model's name in the bucket: its id on the hub, or its folder's name.

    Raises:
        InputError: `source` is neither a folder nor an id.
    """
    if is_folder(source):
        return Path(source).expanduser().resolve().name
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise InputError(
            f"{source}: it is neither a folder nor an id on the hub. "
            "Fix: name a folder, ORGANIZATION/MODEL, or ORGANIZATION/MODEL-GGUF:QUANTIZATION."
        )
    return source
