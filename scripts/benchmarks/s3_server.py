"""An S3 server for measurements: it keeps what is written in one file, and copies by reference.

An object is a list of pieces of that file. A part that is copied (UploadPartCopy) is the same pieces again: no byte
moves, so joining 50 GB takes what the client takes, and no room. `--copy-ms` delays the answer to each copy, as S3
would. The file only grows, and is gone when the server ends. It checks no signature, and knows the requests of the
batch worker and the Batch API alone.

    python -m scripts.benchmarks.s3_server --port 7070 --folder /var/tmp --copy-ms 100
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import email.utils
import hashlib
import itertools
import os
import re
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

from llm_serving import processes, program

_BLOCK_BYTES = 2**20
_PAGE = 1000
"""Most keys of an answer (AWS, S3 ListObjectsV2, 2026-11)."""


class Piece(NamedTuple):
    """Bytes of the file."""

    offset: int
    length: int


@dataclass(frozen=True)
class StoredObject:
    """What a key, or a part of an upload, has."""

    pieces: tuple[Piece, ...]
    etag: str
    modified: float = field(default_factory=time.time)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(piece.length for piece in self.pieces)


class S3Error(Exception):
    """An error by S3's own name."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


def select_pieces(pieces: Sequence[Piece], start: int, end: int) -> Iterator[Piece]:
    """The pieces with bytes [start, end) of an object."""
    position = 0
    for piece in pieces:
        first, last = max(start, position), min(end, position + piece.length)
        if first < last:
            yield Piece(piece.offset + first - position, last - first)
        position += piece.length


class Bucket:
    """Objects by key, and uploads that are not complete; every bucket is this one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._end = file, 0
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        """Sorted."""

        self._uploads: dict[str, dict[int, StoredObject]] = {}
        self._upload_ids = itertools.count(1)

    def store(self, body: bytes) -> StoredObject:
        """Write bytes to the file."""
        os.pwrite(self._file.fileno(), body, self._end)
        piece, self._end = Piece(self._end, len(body)), self._end + len(body)
        return StoredObject((piece,), hashlib.md5(body, usedforsecurity=False).hexdigest())

    def read(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Read pieces in blocks."""
        for piece in pieces:
            for start in range(0, piece.length, _BLOCK_BYTES):
                length = min(_BLOCK_BYTES, piece.length - start)
                yield os.pread(self._file.fileno(), length, piece.offset + start)

    def get(self, key: str) -> StoredObject:
        """The object of a key.

        Raises:
            S3Error: there is none.
        """
        if key not in self._objects:
            raise S3Error(404, "NoSuchKey")
        return self._objects[key]

    def put(self, key: str, stored: StoredObject) -> None:
        """Give a key an object."""
        if key not in self._objects:
            bisect.insort(self._keys, key)
        self._objects[key] = stored

    def check(self, key: str, headers: Mapping[str, str]) -> None:
        """Check the condition of a write.

        Raises:
            S3Error: it does not hold.
        """
        known, expected = self._objects.get(key), headers.get("If-Match")
        if known and headers.get("If-None-Match") == "*":
            raise S3Error(412, "PreconditionFailed")
        if expected and expected.strip('"') != self.get(key).etag:
            raise S3Error(412, "PreconditionFailed")

    def delete(self, key: str) -> None:
        """Delete a key, if there is one."""
        if self._objects.pop(key, None):
            del self._keys[bisect.bisect_left(self._keys, key)]

    def list_keys(self, prefix: str, after: str) -> Iterator[tuple[str, StoredObject]]:
        """Keys with a prefix, behind another one, and their objects."""
        start = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after))
        for key in itertools.islice(self._keys, start, None):
            if not key.startswith(prefix):
                return
            yield key, self._objects[key]

    def begin_upload(self) -> str:
        """Begin an object of several parts; returns its id."""
        upload = str(next(self._upload_ids))
        self._uploads[upload] = {}
        return upload

    def get_parts(self, upload: str) -> dict[int, StoredObject]:
        """Parts of an upload.

        Raises:
            S3Error: there is no such upload.
        """
        if upload not in self._uploads:
            raise S3Error(404, "NoSuchUpload")
        return self._uploads[upload]

    def drop_upload(self, upload: str) -> None:
        """Forget an upload."""
        self._uploads.pop(upload, None)

    def complete_upload(self, key: str, upload: str, numbers: Sequence[int]) -> StoredObject:
        """Join parts into an object."""
        parts = [self.get_parts(upload)[number] for number in numbers]
        digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False).hexdigest()
        stored = StoredObject(tuple(piece for part in parts for piece in part.pieces), f"{digest}-{len(parts)}")
        self.put(key, stored)
        self.drop_upload(upload)
        return stored


