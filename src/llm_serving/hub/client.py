"""The model hub: list a repository's files, download them with resumption, and verify their hashes.

The hub is Hugging Face's, or the one in HF_ENDPOINT; the token (`access_token.py`) is never shown.
Listing, URLs, headers and transfers are that client's. This module adds what it lacks: it resumes interrupted
downloads after a restart, and verifies hashes.
"""

from __future__ import annotations

import fnmatch
import functools
import http.client
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, NoReturn
from urllib.parse import urlsplit

from llm_serving import loopback, processes
from llm_serving.catalog import pipelines
from llm_serving.hub import access_token, files
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError, Unavailable, quote_value

if TYPE_CHECKING:
    from llm_serving.aws.s3 import OnBytes

PUBLIC_ENDPOINT = "https://huggingface.co"

# Files for serving. Other formats are copies of the same weights.
_SERVING_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_EXCLUDED_FOLDERS = ("original/", "onnx/", "openvino/", "metal/", ".")

ReadJson = Callable[[str], Mapping[str, Any]]
"""Reads one of a model's JSON files by its name."""

_TIMEOUT_S = 10.0

_RANGE_BYTES = 4 * 2**20
"""Of one request for a part of a file."""


class RepoFile(NamedTuple):
    name: str
    size: int
    sha256: str | None
    """Of large files (LFS)."""

    git_sha1: str
    """Git's hash of the blob, for all other files."""


class Snapshot(NamedTuple):
    """A repository at one commit."""

    id: str
    commit: str
    files: tuple[RepoFile, ...]


def resolve_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", PUBLIC_ENDPOINT).rstrip("/")


def _name_endpoint() -> str:
    """Return the hub's URL for a message, which goes into logs: without the password that a mirror's may have."""
    return re.sub("//[^/]*@", "//", resolve_endpoint())


def _find_token() -> str | Literal[False] | None:
    """Return the token, None for the one that the hub's client finds; False, for none, where others could read it."""
    return False if _is_readable_by_others() else access_token.find()


def _is_readable_by_others() -> bool:
    """Return whether what is sent to the hub leaves this machine in clear text."""
    endpoint = urlsplit(resolve_endpoint())
    return endpoint.scheme == "http" and not loopback.is_loopback(endpoint.netloc)


def _build_headers() -> dict[str, str]:
    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers(token=_find_token()))


def fetch_snapshot(name: str, revision: str = "main") -> Snapshot:
    """List all files of the repository `name`, with their sizes and hashes.

    Raises:
        InputError: the repository or revision does not exist.
    """
    from huggingface_hub import HfApi

    with _translate_errors(name, revision):
        api = HfApi(endpoint=resolve_endpoint(), token=_find_token())
        model_info = api.model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    files = tuple(
        RepoFile(
            sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None, sibling.blob_id or ""
        )
        for sibling in model_info.siblings or ()
    )
    for file in files:
        if Path(file.name).is_absolute() or ".." in Path(file.name).parts:
            raise InputError(
                f"{name}: it lists the file {file.name!r}, outside its own directory. Fix: choose another model."
            )
    commit = model_info.sha or ""
    if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise InputError(
            f"{name}: {quote_value(commit[:80])}: the commit that {_name_endpoint()} names is not a hash of 40 or 64 "
            "hexadecimal digits. Fix: set HF_ENDPOINT to another hub."
        )
    return Snapshot(name, commit, files)


def select_files(
    snapshot: Snapshot, *, all_files: bool = False, read_json: ReadJson | None = None
) -> tuple[RepoFile, ...]:
    """Return the files for serving: safetensors, settings and tokenizer; all files with `all_files`.

    Args:
        read_json: reads one of its JSON files; from the hub where left out.

    Raises:
        InputError: the repository has no safetensors.
    """
    if all_files:
        return snapshot.files
    read_from_hub = functools.partial(fetch_json, snapshot.id, revision=snapshot.commit)
    names = select_names([file.name for file in snapshot.files], snapshot.id, read_json or read_from_hub)
    return tuple(file for file in snapshot.files if file.name in names)


