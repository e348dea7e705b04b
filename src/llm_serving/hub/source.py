"""What a model in a bucket is a copy of: an object beside the weights, the record of the model that was copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from llm_serving.aws import s3
from llm_serving.catalog.records import ModelRecord
from llm_serving.hub import files
from llm_serving.settings.errors import BlueprintError, InputError

FILE = ".source.json"
"""Name of the object; no engine reads files that begin with a dot."""

_MAX_BYTES = 10_000_000


def write(bucket: s3.Bucket, folder: Path, record: ModelRecord) -> None:
    """Write the record.

    Args:
        folder: a folder of this machine for the file in transit.

    Raises:
        Unavailable: S3 is unreachable or denies access.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(record.model_dump_json() + "\n", encoding="utf-8")
    sha256 = files.compute_sha256(path)
    if not bucket.has_object(FILE, path.stat().st_size, sha256):
        bucket.upload(path, FILE, sha256, lambda _: None)
    path.unlink()


def find(open_bucket: Callable[[], s3.Bucket]) -> ModelRecord | None:
    """Return the record of the model at a place in S3; None if it has none, or S3 cannot be read from here.

    Args:
        open_bucket: opens the model's place in S3; it may raise, as for want of credentials.
    """
    try:
        return read(open_bucket())
    except BlueprintError:
        return None


def read(bucket: s3.Bucket) -> ModelRecord:
    """Return the record of the model at a place in S3.

    Raises:
        Unavailable: S3 is unreachable or denies access.
        InputError: there is no record.
    """
    try:
        return ModelRecord.model_validate_json(bucket.read(FILE, 0, _MAX_BYTES) if FILE in bucket.list_sizes() else b"")
    except ValidationError:
        raise InputError(
            f"{bucket.location}: there is no record of a model ({FILE}). Fix: copy it with `blueprint model copy`."
        ) from None
