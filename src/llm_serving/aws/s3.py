"""Files into S3: each only once, checked by S3 as it arrives, and resumed part by part where it broke off.

An object carries the SHA-256 of its file in its metadata, so that a later run knows it without reading it. Every
request carries a SHA-256 of its own bytes, which S3 refuses when they do not match.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.aws import session
from llm_serving.settings.errors import InputError, Unavailable, quote_value

PART_BYTES = 32 * 2**20
"""Size of a part: at S3's limit of 10,000 parts a file may have 335 GB."""

HASH_KEY = "sha256"
_TIMEOUT_S = 10
_MISSING = ("404", "NoSuchBucket", "NotFound")
_DENIED = ("403", "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")

OnBytes = Callable[[int], None]
"""Called with the number of bytes that have just been sent; may raise to stop."""


class AccessDenied(Unavailable):
    """Whoever runs this may not do it; somebody else may."""


class S3Location(NamedTuple):
    """A prefix in a bucket."""

    bucket: str
    prefix: str
    """Ends with / or is empty."""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def parse_location(uri: str, subject: str = "") -> S3Location:
    """Read s3://BUCKET/PREFIX.

    Args:
        subject: begins the error, such as `--to: `.

    Raises:
        InputError: it is none.
    """
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", uri)
    if not match:
        fix = "write s3://BUCKET/PREFIX, with a bucket's name of 3 to 63 of a-z, 0-9, . and -"
        raise InputError(f"{subject}{quote_value(uri)}: it is not a location in S3. Fix: {fix}.")
    prefix = (match[2] or "").strip("/")
    return S3Location(match[1], f"{prefix}/" if prefix else "")