class Server:
    """Answers S3's requests."""

    def __init__(self, bucket: Bucket, copy_s: float) -> None:
        self._bucket, self._copy_s = bucket, copy_s

    def build_app(self) -> web.Application:
        """Build the server."""
        app = web.Application(client_max_size=2**30, middlewares=[_answer_errors])
        app.router.add_get("/{bucket}", self._list)
        app.router.add_put("/{bucket}", self._accept)
        app.router.add_get("/{bucket}/{key:.+}", self._read, allow_head=False)
        app.router.add_head("/{bucket}/{key:.+}", self._read_head)
        app.router.add_put("/{bucket}/{key:.+}", self._write)
        app.router.add_post("/{bucket}/{key:.+}", self._post)
        app.router.add_delete("/{bucket}/{key:.+}", self._delete)
        return app

    async def _accept(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _list(self, request: web.Request) -> web.Response:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        entries: list[str] = []
        last, is_truncated = request.query.get("continuation-token", ""), False
        for key, stored in self._bucket.list_keys(prefix, last):
            folder = key[: key.find(delimiter, len(prefix)) + 1] if delimiter else ""
            if folder and last.startswith(folder):
                continue
            if len(entries) == _PAGE:
                is_truncated = True
                break
            if folder:
                entries.append(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>")
                last = folder + chr(0x10FFFF)  # behind all keys of the folder
            else:
                entries.append(_format_entry(key, stored))
                last = key
        rest = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_truncated else ""
        return _build_page(
            "ListBucketResult", f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{rest}{''.join(entries)}"
        )

    async def _read(self, request: web.Request) -> web.StreamResponse:
        stored = self._bucket.get(request.match_info["key"])
        expected = request.headers.get("If-Match")
        if expected and expected.strip('"') != stored.etag:
            raise S3Error(412, "PreconditionFailed")
        start, end = _parse_range(request.headers.get("Range", ""), stored.size)
        response = web.StreamResponse(status=206 if "Range" in request.headers else 200, headers=_describe(stored))
        response.content_length = end - start
        await response.prepare(request)
        for block in self._bucket.read(list(select_pieces(stored.pieces, start, end))):
            await response.write(block)
        await response.write_eof()
        return response

    async def _read_head(self, request: web.Request) -> web.Response:
        stored = self._bucket.get(request.match_info["key"])
        return web.Response(headers={**_describe(stored), "Content-Length": str(stored.size)})

    async def _write(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if source := request.headers.get("x-amz-copy-source"):
            return await self._copy_part(request, unquote(source).lstrip("/").partition("/")[2])
        body = await request.read()
        if upload := request.query.get("uploadId"):
            stored = self._bucket.store(body)
            self._bucket.get_parts(upload)[int(request.query["partNumber"])] = stored
        else:
            self._bucket.check(key, request.headers)
            stored = self._bucket.store(body)
            self._bucket.put(key, stored)
        return web.Response(headers={"ETag": f'"{stored.etag}"'})

    async def _copy_part(self, request: web.Request, source: str) -> web.Response:
        stored = self._bucket.get(source)
        start, end = _parse_range(request.headers.get("x-amz-copy-source-range", ""), stored.size)
        pieces = tuple(select_pieces(stored.pieces, start, end))
        part = StoredObject(pieces, hashlib.md5(repr(pieces).encode(), usedforsecurity=False).hexdigest())
        self._bucket.get_parts(request.query["uploadId"])[int(request.query["partNumber"])] = part
        await asyncio.sleep(self._copy_s)
        return _build_page("CopyPartResult", f"<ETag>&quot;{part.etag}&quot;</ETag>")

    async def _post(self, request: web.Request) -> web.Response:
        if "uploads" in request.query:
            return _build_page("InitiateMultipartUploadResult", f"<UploadId>{self._bucket.begin_upload()}</UploadId>")
        parts = ElementTree.fromstring(await request.text()).iterfind("{*}Part/{*}PartNumber")
        numbers = [int(part.text or 0) for part in parts]
        stored = self._bucket.complete_upload(request.match_info["key"], request.query["uploadId"], numbers)
        return _build_page("CompleteMultipartUploadResult", f"<ETag>&quot;{stored.etag}&quot;</ETag>")

    async def _delete(self, request: web.Request) -> web.Response:
        if upload := request.query.get("uploadId"):
            self._bucket.drop_upload(upload)
        else:
            self._bucket.delete(request.match_info["key"])
        return web.Response(status=204)


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except S3Error as error:
        page = _build_page("Error", f"<Code>{error.code}</Code>")
        page.set_status(error.status)
        return page


def _describe(stored: StoredObject) -> dict[str, str]:
    return {"ETag": f'"{stored.etag}"', "Last-Modified": email.utils.formatdate(stored.modified, usegmt=True)}


def _format_entry(key: str, stored: StoredObject) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{stored.size}</Size><ETag>&quot;{stored.etag}&quot;</ETag>"
        f"<LastModified>{modified}</LastModified></Contents>"
    )


def _build_page(name: str, content: str) -> web.Response:
    return web.Response(text=f'<?xml version="1.0"?><{name}>{content}</{name}>', content_type="application/xml")


def _parse_range(header: str, size: int) -> tuple[int, int]:
    """First byte and the one behind the last; the whole object without a header."""
    if not (match := re.fullmatch(r"bytes=(\d+)-(\d+)", header)):
        return 0, size
    return int(match[1]), min(size, int(match[2]) + 1)


@contextlib.contextmanager
def run_server(folder: Path, copy_ms: float = 0) -> Iterator[str]:
    """Run the server in a process of its own; yield its URL."""
    port = processes.claim_free_ports(1)[0]
    command = [sys.executable, "-m", "scripts.benchmarks.s3_server", "--port", str(port)]
    child = processes.spawn([*command, "--folder", str(folder), "--copy-ms", f"{copy_ms:g}"])
    try:
        processes.wait_until(lambda: not processes.is_free(port), "the S3 server", timeout_s=30)
        yield f"http://127.0.0.1:{port}"
    finally:
        processes.stop(child)


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", required=True, help="where the file lies")
    parser.add_argument("--copy-ms", type=float, default=0, help="of each copy of a part")
    arguments = parser.parse_args()
    with tempfile.TemporaryFile(dir=arguments.folder) as file:
        app = Server(Bucket(file), arguments.copy_ms / 1000).build_app()
        web.run_app(app, host="127.0.0.1", port=arguments.port, print=None, access_log=None)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
