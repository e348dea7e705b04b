"""The model hub: what a repository holds, and its files brought here piece by piece, resumed where they broke off.

The hub is Hugging Face's, or the one that HF_ENDPOINT names; a token is read as its own client reads it (HF_TOKEN) and
never shown. Listing, addresses, headers and transfers are the client's. What it leaves to us: it throws away a file
that broke off, and checks sizes but no hashes.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.settings.units import format_bytes

PUBLIC_ENDPOINT = "https://huggingface.co"

# What serving needs beside safetensors. Other formats hold the same weights once more.
_SERVING_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_EXCLUDED_FOLDERS = ("original/", "onnx/", "openvino/", "metal/", ".")

_TIMEOUT_S = 10.0

OnBytes = Callable[[int], None]
"""Called with the number of bytes that have just been moved; may raise to stop."""


class RepoFile(NamedTuple):
    """One file of a repository."""

    name: str
    size: int
    sha256: str | None
    """For large files (LFS), whose content the hub names by it."""

    git_sha1: str
    """For all others: git's hash of the blob."""


class Snapshot(NamedTuple):
    """A repository at one commit."""

    id: str
    commit: str
    files: tuple[RepoFile, ...]


def resolve_endpoint() -> str:
    """The hub's address."""
    return os.environ.get("HF_ENDPOINT", PUBLIC_ENDPOINT).rstrip("/")


def fetch_snapshot(name: str, revision: str = "main") -> Snapshot:
    """All files of the repository `name`, with their sizes and hashes.

    Raises:
        InputError: there is no such repository or revision.
        Unavailable: no hub answers, or it wants a token.
    """
    from huggingface_hub import HfApi

    with _translate_errors(name, revision):
        api = HfApi(endpoint=resolve_endpoint())
        info = api.model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    files = tuple(
        RepoFile(
            sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None, sibling.blob_id or ""
        )
        for sibling in info.siblings or ()
    )
    for file in files:
        if Path(file.name).is_absolute() or ".." in Path(file.name).parts:
            raise InputError(
                f"{name}: it lists the file {file.name!r}, which would land elsewhere. Fix: another model."
            )
    return Snapshot(name, info.sha or revision, files)


def select_files(snapshot: Snapshot, *, all_files: bool = False) -> tuple[RepoFile, ...]:
    """The files that serving needs: safetensors, settings and tokenizer; every one where `all_files` is set.

    Raises:
        InputError: the repository has no safetensors.
    """
    if all_files:
        return snapshot.files
    names = select_names([file.name for file in snapshot.files], snapshot.id)
    return tuple(file for file in snapshot.files if file.name in names)


def select_names(names: Sequence[str], source: str) -> set[str]:
    """Of `names`, those that serving needs.

    Raises:
        InputError: none of them is a safetensors file; names what is there instead.
    """
    serving_names = {
        name
        for name in names
        if any(fnmatch.fnmatch(name, pattern) for pattern in _SERVING_FILES) and not name.startswith(_EXCLUDED_FOLDERS)
    }
    if not any(name.endswith(".safetensors") for name in serving_names):
        other_suffixes = sorted(
            {Path(name).suffix for name in names} & {".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx"}
        )
        alternatives = f", only {' and '.join(other_suffixes)}" if other_suffixes else ""
        raise InputError(f"{source}: it holds no safetensors{alternatives}. Fix: another model, or --all-files.")
    return serving_names


def fetch_config(name: str) -> Mapping[str, Any]:
    """The config.json of a repository.

    Raises:
        InputError: there is no such repository, or it has no config.json.
        Unavailable: no hub answers, or it wants a token.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    with _translate_errors(name, "main"):
        url = hf_hub_url(name, "config.json", endpoint=resolve_endpoint())
        response = get_session().get(url, headers=build_hf_headers(), timeout=_TIMEOUT_S, follow_redirects=True)
        hf_raise_for_status(response)
    try:
        payload = json.loads(response.content)
    except ValueError:
        raise InputError(f"{name}: its config.json is no JSON. Fix: another model.") from None
    if not isinstance(payload, dict):
        raise InputError(f"{name}: its config.json is not a mapping of keys to values. Fix: another model.")
    return payload


def download(snapshot: Snapshot, file: RepoFile, folder: Path, on_bytes: OnBytes) -> Path:
    """Brings `file` into `folder`, going on from what an earlier try has left there, and checks it by size and hash.

    Args:
        count: told the bytes that came over the network now, not those that were here.

    Raises:
        Unavailable: the hub went away, or what came is not what it lists; the damaged file is gone then.
    """
    path = folder / file.name
    if path.is_file() and path.stat().st_size == file.size:
        return path  # checked when it came
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    _download_rest(snapshot, file, part, on_bytes)
    if not _is_intact(part, file):
        part.unlink()
        raise Unavailable(
            f"{snapshot.id}: {file.name} as it came from {resolve_endpoint()} does not match the hash that the hub lists. "
            "It was deleted; run the same command again."
        )
    part.rename(path)
    return path


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds `folder` against other copies of the same model.

    Raises:
        Unavailable: another one is under way, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise Unavailable(f"{folder}: files cannot be kept there: {error.strerror or error}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(f"{folder}: another copy of this model is under way. Wait for it to end.") from None
        yield


def _download_rest(snapshot: Snapshot, file: RepoFile, part: Path, on_bytes: OnBytes) -> None:
    """Appends what is missing of `file` to `part`."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars

    disable_progress_bars()
    # The client says each retry on standard error, with a long address; the end of it is what counts here.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    resume_size = part.stat().st_size if part.exists() else 0
    if resume_size > file.size:
        part.unlink()
        resume_size = 0
    if resume_size == file.size and part.exists():
        return
    with _translate_errors(snapshot.id, snapshot.commit), part.open("ab") as output:
        url = hf_hub_url(snapshot.id, file.name, revision=snapshot.commit, endpoint=resolve_endpoint())
        counting_file: Any = _CountingFile(output, on_bytes)
        http_get(url, counting_file, resume_size=resume_size, headers=build_hf_headers(), expected_size=file.size)


