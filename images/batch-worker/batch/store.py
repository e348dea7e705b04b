"""Objects in S3: JSON with conditional writes, ranges of bytes, and parts that are joined."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import boto3
import botocore.config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

T = TypeVar("T")

MIN_PART_BYTES = 5 * 2**20
"""Minimum bytes of a part that S3 joins, except the last (AWS, S3 multipart upload limits, 2026-11)."""

READERS = 8
"""How many objects are read at a time."""

MAX_CONNECTIONS = 32
"""How many calls of one client are under way at a time; further ones open connections of their own."""

_READ_BYTES = 2**20

_MAX_BREAKS = 5
"""How often a read may break off without a byte more. S3 ends some connections of large objects too early, and a
compressed file of hours would begin anew (github.com/boto/boto3/issues/2495, smart_open#551, s3fs#149)."""

_COPIES = 8
"""Number of parts that S3 copies at a time: sequentially, an object of 50 GB would wait for thousands of answers."""

_MAX_COPY_BYTES = 512 * 2**20
"""Bytes of a part to copy, while there are parts enough: S3 copies smaller parts faster in parallel."""

MAX_PARTS, _MAX_PART_BYTES = 10_000, 5 * 2**30
"""Maximum number of parts of an object, and bytes of a part (AWS, S3 multipart upload limits, 2026-11)."""


class Conflict(Exception):
    """Another process wrote the object first."""


class Incomplete(Exception):
    """S3 reported an object as joined, but it is missing or incomplete."""


@dataclass(frozen=True)
class Stored:
    """An object with its ETag."""

    value: Any
    etag: str
    modified: float = 0.0
    """When it was written, in seconds since 1970."""


def create_client(service: str) -> Any:
    """Create a boto3 client that retries throttled calls."""
    config = botocore.config.Config(
        retries={"mode": "adaptive", "total_max_attempts": 10},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=MAX_CONNECTIONS,
        s3={"addressing_style": "path"},
    )
    return boto3.client(service, config=config)


class Store:
    """The objects of one bucket."""

    def __init__(self, bucket: str, client: Any = None) -> None:
        self.bucket = bucket
        self.client = client or create_client("s3")

    def read_json(self, key: str) -> Stored | None:
        try:
            response = self.client.get_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if get_code(error) in ("NoSuchKey", "404"):
                return None
            raise
        return Stored(json.loads(response["Body"].read()), response["ETag"], response["LastModified"].timestamp())

    def read_changed(
        self, etags: Mapping[str, str], earlier: Mapping[str, tuple[str, T]], convert: Callable[[Any], T]
    ) -> dict[str, tuple[str, T]]:
        """Return what `convert` makes of each JSON object, with its ETag, by key.

        Args:
            etags: of the objects, as listed.
            earlier: what an earlier call returned; only objects with another ETag are read.
        """
        unchanged = {key: earlier[key] for key, etag in etags.items() if key in earlier and earlier[key][0] == etag}
        changed = [key for key in etags if key not in unchanged]
        with ThreadPoolExecutor(READERS) as pool:
            stored = zip(changed, pool.map(self.read_json, changed), strict=True)
            return unchanged | {key: (entry.etag, convert(entry.value)) for key, entry in stored if entry}

    def write_json(self, key: str, value: Any, *, etag: str | None = None, new: bool = False) -> str:
        """Write a JSON object; returns its ETag.

        Args:
            etag: of the object that it replaces.
            new: whether it must not exist yet.

        Raises:
            Conflict: another process wrote it first.
        """
        return self.write(key, json.dumps(value, separators=(",", ":")).encode(), etag=etag, new=new)

    def write(self, key: str, body: bytes, *, etag: str | None = None, new: bool = False) -> str:
        """Write an object; see `write_json`."""
        condition: dict[str, str] = {}
        if new:
            condition["IfNoneMatch"] = "*"
        elif etag is not None:
            condition["IfMatch"] = etag
        try:
            return str(self.client.put_object(Bucket=self.bucket, Key=key, Body=body, **condition)["ETag"])
        except ClientError as error:
            # 409: two simultaneous writes of the key; 404: the object of If-Match was deleted.
            if get_code(error) in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", "NoSuchKey"):
                raise Conflict(key) from None
            raise

    def change_json(self, key: str, change: Callable[[Any], Any], attempts: int = 20) -> Any:
        """Replace a JSON object by the result of `change`, unless that is None. Returns the current object.

        Raises:
            KeyError: there is no such object.
            Conflict: others changed it each time.
        """
        for _ in range(attempts):
            stored = self.read_json(key)
            if stored is None:
                raise KeyError(key)
            value = change(stored.value)
            if value is None:
                return stored.value
            try:
                self.write_json(key, value, etag=stored.etag)
            except Conflict:
                continue
            return value
        raise Conflict(key)

    def read_range(self, key: str, start: int = 0, end: int | None = None, etag: str = "") -> Iterator[bytes]:
        """Read bytes [start, end) in blocks, by default all; where the connection ends too early, go on from there.

        Args:
            etag: expected ETag; a replaced object is an error (412).
        """
        breaks = 0
        while end is None or start < end:
            options = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end else {}
            options |= {"IfMatch": etag} if etag else {}
            reply = self.client.get_object(Bucket=self.bucket, Key=key, **options)
            etag = etag or str(reply["ETag"])
            try:
                for block in reply["Body"].iter_chunks(_READ_BYTES):
                    start, breaks = start + len(block), 0
                    yield block
                return
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                breaks += 1
                if breaks == _MAX_BREAKS:
                    raise

    def read(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def read_lines(self, key: str) -> Iterator[bytes]:
        """Read the lines of an object, in constant memory."""
        partial_line = b""
        for block in self.read_range(key):
            *lines, partial_line = (partial_line + block).split(b"\n")
            yield from lines
        if partial_line:
            yield partial_line

    def read_head(self, key: str) -> dict[str, Any] | None:
        """Read size, ETag and time of writing (seconds since 1970) of an object; None if there is none."""
        try:
            response = self.client.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if get_code(error) in ("NoSuchKey", "404"):
                return None
            raise
        modified = response["LastModified"].timestamp()
        return {"bytes": int(response["ContentLength"]), "etag": str(response["ETag"]), "modified": modified}

    def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def list_objects(self, prefix: str) -> Iterator[dict[str, Any]]:
        """List keys, sizes, ETags and times of writing (seconds since 1970) below a prefix."""
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                modified = entry["LastModified"].timestamp()
                yield {"key": entry["Key"], "bytes": entry["Size"], "etag": entry["ETag"], "modified": modified}

    def list_folders(self, prefix: str) -> Iterator[str]:
        """List the names of the folders right below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
        for page in pages:
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"][len(prefix) :].rstrip("/")

    def open_writer(self, key: str, objects: int = 1) -> Writer:
        """Open an object to write piece by piece.

        Args:
            objects: number of objects that are appended to it, at most.
        """
        return Writer(self, key, objects)


class Writer:
    """An object that is written piece by piece, in constant memory; it appears when it is closed.

    A `with` block closes it at its end, and discards it after an error.
    """

    def __init__(self, store: Store, key: str, objects: int) -> None:
        self._store = store
        self._key = key
        self._copies_each = max(1, MAX_PARTS // max(1, objects))
        """Parts of each appended object, at most: all of them together must not be too many."""

        self._buffer = bytearray()
        self._upload = ""
        self._etags: list[str | Future[str]] = []
        """ETags of the parts, in order; a future for a part that is being copied."""

        self._bytes = 0
        """Of the parts."""

        self._copiers = ThreadPoolExecutor(_COPIES, thread_name_prefix="copy")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, block: bytes) -> None:
        self._buffer += block
        if len(self._buffer) >= 2 * MIN_PART_BYTES:
            self._flush()

    def append_object(self, key: str, size: int) -> None:
        """Append another object of the bucket; S3 copies it if it is large enough for a part."""
        # What is buffered must reach the minimum size of a part: it is filled from the object's beginning.
        lacking = max(0, MIN_PART_BYTES - len(self._buffer)) if self._buffer else 0
        is_copied = size - lacking >= MIN_PART_BYTES
        for block in self._store.read_range(key, 0, lacking if is_copied else size):
            self.write(block)
        if is_copied:
            if self._buffer:
                self._flush()
            self._copy(key, lacking, size)

    def close(self) -> None:
        """Write the rest and make the object visible. After an error nothing is left.

        Raises:
            Incomplete: the object differs from the written data.
        """
        try:
            if not self._upload:
                self._store.write(self._key, bytes(self._buffer))
                return
            if self._buffer:
                self._flush()
            etags = [etag.result() if isinstance(etag, Future) else etag for etag in self._etags]
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
            self._store.client.complete_multipart_upload(
                Bucket=self._store.bucket, Key=self._key, UploadId=self._upload, MultipartUpload={"Parts": parts}
            )
            self._upload = ""
            # An S3 server that joins for longer than the client waits may answer the repeated request with 200, and
            # then fail.
            stored = self._store.read_head(self._key)
            if stored is None or stored["bytes"] != self._bytes:
                raise Incomplete(f"{self._key} has {stored['bytes'] if stored else 'no'} bytes, not {self._bytes}")
        finally:
            self.abort()  # no effect once S3 has joined the object

    def abort(self) -> None:
        """Discard the data that is not visible yet."""
        self._copiers.shutdown(cancel_futures=True)
        upload, self._upload = self._upload, ""
        if upload:
            # Keep the original error; the bucket deletes unfinished uploads after some days.
            with contextlib.suppress(BotoCoreError, ClientError):
                self._store.client.abort_multipart_upload(Bucket=self._store.bucket, Key=self._key, UploadId=upload)

    def _flush(self) -> None:
        number = self._begin_part()
        response = self._store.client.upload_part(
            Bucket=self._store.bucket, Key=self._key, UploadId=self._upload, PartNumber=number, Body=bytes(self._buffer)
        )
        self._etags.append(response["ETag"])
        self._bytes += len(self._buffer)
        self._buffer.clear()

    def _copy(self, key: str, start: int, end: int) -> None:
        """Copy bytes [start, end) of an object, in parts of about the same size."""
        size = end - start
        count = max(-(-size // _MAX_PART_BYTES), min(-(-size // _MAX_COPY_BYTES), self._copies_each))
        bounds = [start + size * index // count for index in range(count + 1)]
        for first, last in itertools.pairwise(bounds):
            self._copy_part(key, first, last)

    def _copy_part(self, key: str, start: int, end: int) -> None:
        number = self._begin_part()

        def copy() -> str:
            response = self._store.client.upload_part_copy(
                Bucket=self._store.bucket,
                Key=self._key,
                UploadId=self._upload,
                PartNumber=number,
                CopySource={"Bucket": self._store.bucket, "Key": key},
                CopySourceRange=f"bytes={start}-{end - 1}",
            )
            return str(response["CopyPartResult"]["ETag"])

        self._etags.append(self._copiers.submit(copy))
        self._bytes += end - start

    def _begin_part(self) -> int:
        if not self._upload:
            self._upload = str(
                self._store.client.create_multipart_upload(Bucket=self._store.bucket, Key=self._key)["UploadId"]
            )
        return len(self._etags) + 1


def get_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
