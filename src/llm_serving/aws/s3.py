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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from llm_serving.aws import session
from llm_serving.settings.errors import InputError, Unavailable

PART_BYTES = 32 * 2**20
"""Size of a part: at S3's limit of 10,000 parts a file may have 335 GB."""

HASH = "sha256"
"""Key of the metadata."""

_TIMEOUT_S = 10
_MISSING = ("404", "NoSuchBucket", "NotFound")
_DENIED = ("403", "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")

Count = Callable[[int], None]
"""Called with the number of bytes that have just been sent; may raise to stop."""


class Denied(Unavailable):
    """Whoever runs this may not do it; somebody else may."""


class Place(NamedTuple):
    """A prefix in a bucket."""

    bucket: str
    prefix: str
    """Ends with / or is empty."""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def place(uri: str) -> Place:
    """Reads s3://BUCKET/PREFIX.

    Raises:
        InputError: it is none.
    """
    found = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", uri)
    if not found:
        raise InputError(f"--to: now {uri!r}: it is no place in S3. Write s3://BUCKET/PREFIX.")
    prefix = (found[2] or "").strip("/")
    return Place(found[1], f"{prefix}/" if prefix else "")


class Bucket:
    """One bucket, reached and allowed; safe to use from several threads."""

    def __init__(
        self, where: Place, *, endpoint: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Connects.

        Args:
            endpoint: URL of an S3 other than AWS's, over what the environment says (AWS_ENDPOINT_URL_S3).
            environment: AWS's usual variables, in the place of this process's own.

        Raises:
            Unavailable: S3 does not answer, has no such bucket, or refuses.
        """
        from botocore.config import Config

        variables = os.environ if environment is None else environment
        named = endpoint or variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
        self.where = where
        self.at = named or "AWS"
        settings = Config(
            connect_timeout=_TIMEOUT_S,
            read_timeout=60,
            retries={"max_attempts": 4, "mode": "standard"},
            # Servers other than AWS's seldom answer to BUCKET.their-name.
            s3={"addressing_style": "path" if named else "auto"},
            max_pool_connections=32,
        )
        with self._refusals("s3:ListBucket"):
            self._client: Any = _session(environment).client("s3", endpoint_url=named, config=settings)
            self._client.head_bucket(Bucket=where.bucket)

    def has(self, name: str, size: int, sha256: str) -> bool:
        """Whether the object `name` under the prefix is this very file."""
        from botocore.exceptions import ClientError

        with self._refusals("s3:GetObject"):
            try:
                found = self._client.head_object(Bucket=self.where.bucket, Key=self.where.prefix + name)
            except ClientError as error:
                if _code(error) in (*_MISSING, "NoSuchKey"):
                    return False
                raise
        return bool(found["ContentLength"] == size and found["Metadata"].get(HASH) == sha256)

    def sizes(self) -> dict[str, int]:
        """Bytes of every object under the prefix, by its name below it."""
        with self._refusals("s3:ListBucket"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.where.bucket, Prefix=self.where.prefix
            )
            found = [one for page in pages for one in page.get("Contents", ())]
        return {one["Key"].removeprefix(self.where.prefix): int(one["Size"]) for one in found}

    def read(self, name: str, first: int, count: int) -> bytes:
        """`count` bytes of the object `name` under the prefix, from the byte `first` on; fewer where it ends sooner."""
        from botocore.exceptions import ClientError

        with self._refusals("s3:GetObject"):
            bytes_ = f"bytes={first}-{first + count - 1}"
            try:
                found = self._client.get_object(Bucket=self.where.bucket, Key=self.where.prefix + name, Range=bytes_)
            except ClientError as error:
                if _code(error) == "InvalidRange":  # it is empty, or ends before
                    return b""
                raise
            return bytes(found["Body"].read())

    def send(self, path: Path, name: str, sha256: str, count: Count) -> None:
        """Sends a file, going on with parts that an earlier try has left in S3.

        Raises:
            Unavailable: S3 went away or refused; what arrived stays for the next try.
        """
        key = self.where.prefix + name
        with self._refusals("s3:PutObject"):
            if path.stat().st_size <= PART_BYTES:
                self._send_whole(path, key, sha256, count)
            else:
                self._send_parts(path, key, sha256, count)
        if not self.has(name, path.stat().st_size, sha256):
            raise Unavailable(f"{self.where}{name}: what S3 holds is not what was sent. Run the same command again.")

    def _send_whole(self, path: Path, key: str, sha256: str, count: Count) -> None:
        body = path.read_bytes()
        target = {"Bucket": self.where.bucket, "Key": key}
        self._client.put_object(**target, Body=body, ChecksumSHA256=_checksum(body), Metadata={HASH: sha256})
        count(len(body))

    def _send_parts(self, path: Path, key: str, sha256: str, count: Count) -> None:
        target = {"Bucket": self.where.bucket, "Key": key}
        upload, there = self._begun(path, key)
        if upload is None:
            made = self._client.create_multipart_upload(**target, ChecksumAlgorithm="SHA256", Metadata={HASH: sha256})
            upload = made["UploadId"]
        parts = []
        for number, body in _cut(path):
            checksum = _checksum(body)
            if number in there:
                tag = there[number].tag
            else:
                at = {"PartNumber": number, "UploadId": upload}
                tag = self._client.upload_part(**target, **at, Body=body, ChecksumSHA256=checksum)["ETag"]
                count(len(body))
            parts.append({"PartNumber": number, "ETag": tag, "ChecksumSHA256": checksum})
        self._client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts})

    def _begun(self, path: Path, key: str) -> tuple[str | None, dict[int, _Part]]:
        """An upload of this file that broke off, and its parts. One of another content is ended."""
        upload = self._unfinished(key)
        there = self._parts(key, upload) if upload else {}
        if upload and there and all(there[number].holds(body) for number, body in _cut(path) if number in there):
            return upload, there
        if upload:
            self._client.abort_multipart_upload(Bucket=self.where.bucket, Key=key, UploadId=upload)
        return None, {}

    def _unfinished(self, key: str) -> str | None:
        """The newest upload of `key` that broke off."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.where.bucket, Prefix=key)
        found = [one for page in pages for one in page.get("Uploads", ()) if one["Key"] == key]
        return str(max(found, key=lambda one: one["Initiated"])["UploadId"]) if found else None

    def _parts(self, key: str, upload: str) -> dict[int, _Part]:
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self.where.bucket, Key=key, UploadId=upload)
        return {
            one["PartNumber"]: _Part(one["ETag"], one["Size"], one.get("ChecksumSHA256"))
            for page in pages
            for one in page.get("Parts", ())
        }

    def _refusals(self, action: str) -> AbstractContextManager[None]:
        return _refusals(f"s3://{self.where.bucket}", self.at, action)


