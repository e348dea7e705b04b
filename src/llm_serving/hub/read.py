"""What the hub says of a model without its weights: settings, sizes and hashes, as a record."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from llm_serving.catalog import models
from llm_serving.catalog.records import ModelRecord, RecordedFile
from llm_serving.hub import client

ReadJson = Callable[[str], Mapping[str, Any]]
"""Reads one of a model's JSON files by its name."""


def fetch_record(name: str, revision: str = "main") -> ModelRecord:
    """The record of a model on the hub.

    Raises:
        InputError: there is no such model or revision, or it has no safetensors or config.json.
        Unavailable: the hub is unreachable, or requires a token.
    """
    snapshot = client.fetch_snapshot(name, revision)

    def read_json(file: str) -> Mapping[str, Any]:
        return client.fetch_json(name, file, snapshot.commit)

    return build_record(snapshot, revision, client.select_files(snapshot), {}, read_json)


def build_record(
    snapshot: client.Snapshot,
    revision: str,
    repo_files: Iterable[client.RepoFile],
    hashes: Mapping[str, str],
    read_json: ReadJson,
) -> ModelRecord:
    """The record of a repository's files for serving.

    Args:
        hashes: SHA-256 of files that the hub has none of, by name.
    """
    recorded_files = {
        file.name: RecordedFile(bytes=file.size, sha256=file.sha256 or hashes.get(file.name)) for file in repo_files
    }
    return ModelRecord(
        source=snapshot.id,
        revision=revision,
        commit=snapshot.commit,
        config=_read_config(recorded_files, read_json),
        weight_bytes=_read_weight_bytes(recorded_files, read_json),
        files=recorded_files,
    )


def _read_config(recorded_files: Container[str], read_json: ReadJson) -> Mapping[str, Any]:
    if models.CONFIG_FILE not in recorded_files:
        return {}
    config = read_json(models.CONFIG_FILE)
    if models.QUANTIZATION_FILE not in recorded_files:
        return config
    return models.merge_quantization(config, read_json(models.QUANTIZATION_FILE))


def _read_weight_bytes(recorded_files: Mapping[str, RecordedFile], read_json: ReadJson) -> int:
    """By the index of the safetensors, else the sizes of the files, each of which has a header besides."""
    indexed = models.read_index_bytes(read_json(models.INDEX_FILE)) if models.INDEX_FILE in recorded_files else 0
    return indexed or sum(file.bytes for name, file in recorded_files.items() if name.endswith(".safetensors"))
