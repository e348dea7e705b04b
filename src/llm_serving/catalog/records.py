"""What is known of models that the catalog has no row for: a record of each, by its id on the hub, in the user's cache.

`blueprint model fit` and `blueprint model copy` write it; a copy in S3 has the same record beside its objects. Checking
a blueprint then needs neither a hub nor S3. A model that lies in S3 otherwise is recorded by its s3://BUCKET/PREFIX.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_serving import processes
from llm_serving.catalog.gguf import Header

S3_SCHEME = "s3://"

_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
"""Of a model on the hub, with the quantization of one of its GGUF files."""


class RecordedFile(BaseModel):
    """One file of a model."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    sha256: str | None = None
    """None of small files that were not downloaded: the hub has another hash of them."""


class ModelRecord(BaseModel):
    """A model at one commit: its settings, and its files with their sizes and hashes."""

    model_config = ConfigDict(frozen=True)

    source: str
    """Id on the hub, name of a folder, or s3://BUCKET/PREFIX."""

    revision: str | None = None
    """The branch, tag or commit that was asked for; None for a folder."""

    commit: str | None = None
    """Its commit on the hub; None for a folder."""

    config: Mapping[str, Any] = {}
    """Its config.json; empty for a GGUF file."""

    gguf: Header | None = None
    """Header of its GGUF file."""

    weight_bytes: int = 0
    """Of all tensors, by the index of its safetensors or the sizes of the files."""

    files: Mapping[str, RecordedFile] = {}

    def is_revision(self, revision: str) -> bool:
        """Return whether `revision` names the commit that this is, whole or by its first seven characters or more."""
        is_commit = len(revision) >= 7 and (self.commit or "").startswith(revision)
        return revision == self.revision or is_commit


def find_folder() -> Path:
    """Return the folder of records in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blueprint" / "records"


def find(name: str) -> ModelRecord | None:
    path = _find_path(name)
    if path is None:
        return None
    try:
        return ModelRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def save(record: ModelRecord, name: str = "") -> None:
    """Keep a record in place of an earlier one of the same model; models in folders have none.

    Args:
        name: by which it is found again; the record's source if empty.
    """
    path = _find_path(name or record.source)
    if path is None or (record.commit is None and not name):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    processes.write_whole(path, record.model_dump_json())


def _find_path(name: str) -> Path | None:
    if name.startswith(S3_SCHEME):
        return find_folder() / f"s3-{hashlib.sha256(name.rstrip('/').encode()).hexdigest()[:32]}.json"
    return find_folder() / f"{name.replace('/', '--')}.json" if _NAME.fullmatch(name) else None