def account(region: str) -> str:
    """The number of the AWS account that this process's own settings lead to.

    Raises:
        Unavailable: AWS does not answer or refuses.
    """
    at = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL") or "AWS"
    with _refusals("the account's number", at, "sts:GetCallerIdentity"):
        client = _session(None).client("sts", region_name=region)
        return str(client.get_caller_identity()["Account"])


@contextmanager
def _refusals(what: str, at: str, action: str) -> Iterator[None]:
    """Turns the SDK's errors into one line each."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        _refused(error, what, at, action)
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError):
        raise Unavailable(
            f"{what}: there are no AWS credentials here. "
            "Run `aws configure`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    except (exceptions.BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise Unavailable(f"{what}: {at} does not answer: {str(error).rstrip('.')}.") from None


def _refused(error: Any, what: str, at: str, action: str) -> NoReturn:
    code = _code(error)
    if code in _MISSING:
        raise Unavailable(f"{what}: {at} has no such bucket. Apply the storage stack, or write another.") from None
    if code in _DENIED:
        raise Denied(
            f"{what}: {at} denies {action} ({code}). "
            "Use an identity that may read and write the bucket and use its KMS key."
        ) from None
    raise Unavailable(f"{what}: {at} refuses {action}: {str(error).rstrip('.')}.") from None


def _session(environment: Mapping[str, str] | None) -> Any:
    """A session of this process's own settings, or of those in `environment` and no others."""
    import boto3

    core = session.session()
    if environment is None:
        return boto3.Session(botocore_session=core)
    core.set_config_variable("profile", environment.get("AWS_PROFILE"))
    core.set_config_variable("config_file", environment.get("AWS_CONFIG_FILE", os.devnull))
    core.set_config_variable("credentials_file", environment.get("AWS_SHARED_CREDENTIALS_FILE", os.devnull))
    return boto3.Session(
        aws_access_key_id=environment.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=environment.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=environment.get("AWS_SESSION_TOKEN") or None,
        region_name=environment.get("AWS_REGION"),
        botocore_session=core,
    )


class _Part(NamedTuple):
    """A part that lies in S3."""

    tag: str
    size: int
    checksum: str | None

    def holds(self, body: bytes) -> bool:
        """Whether it is `body`."""
        if self.size != len(body):
            return False
        if self.checksum:
            return self.checksum == _checksum(body)
        # A server that keeps no checksums: the tag is the MD5, where nothing encrypts.
        return self.tag.strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest()


def _cut(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as content:
        number = 1
        while body := content.read(PART_BYTES):
            yield number, body
            number += 1


def _checksum(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