class Bucket:
    """One bucket, reached and allowed; safe to use from several threads."""

    def __init__(
        self, location: S3Location, *, endpoint: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Connect.

        Args:
            endpoint: URL of an S3 other than AWS's, over what the environment says (AWS_ENDPOINT_URL_S3).
            env: AWS's usual variables instead of this process's own.

        Raises:
            Unavailable: S3 does not answer, has no such bucket, or refuses.
        """
        custom_endpoint = endpoint or session.find_endpoint(os.environ if env is None else env, "s3")
        self.location = location
        self.endpoint_name = custom_endpoint or "AWS"
        config = session.build_config(
            custom_endpoint,
            connect_timeout=_TIMEOUT_S,
            read_timeout=60,
            retries={"max_attempts": 4, "mode": "standard"},
            max_pool_connections=32,
        )
        with self._translate_errors("s3:ListBucket"):
            self._client: Any = session.create_session(env).client("s3", endpoint_url=custom_endpoint, config=config)
            self._client.head_bucket(Bucket=location.bucket)

    def _locate(self, name: str) -> dict[str, str]:
        return {"Bucket": self.location.bucket, "Key": self.location.prefix + name}

    def has_object(self, name: str, size: int, sha256: str) -> bool:
        """Return whether the object `name` under the prefix is this very file."""
        with self._translate_errors("s3:GetObject"), session.ignore_errors(*_MISSING, "NoSuchKey"):
            response = self._client.head_object(**self._locate(name))
            return bool(response["ContentLength"] == size and response["Metadata"].get(HASH_KEY) == sha256)
        return False

    def is_copied(self, name: str) -> bool:
        """Return whether the object `name` under the prefix was sent by `upload`."""
        with self._translate_errors("s3:GetObject"):
            response = self._client.head_object(**self._locate(name))
            return HASH_KEY in response["Metadata"]

    def delete(self, name: str) -> None:
        with self._translate_errors("s3:DeleteObject"):
            self._client.delete_object(**self._locate(name))

    def list_sizes(self) -> dict[str, int]:
        """Return the bytes of every object under the prefix, by its name below it; S3's markers of folders are none.

        Raises:
            InputError: a name is no path below a folder.
        """
        with self._translate_errors("s3:ListBucket"):
            query = {"Bucket": self.location.bucket, "Prefix": self.location.prefix}
            entries = session.list_all(self._client, "list_objects_v2", "Contents", **query)
        sizes = {entry["Key"].removeprefix(self.location.prefix): int(entry["Size"]) for entry in entries}
        names = [name for name in sizes if name and not name.endswith("/")]
        for name in names:
            self._require_inside(name)
        return {name: sizes[name] for name in names}

    def _require_inside(self, name: str) -> None:
        """Check that a folder can hold the object under its name: who copies objects uses their names as paths."""
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise InputError(
                f"{self.location}: {quote_value(name)}: the name of this object is not a path below a folder. "
                "Fix: delete the object."
            )

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from the byte `offset` on; fewer if it ends before."""
        byte_range = f"bytes={offset}-{offset + length - 1}"
        with self._translate_errors("s3:GetObject"), session.ignore_errors("InvalidRange"):
            response = self._client.get_object(**self._locate(name), Range=byte_range)
            return bytes(response["Body"].read())
        return b""  # it is empty, or ends before

    def download(self, name: str, path: Path) -> None:
        """Copy the object `name` under the prefix to a file.

        Raises:
            Unavailable: S3 went away or refused.
        """
        with self._translate_errors("s3:GetObject"):
            self._client.download_file(self.location.bucket, self.location.prefix + name, str(path))

    def upload(self, path: Path, name: str, sha256: str, on_bytes: OnBytes) -> None:
        """Send a file, going on with parts that an earlier try has left in S3.

        Raises:
            Unavailable: S3 went away or refused; what arrived stays for the next try.
        """
        object_key = self._locate(name)
        metadata = {HASH_KEY: sha256}
        with self._translate_errors("s3:PutObject"):
            if path.stat().st_size <= PART_BYTES:
                body = path.read_bytes()
                self._client.put_object(
                    **object_key, Body=body, ChecksumSHA256=_compute_checksum(body), Metadata=metadata
                )
                on_bytes(len(body))
            else:
                self._upload_parts(path, object_key, metadata, on_bytes)
        if not self.has_object(name, path.stat().st_size, sha256):
            raise Unavailable(f"{self.location}{name}: S3 holds other bytes than were sent. Fix: run it again.")

    def _upload_parts(
        self, path: Path, object_key: dict[str, str], metadata: dict[str, str], on_bytes: OnBytes
    ) -> None:
        upload_id, uploaded_parts = self._find_resumable_upload(path, object_key)
        if upload_id is None:
            upload_id = self._client.create_multipart_upload(
                **object_key, ChecksumAlgorithm="SHA256", Metadata=metadata
            )["UploadId"]
        parts = []
        for number, body in _split_file(path):
            checksum = _compute_checksum(body)
            if number in uploaded_parts:
                tag = uploaded_parts[number].tag
            else:
                part_key = {"PartNumber": number, "UploadId": upload_id}
                tag = self._client.upload_part(**object_key, **part_key, Body=body, ChecksumSHA256=checksum)["ETag"]
                on_bytes(len(body))
            parts.append({"PartNumber": number, "ETag": tag, "ChecksumSHA256": checksum})
        self._client.complete_multipart_upload(**object_key, UploadId=upload_id, MultipartUpload={"Parts": parts})

    def _find_resumable_upload(
        self, path: Path, object_key: dict[str, str]
    ) -> tuple[str | None, dict[int, _UploadedPart]]:
        """Return an upload of this file that broke off, and its parts. One of another content is ended."""
        query = {"Bucket": object_key["Bucket"], "Prefix": object_key["Key"]}
        entries = session.list_all(self._client, "list_multipart_uploads", "Uploads", **query)
        uploads = [entry for entry in entries if entry["Key"] == object_key["Key"]]
        if not uploads:
            return None, {}
        upload = {**object_key, "UploadId": max(uploads, key=lambda entry: entry["Initiated"])["UploadId"]}
        parts = {
            entry["PartNumber"]: _UploadedPart(entry["ETag"], entry["Size"], entry.get("ChecksumSHA256"))
            for entry in session.list_all(self._client, "list_parts", "Parts", **upload)
        }
        if parts and all(parts[number].has_content(body) for number, body in _split_file(path) if number in parts):
            return upload["UploadId"], parts
        self._client.abort_multipart_upload(**upload)
        return None, {}

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        from botocore import exceptions

        subject = f"s3://{self.location.bucket}"
        try:
            yield
        except exceptions.ClientError as error:
            code = session.get_error_code(error)
            if code in _MISSING:
                fix = "apply the stack storage, or name another bucket"
                raise Unavailable(f"{subject}: {self.endpoint_name} has no such bucket. Fix: {fix}.") from None
            if code in _DENIED:
                fix = "use an identity that may read and write the bucket and use its KMS key"
                raise AccessDenied(f"{subject}: {self.endpoint_name} denies {action} ({code}). Fix: {fix}.") from None
            raise Unavailable(f"{subject}: {self.endpoint_name} refuses {action}: {str(error).rstrip('.')}.") from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError):
            fix = "run `aws configure`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise Unavailable(f"{subject}: there are no AWS credentials here. Fix: {fix}.") from None
        except (exceptions.BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
            reason = str(error).rstrip(".")
            fix = "check the network, the region, and AWS_ENDPOINT_URL where it is set"
            raise Unavailable(f"{subject}: {self.endpoint_name} does not answer: {reason}. Fix: {fix}.") from None


class _UploadedPart(NamedTuple):
    tag: str
    size: int
    checksum: str | None

    def has_content(self, body: bytes) -> bool:
        """Return whether it is `body`."""
        if self.size != len(body):
            return False
        if self.checksum:
            return self.checksum == _compute_checksum(body)
        # A server that keeps no checksums: the tag is the MD5, where nothing encrypts.
        return self.tag.strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest()


def _split_file(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as content:
        number = 1
        while body := content.read(PART_BYTES):
            yield number, body
            number += 1


def _compute_checksum(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()