def select_gguf(snapshot: Snapshot, quantization: str) -> RepoFile:
    """Return the one GGUF file of a quantization, which its name ends with: NAME-Q4_K_M.gguf.

    Raises:
        InputError: there is none, or it is split into parts.
    """
    files = {file.name: file for file in snapshot.files if file.name.lower().endswith(".gguf")}
    ends = tuple(f"{sign}{quantization}.gguf".lower() for sign in "-._")
    matches = [file for name, file in files.items() if name.lower().endswith(ends) or f"/{name}".lower().endswith(ends)]
    if len(matches) == 1:
        return matches[0]
    if any(
        re.search(rf"[-._]{re.escape(quantization)}-\d{{5}}-of-\d{{5}}\.gguf$", name, re.IGNORECASE) for name in files
    ):
        raise InputError(
            f"{snapshot.id}: {quantization} is split into parts, and llama.cpp is given one file. Fix: choose another "
            "quantization, or a folder with the file that `llama-gguf-split --merge FIRST-PART model.gguf` makes."
        )
    if not files:
        raise InputError(
            f"{snapshot.id}: it has no GGUF file. Fix: choose a repository that has, usually ORGANIZATION/MODEL-GGUF."
        )
    types = _list_quantizations(files)
    raise InputError(
        f"{snapshot.id}: it has {len(matches) or 'no'} GGUF files of {quantization}. Fix: choose {' or '.join(types)}."
    )


def _list_quantizations(names: Iterable[str]) -> list[str]:
    pattern = re.compile(r"[-._]([A-Z]+\d*(?:_\w+)?)\.gguf$", re.IGNORECASE)
    return sorted({match[1] for name in names if (match := pattern.search(name))})


def select_names(names: Sequence[str], source: str, read_json: ReadJson) -> set[str]:
    """Return the names of files for serving.

    Args:
        read_json: reads one of them, the index of a pipeline.

    Raises:
        InputError: none of them is a safetensors file; the message has the other formats.
    """
    if pipelines.INDEX_FILE in names:
        return pipelines.select_names(names, read_json(pipelines.INDEX_FILE))
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
        if other_suffixes == [".gguf"] and "/" in source:
            files = " or ".join(f"{source}:{quantization}" for quantization in _list_quantizations(names))
            raise InputError(
                f"{source}: it has no safetensors{alternatives}. Fix: choose {files}, one file "
                "for llama.cpp, or another model."
            )
        raise InputError(f"{source}: it has no safetensors{alternatives}. Fix: choose another model, or --all-files.")
    return serving_names - _find_second_checkpoint(serving_names)


def _find_second_checkpoint(names: Set[str]) -> set[str]:
    """Find Mistral's own form of a checkpoint, where the same weights are there in the form of all other models too.

    Its repositories have both; engines take one of them, and a weight streamer would read both. vLLM takes a repository
    with `consolidated*` for one in Mistral's form. Source: vLLM 0.32.0, vllm/transformers_utils/repo_utils.py.
    """
    consolidated = {name for name in names if name.startswith("consolidated")}
    others = {name for name in names - consolidated if name.endswith(".safetensors") and "/" not in name}
    return consolidated if others and "config.json" in names else set()


