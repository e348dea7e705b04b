"""What the hub says of a model without its weights: settings, sizes and hashes, as a record."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any

from llm_serving.aws import s3
from llm_serving.catalog import gguf, models, pipelines
from llm_serving.catalog.records import ModelRecord, RecordedFile
from llm_serving.hub import client
from llm_serving.hub.client import ReadJson
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError

MAX_JSON_BYTES = 100_000_000


def fetch_record(name: str, revision: str = "main") -> ModelRecord:
    """Return the record of a model on the hub: ORGANIZATION/MODEL, or with :QUANTIZATION one of its GGUF files.

    Raises:
        InputError: there is no such model or revision, or it has no safetensors or config.json; or the GGUF file is not
            all of a model that llama.cpp runs.
    """
    repository, _, quantization = name.partition(":")
    snapshot = client.fetch_snapshot(repository, revision)
    if quantization:
        return fetch_gguf_record(snapshot, revision, name, client.select_gguf(snapshot, quantization))

    def read_json(file: str) -> Mapping[str, Any]:
        return client.fetch_json(name, file, snapshot.commit)

    return build_record(snapshot, revision, client.select_files(snapshot), {}, read_json)


def fetch_gguf_record(snapshot: client.Snapshot, revision: str, name: str, file: client.RepoFile) -> ModelRecord:
    """Return the record of one GGUF file of a repository, by its header alone, which is read a piece at a time.

    Raises:
        InputError: it is cut short, one of several parts, or of an architecture that llama.cpp does not run.
        Unavailable: the hub is unreachable, requires a token, or sends only whole files.
    """
    source = f"{snapshot.id}: {file.name}"
    header = gguf.parse(client.open_file(snapshot, file, gguf.MAX_HEADER_BYTES), source)
    gguf.check_whole(header, file.size, source)
    gguf.check_known(header, source)
    return ModelRecord(
        source=name,
        revision=revision,
        commit=snapshot.commit,
        gguf=header,
        weight_bytes=header.weight_bytes,
        files={gguf.FILE: RecordedFile(bytes=file.size, sha256=file.sha256)},
    )


def read_s3_record(bucket: s3.Bucket) -> ModelRecord:
    """Return the record of a model at a place in S3 that says nothing of where it came from: by what lies there.

    Raises:
        InputError: no model lies there.
    """
    uri, sizes = str(bucket.location), bucket.list_sizes()
    if gguf.FILE in sizes:
        header = gguf.parse_bytes(bucket.read(gguf.FILE, 0, gguf.MAX_HEADER_BYTES), f"{uri}{gguf.FILE}")
        gguf.check_whole(header, sizes[gguf.FILE], f"{uri}{gguf.FILE}")
        files = {gguf.FILE: RecordedFile(bytes=sizes[gguf.FILE])}
        return ModelRecord(source=uri, gguf=header, weight_bytes=header.weight_bytes, files=files)
    has_config = models.CONFIG_FILE in sizes or pipelines.INDEX_FILE in sizes
    if not has_config or not any(name.endswith(".safetensors") for name in sizes):
        lack = "no safetensors" if has_config else f"no {models.CONFIG_FILE}"
        raise InputError(
            f"{uri}: {lack} is there. Fix: name the prefix of a model's folder, with config.json; "
            f"a GGUF file is named {gguf.FILE}."
        )
    snapshot = client.Snapshot(uri, "", tuple(client.RepoFile(name, size, None, "") for name, size in sizes.items()))
    read_json = partial(read_s3_json, bucket)
    files_read = client.select_files(snapshot, read_json=read_json)
    record = build_record(snapshot, "", files_read, {}, read_json)
    return record.model_copy(update={"revision": None, "commit": None})


def read_s3_json(bucket: s3.Bucket, name: str) -> Mapping[str, Any]:
    """Return a JSON file of a model in S3; nothing where it is no mapping.

    Raises:
        InputError: it is not JSON.
    """
    try:
        content = untrusted_json.parse(bucket.read(name, 0, MAX_JSON_BYTES), infinite=True)
    except ValueError:
        raise InputError(f"{bucket.location}{name}: it is not JSON. Fix: copy the model again.") from None
    return content if isinstance(content, dict) else {}


def build_record(
    snapshot: client.Snapshot,
    revision: str,
    repo_files: Iterable[client.RepoFile],
    hashes: Mapping[str, str],
    read_json: ReadJson,
) -> ModelRecord:
    """Return the record of a repository's files for serving.

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
    if pipelines.INDEX_FILE in recorded_files:
        return read_json(pipelines.INDEX_FILE)
    if models.CONFIG_FILE not in recorded_files:
        return {}
    config = read_json(models.CONFIG_FILE)
    if models.QUANTIZATION_FILE not in recorded_files:
        return config
    return models.merge_quantization(config, read_json(models.QUANTIZATION_FILE))


def _read_weight_bytes(recorded_files: Mapping[str, RecordedFile], read_json: ReadJson) -> int:
    """Read it from the index of the safetensors, else the sizes of the files, each of which has a header besides."""
    indexed = models.read_index_bytes(read_json(models.INDEX_FILE)) if models.INDEX_FILE in recorded_files else 0
    return indexed or sum(file.bytes for name, file in recorded_files.items() if name.endswith(".safetensors"))
