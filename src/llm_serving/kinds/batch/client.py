"""Client of a deployment's Batch API. Only the API (images/batch-worker) knows the layout in S3."""

from __future__ import annotations

import http
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.validation.load import api_key

FINAL_STATES = ("completed", "failed", "expired", "cancelled")

_TIMEOUT_S, _WORK_TIMEOUT_S = 120.0, 3600.0
"""Of a question, and of what the API works for: a retry reads all of a job, and S3 joins and copies a large upload."""

_BLOCK_BYTES = 2**20

OnProgress = Callable[[int, int], None]
"""Called with the transferred and the total bytes."""


class BatchClient:
    """The Batch API at a base URL, without /v1."""

    def __init__(self, url: str) -> None:
        """Take the team's key from BLUEPRINT_API_KEY, if it is set.

        Raises:
            InputError: it would leave this machine without TLS.
        """
        self._url = url.rstrip("/")
        # No proxy, even if the environment has one: the API is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), api_key.NoRedirects)
        self._opener.addheaders = list(api_key.build_headers(self._url).items())

    def upload(self, file: Path, on_progress: OnProgress = lambda _done, _all: None) -> str:
        """Upload a file, block by block; returns its id.

        Raises:
            InputError: it cannot be read, or the API refuses it.
            Unavailable: the API does not answer.
        """
        boundary = uuid.uuid4().hex
        name = urllib.parse.quote(file.name)
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        try:
            size = file.stat().st_size
            if file.is_file() and not size:
                raise InputError(f"{file}: it is empty. Fix: name a file of rows.")
            with file.open("rb") as source:
                request = urllib.request.Request(
                    f"{self._url}/v1/files",
                    data=_read_blocks(head, source, tail, size, on_progress),
                    headers={
                        "Content-Type": f"multipart/form-data; boundary={boundary}",
                        "Content-Length": str(len(head) + size + len(tail)),
                    },
                )
                return str(self._read(request)["id"])
        except OSError as error:
            raise InputError(f"{file}: {(error.strerror or str(error)).lower()}. Fix: name a file of rows.") from None

    def create(
        self,
        *,
        file_id: str = "",
        uri: str = "",
        endpoint: str = "",
        template: str = "",
        metadata: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create a batch from an uploaded file or an object in S3; a Parquet file needs the template of its rows."""
        source = _build_source(file_id, uri)
        return self._post(
            "/v1/batches", {**source, "endpoint": endpoint, "template": template, "metadata": metadata or {}}
        )

    def count(self, *, file_id: str = "", uri: str = "", model: str = "", template: str = "") -> dict[str, Any]:
        """Estimate rows and tokens of an input before it is submitted, from a sample if it is large."""
        return self._post("/v1/batches/count", {**_build_source(file_id, uri), "model": model, "template": template})

    def read(self, batch_id: str) -> dict[str, Any]:
        """Read a batch, with the rows counted so far."""
        return self._get(f"/v1/batches/{urllib.parse.quote(batch_id, safe='')}")

    def list_batches(self) -> Iterator[dict[str, Any]]:
        """Read all batches, the newest first."""
        after = ""
        while True:
            page = self._get(f"/v1/batches?limit=100{f'&after={after}' if after else ''}")
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]

    def list_workers(self) -> list[dict[str, Any]]:
        return list(self._get("/workers")["data"])

    def list_teams(self) -> list[dict[str, Any]]:
        return list(self._get("/teams")["data"])

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._post(f"/v1/batches/{urllib.parse.quote(batch_id, safe='')}/cancel", {})

    def resume(self, batch_id: str) -> dict[str, Any]:
        """Continue a batch that failed, from its saved rows."""
        return self._post(f"/v1/batches/{urllib.parse.quote(batch_id, safe='')}/resume", {})

    def retry(self, batch_id: str, again: str = "") -> dict[str, Any]:
        """Create a batch from the failed rows of a finished batch that can run."""
        return self._post(f"/v1/batches/{urllib.parse.quote(batch_id, safe='')}/retry", {"again": again})

    def download(self, file_id: str, file: Path, on_progress: OnProgress = lambda _done, _all: None) -> None:
        """Download a file, block by block; it appears when it is complete.

        Raises:
            InputError: it cannot be written, as on a full disk.
            Unavailable: the API does not answer, or its answer is incomplete.
        """
        partial = file.with_name(f".{file.name}.part")
        try:
            self._download(file_id, partial, on_progress)
            partial.replace(file)
        except (ConnectionError, TimeoutError) as error:
            raise Unavailable(
                f"{self._url}: the download of {file_id} ended early: {error}. Fix: download it again."
            ) from None
        except OSError as error:
            text = f"{file}: {(error.strerror or str(error)).lower()}. Fix: set --to to a folder with room."
            raise InputError(text) from None
        finally:
            partial.unlink(missing_ok=True)

    def _download(self, file_id: str, partial: Path, on_progress: OnProgress) -> None:
        with self._open(urllib.request.Request(f"{self._url}/v1/files/{file_id}/content")) as response:
            size, done = int(response.headers["Content-Length"]), 0
            with partial.open("wb") as sink:
                while block := response.read(_BLOCK_BYTES):
                    sink.write(block)
                    done += len(block)
                    on_progress(done, size)
        if done != size:
            raise Unavailable(f"{self._url}: the download of {file_id} ended at {done} of {size} bytes")

    def _get(self, path: str) -> dict[str, Any]:
        return self._read(urllib.request.Request(f"{self._url}{path}"))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        return self._read(urllib.request.Request(f"{self._url}{path}", json.dumps(body).encode(), headers))

    def _read(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with self._open(request) as response:
                text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._describe_absence(error) from None
        try:
            return dict(untrusted_json.parse(text))
        except (ValueError, TypeError):
            start = text[:80].decode(errors="replace")
            raise Unavailable(f"{self._url} is not a Batch API: it answered {start!r}. Fix: check its URL.") from None

    def _open(self, request: urllib.request.Request) -> Any:
        try:
            return self._opener.open(request, timeout=_TIMEOUT_S if request.data is None else _WORK_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            reason, field = _read_refusal(error)
            if error.code >= 500 or error.code < 400:
                raise Unavailable(f"the Batch API at {self._url}: {reason}") from None
            if error.code == http.HTTPStatus.UNAUTHORIZED:
                raise InputError(f"{reason}. Fix: set {api_key.VARIABLE} to a key of the team.") from None
            fix = f"change {field}" if field and field != "id" else "choose one of blueprint batch list"
            raise InputError(f"{f'{field}: ' if field else ''}{reason}. Fix: {fix}.") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._describe_absence(error) from None

    def _describe_absence(self, error: Exception) -> Unavailable:
        reason = getattr(error, "reason", error)
        return Unavailable(f"the Batch API at {self._url} is away: {reason}. Fix: look at blueprint status.")


def _build_source(file_id: str, uri: str) -> dict[str, str]:
    return {"input_uri": uri} if uri else {"input_file_id": file_id}


def _read_blocks(head: bytes, source: IO[bytes], tail: bytes, size: int, on_progress: OnProgress) -> Iterator[bytes]:
    yield head
    done = 0
    while block := source.read(_BLOCK_BYTES):
        yield block
        done += len(block)
        on_progress(done, size)
    yield tail


def _read_refusal(error: urllib.error.HTTPError) -> tuple[str, str]:
    try:
        refusal = untrusted_json.parse(error.read())["error"]
        return str(refusal["message"]).rstrip("."), str(refusal["param"] or "")
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}", ""