def fetch_json(name: str, file: str, revision: str = "main") -> Mapping[str, Any]:
    """Return a JSON file of a repository, such as its config.json.

    Raises:
        InputError: the repository does not exist, or has no such file.
        Unavailable: the hub is unreachable, or requires a token.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import get_session, hf_raise_for_status

    with _translate_errors(name, revision, file):
        url = hf_hub_url(name, file, revision=revision, endpoint=resolve_endpoint())
        response = get_session().get(url, headers=_build_headers(), timeout=_TIMEOUT_S, follow_redirects=True)
        hf_raise_for_status(response)
    try:
        payload = untrusted_json.parse(response.content, infinite=True)
    except ValueError:
        raise InputError(f"{name}: its {file} is not JSON. Fix: choose another model.") from None
    if not isinstance(payload, dict):
        raise InputError(f"{name}: its {file} is not a mapping of keys to values. Fix: choose another model.")
    return payload


def open_file(snapshot: Snapshot, file: RepoFile, max_bytes: int) -> BinaryIO:
    """Open a file of a repository for reading from its start, a few megabytes at a time.

    Args:
        max_bytes: that are read at most; the file ends there for its reader.
    """
    return io.BufferedReader(_RangedFile(snapshot, file, max_bytes), _RANGE_BYTES)


class _RangedFile(io.RawIOBase):
    def __init__(self, snapshot: Snapshot, file: RepoFile, max_bytes: int) -> None:
        self._snapshot, self._file = snapshot, file
        self._position, self._end = 0, min(file.size, max_bytes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._end - self._position)
        if count <= 0:
            return 0
        content = self._fetch(self._position, count)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _fetch(self, start: int, count: int) -> bytes:
        """Return `count` bytes of the file from the byte `start` on."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import get_session, hf_raise_for_status

        name, file = self._snapshot.id, self._file.name
        with _translate_errors(name, self._snapshot.commit, file):
            url = hf_hub_url(name, file, revision=self._snapshot.commit, endpoint=resolve_endpoint())
            headers = {**_build_headers(), "Range": f"bytes={start}-{start + count - 1}"}
            with get_session().stream(
                "GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
            ) as response:
                hf_raise_for_status(response)
                if response.status_code == http.client.PARTIAL_CONTENT:
                    return bytes(response.read())
        raise Unavailable(
            f"{name}: {_name_endpoint()} sends {file} only as a whole, and the header is at its start. Fix: use a "
            "hub that sends ranges, or `blueprint model copy`."
        )