class _CountingFile:
    """A file to write to that reports each write, and takes back what a restart throws away."""

    def __init__(self, sink: io.BufferedWriter, on_bytes: OnBytes) -> None:
        self._sink, self._on_bytes = sink, on_bytes

    def write(self, data: bytes) -> int:
        written = self._sink.write(data)
        self._on_bytes(len(data))
        return written

    def tell(self) -> int:
        return self._sink.tell()

    def seek(self, position: int) -> int:
        return self._sink.seek(position)

    def truncate(self) -> int:
        return self._sink.truncate()


def _is_intact(path: Path, file: RepoFile) -> bool:
    size = path.stat().st_size
    if size != file.size:
        return False
    if file.sha256:
        return compute_sha256(path) == file.sha256
    # Git names a blob by the SHA-1 of this line and its content.
    return _compute_digest(path, hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)) == file.git_sha1


def compute_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return _compute_digest(path, hashlib.sha256())


def _compute_digest(path: Path, digest: Any) -> str:
    with path.open("rb") as content:
        while chunk := content.read(2**20):
            digest.update(chunk)
    return str(digest.hexdigest())


@contextmanager
def _translate_errors(name: str, revision: str) -> Iterator[None]:
    """Turns the client's errors into one line each. Their own texts carry addresses that may hold signatures."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise InputError(f"{name}: it is no id of a model. Fix: ORGANIZATION/MODEL.") from None
    except errors.GatedRepoError:
        raise Unavailable(
            f"{name}: {resolve_endpoint()} gives it only to those who have accepted its terms. "
            f"Accept them at {resolve_endpoint()}/{name}, then set HF_TOKEN to a token of that account."
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(
            f"{name}: {resolve_endpoint()} has no revision {revision!r} of it. Fix: main or a commit."
        ) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{name}: {resolve_endpoint()} has no such model, or it is private. Fix: an id that is there, or set HF_TOKEN."
        ) from None
    except errors.RemoteEntryNotFoundError:
        raise InputError(f"{name}: {resolve_endpoint()} has no such file of it. Fix: a model in safetensors.") from None
    except errors.OfflineModeIsEnabled:
        raise Unavailable(f"{name}: HF_HUB_OFFLINE is set, so no hub is asked. Unset it.") from None
    except errors.HfHubHTTPError as error:
        _raise_http_error(name, error)
    except httpx2.HTTPError as error:
        raise Unavailable(
            f"{name}: no hub answers at {resolve_endpoint()} ({_format_reason(error)}). "
            "Check the network, or set HF_ENDPOINT to a mirror."
        ) from None
    except OSError as error:
        if error.errno is not None:
            raise Unavailable(f"{error.filename or 'the staging folder'}: {error.strerror}.") from None
        # The client's own check of sizes.
        raise Unavailable(
            f"{name}: a file from {resolve_endpoint()} ended too early. Run the same command again."
        ) from None


def _raise_http_error(name: str, error: Any) -> NoReturn:
    status = error.response.status_code
    if status in (401, 403):
        raise Unavailable(
            f"{name}: {resolve_endpoint()} refuses the token (HTTP {status}). Set HF_TOKEN to a valid one."
        ) from None
    raise Unavailable(f"{name}: {resolve_endpoint()} answers HTTP {status}. Try again later.") from None


def _format_reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def check_disk_space(folder: Path, required_bytes: int) -> None:
    """Refuses to begin where the disk has no room.

    Raises:
        Unavailable: `folder`'s disk has less than `bytes_` free.
    """
    disk_path = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(disk_path).free
    if free_bytes < required_bytes:
        raise Unavailable(
            f"{disk_path}: the disk has {format_bytes(free_bytes)} free and files on their way take {format_bytes(required_bytes)}. "
            "Free some, or write --staging FOLDER on another disk."
        )