def download(snapshot: Snapshot, file: RepoFile, folder: Path, on_bytes: OnBytes) -> Path:
    """Download `file` into `folder`, resuming an earlier download, and verify its size and hash.

    Args:
        on_bytes: called with the downloaded bytes, without those of earlier downloads.

    Raises:
        Unavailable: the hub is unreachable, or the hash does not match; the damaged file is deleted.
        InputError: another file has its name.
    """
    path = folder / file.name
    if path.exists():
        _check_own(path, file)
        return path
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    _download_rest(snapshot, file, part, on_bytes)
    if not _is_intact(part, file):
        part.unlink()
        raise Unavailable(
            f"{snapshot.id}: {file.name} from {_name_endpoint()} does not match the hub's hash and was deleted. "
            "Fix: run the same command again."
        )
    part.rename(path)
    return path


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` against other copies of the same model.

    Raises:
        Unavailable: another copy is running, or the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        reason = error.strerror or error
        raise Unavailable(f"{folder}: cannot be written: {reason}. Fix: set --staging to another folder.") from None
    with processes.lock_file(folder / ".lock", f"{folder}: another copy of this model is running"):
        yield


def _download_rest(snapshot: Snapshot, file: RepoFile, part: Path, on_bytes: OnBytes) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    # The client logs each retry with a long URL; only the final error matters.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    resume_size = part.stat().st_size if part.exists() else 0
    if resume_size > file.size:
        part.unlink()
        resume_size = 0
    if resume_size == file.size and part.exists():
        return
    with _translate_errors(snapshot.id, snapshot.commit), _CountingFile(part, on_bytes) as output:
        url = hf_hub_url(snapshot.id, file.name, revision=snapshot.commit, endpoint=resolve_endpoint())
        http_get(url, output, resume_size=resume_size, headers=_build_headers(), expected_size=file.size)


class _CountingFile(io.BufferedWriter):
    def __init__(self, path: Path, on_bytes: OnBytes) -> None:
        super().__init__(path.open("ab", buffering=0))
        self._on_bytes = on_bytes

    def write(self, data: Any) -> int:
        byte_count = super().write(data)
        self._on_bytes(len(data))
        return byte_count


def _check_own(path: Path, file: RepoFile) -> None:
    """Check that a file is one of an earlier download, which alone may be uploaded and deleted."""
    if not (path.is_file() and _is_intact(path, file)):
        raise InputError(
            f"{path}: it is not the file of the hub that would be downloaded to this name. "
            "Fix: move it away, or set --staging to another folder."
        )


def _is_intact(path: Path, file: RepoFile) -> bool:
    size = path.stat().st_size
    if size != file.size:
        return False
    if file.sha256:
        return files.compute_sha256(path) == file.sha256
    return files.compute_git_sha1(path) == file.git_sha1


@contextmanager
def _translate_errors(name: str, revision: str, file: str = "") -> Iterator[None]:
    """Turn the client's errors into one line each. Their own messages have URLs that may contain signatures."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise InputError(f"{name}: it is not a model id. Fix: write ORGANIZATION/MODEL.") from None
    except errors.GatedRepoError:
        _require_sent_token(name)
        raise Unavailable(
            f"{name}: {_name_endpoint()} requires accepting its terms. "
            f"Fix: accept them at {_name_endpoint()}/{name}, then set HF_TOKEN to a token of that account, or "
            "HF_TOKEN_SECRET to the AWS secret that holds it."
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(
            f"{name}: {_name_endpoint()} has no revision {revision!r} of it. Fix: use main or a commit."
        ) from None
    except errors.RepositoryNotFoundError:
        raise _build_absence_error(name) from None
    except errors.RemoteEntryNotFoundError:
        raise InputError(
            f"{name}: {_name_endpoint()} has no {file or 'such file'} of it. Fix: choose a model in safetensors."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise Unavailable(f"{name}: HF_HUB_OFFLINE disables the hub. Fix: unset it.") from None
    except errors.HfHubHTTPError as error:
        _raise_http_error(name, error)
    except httpx2.RemoteProtocolError:
        raise Unavailable(f"{name}: {_name_endpoint()} stopped half-way. Fix: run the same command again.") from None
    except httpx2.HTTPError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unavailable(
            f"{name}: no hub answers at {_name_endpoint()} ({reason}). "
            "Fix: check the network, or set HF_ENDPOINT to a mirror."
        ) from None
    except OSError as error:
        if error.errno is not None:
            path = error.filename or "the staging folder"
            raise Unavailable(f"{path}: {error.strerror}. Fix: make it writable, or free disk space.") from None
        # From the client's own check of sizes.
        raise Unavailable(
            f"{name}: a download from {_name_endpoint()} ended early. Fix: run the same command again."
        ) from None


def _build_absence_error(name: str) -> InputError:
    reason = f"{_name_endpoint()} has no such model, or it is private"
    return InputError(f"{name}: {reason}. Fix: use an existing id, or set HF_TOKEN.")


def _require_sent_token(name: str) -> None:
    if _is_readable_by_others():
        raise Unavailable(
            f"{name}: {_name_endpoint()} asks for a token, which goes to no other machine in clear text. "
            "Fix: write https in HF_ENDPOINT."
        ) from None


def _raise_http_error(name: str, error: Any) -> NoReturn:
    status = error.response.status_code
    if status == http.client.NOT_FOUND:  # a mirror that does not say what it lacks
        raise _build_absence_error(name) from None
    if status in (401, 403):
        _require_sent_token(name)
        raise Unavailable(
            f"{name}: {_name_endpoint()} refuses the token (HTTP {status}). Fix: set HF_TOKEN to a valid one."
        ) from None
    fix = "try again later"
    if status == 429:
        fix = "try again in some minutes; set HF_TOKEN, for the hub allows more with a token"
    raise Unavailable(f"{name}: {_name_endpoint()} returned HTTP {status}. Fix: {fix}.") from None
