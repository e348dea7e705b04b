"""Uploads a deployment's weights to the bucket that its replicas stream from, and checks that they are complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from llm_serving.aws import s3
from llm_serving.catalog import gguf, pipelines, safetensors
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.models import INDEX_FILE
from llm_serving.hub.files import OnProgress
from llm_serving.services import models
from llm_serving.services.deployment import Deployment
from llm_serving.services.environment import Environment
from llm_serving.services.models import LoadedModel, Weights
from llm_serving.settings.errors import Unavailable, quote_value
from llm_serving.targets.deployment_dir import DeploymentDir


def upload_models(directory: DeploymentDir, deployment: Deployment, on_progress: OnProgress | None = None) -> None:
    """Upload the models to the model bucket, without what it has already.

    Weights at an s3://BUCKET/PREFIX of the user's own stay as they are.

    Raises:
        Unavailable: S3 or the hub does not answer or refuses, or the disk is full.
        InputError: the hub has no such model.
    """
    for loaded_model in deployment.loaded_models:
        _upload_model(directory, deployment.environment, loaded_model, on_progress)


def _upload_model(
    directory: DeploymentDir, environment: Environment, loaded_model: LoadedModel, on_progress: OnProgress | None
) -> None:
    from llm_serving.hub import make_gguf, make_tiny, upload

    name: Any = loaded_model.model
    uri, weights_format = loaded_model.weights.uri, loaded_model.weights.format
    if uri != f"s3://{environment.bucket}/{models.build_bucket_prefix(name, weights_format)}/":
        return
    access: dict[str, Any] = {"endpoint": environment.s3_endpoint, "env": environment.env}
    if name not in make_tiny.SIZES and not upload.is_folder(name):
        revision, staging = loaded_model.weights.revision or "main", directory.data / "download"
        upload.copy_from_hub(name, uri, **access, revision=revision, staging=staging, on_progress=on_progress)
        return
    folder = directory.data / "model" / name
    if name not in make_tiny.SIZES:
        folder = Path(name).expanduser()
    elif weights_format == "gguf":
        folder = make_gguf.make(name, folder.with_suffix(gguf.SUFFIX), on_progress=on_progress)
    else:
        folder = make_tiny.make(name, folder, on_progress)
    upload.upload(folder, uri, **access, on_progress=on_progress)


def check(deployment: Deployment) -> int:
    """Check that each model's URI has all of its files, complete; return the bytes of their weights.

    The engine fails without them too, but half a minute later and with a message about its internals.

    Raises:
        Unavailable: they are missing, incomplete, or not readable.
    """
    read_text = {served_model.weights.uri for served_model in deployment.served_models}
    return sum(
        _check_model(deployment.environment, loaded_model.weights, reads_text=loaded_model.weights.uri in read_text)
        for loaded_model in deployment.loaded_models
    )


def _check_model(environment: Environment, weights: Weights, *, reads_text: bool) -> int:
    bucket = s3.Bucket(s3.parse_location(weights.uri), endpoint=environment.s3_endpoint, env=environment.env)
    checks = {"safetensors": _check_safetensors, "gguf": _check_gguf, "diffusers": _check_pipeline}
    _check_revision(bucket, weights)
    sizes = bucket.list_sizes()
    weight_bytes = checks[weights.format](bucket, weights.uri, sizes)
    if reads_text and weights.format == "safetensors":
        _check_tokenizer(weights.uri, sizes)
    return weight_bytes


def _check_tokenizer(uri: str, sizes: Mapping[str, int]) -> None:
    """Require a tokenizer of a model that clients talk to; a draft model takes that model's."""
    if not safetensors.has_tokenizer(sizes):
        raise Unavailable(
            f"{uri}: no tokenizer: none of {', '.join(safetensors.TOKENIZER_FILES)} is there, and the engine cannot "
            "read text. Fix: put the tokenizer's files into the model's folder, and copy it again."
        )


def _check_revision(bucket: s3.Bucket, weights: Weights) -> None:
    """Require a copy of the revision that the blueprint names, if it names one."""
    from llm_serving.hub import source

    if not weights.revision:
        return
    record = source.find(lambda: bucket)
    if record is None or not record.is_revision(weights.revision):
        copy = f"a copy of {record.source} at commit {(record.commit or 'none')[:12]}" if record else "no recorded copy"
        raise Unavailable(
            f"{weights.uri}: revision: {quote_value(weights.revision)}: {copy} is there. "
            f"Fix: `blueprint model copy MODEL --to {weights.uri} --revision {weights.revision}`."
        )


def _check_gguf(bucket: s3.Bucket, uri: str, sizes: Mapping[str, int]) -> int:
    """Require that the one file of a model is whole, and of an architecture that llama.cpp runs."""
    if gguf.FILE not in sizes:
        raise Unavailable(f"{uri}: no model: {gguf.FILE} is missing. Fix: upload it with `blueprint model copy`.")
    try:
        header = gguf.parse_bytes(bucket.read(gguf.FILE, 0, gguf.MAX_HEADER_BYTES), f"{uri}{gguf.FILE}")
        gguf.check_whole(header, sizes[gguf.FILE], f"{uri}{gguf.FILE}")
        gguf.check_known(header, f"{uri}{gguf.FILE}")
    except ModelError as error:
        raise Unavailable(str(error)) from None
    return sizes[gguf.FILE]


def _check_pipeline(bucket: s3.Bucket, uri: str, sizes: Mapping[str, int]) -> int:
    """Require that each part of a pipeline is there, with whole files of weights."""
    if pipelines.INDEX_FILE not in sizes:
        reason = f"{pipelines.INDEX_FILE} is missing"
        raise Unavailable(f"{uri}: no model: {reason}. Fix: upload it with `blueprint model copy`.")
    from llm_serving.hub import read

    index = read.read_s3_json(bucket, pipelines.INDEX_FILE)
    missing_parts = pipelines.list_missing(index, sizes)
    if missing_parts:
        raise Unavailable(
            f"{uri}: {pipelines.INDEX_FILE} names parts that are not there, {missing_parts[0]} first. "
            "Fix: upload the model again with `blueprint model copy`."
        )
    return _check_whole(bucket, uri, {name: sizes[name] for name in pipelines.select_names(sizes, index)})


def _check_safetensors(bucket: s3.Bucket, uri: str, sizes: Mapping[str, int]) -> int:
    files = {name: size for name, size in sizes.items() if name.endswith(safetensors.SUFFIX)}
    if "config.json" not in sizes or not files:
        missing_file = "safetensors" if "config.json" in sizes else "config.json"
        raise Unavailable(f"{uri}: no model: {missing_file} is missing. Fix: upload it with `blueprint model copy`.")
    total = _check_whole(bucket, uri, files)
    _check_index(bucket, uri, sizes)
    return total


def _check_whole(bucket: s3.Bucket, uri: str, sizes: Mapping[str, int]) -> int:
    """Require that files of weights are whole; return their bytes."""
    files = {name: size for name, size in sizes.items() if name.endswith(safetensors.SUFFIX)}
    for name, size in files.items():
        expected = safetensors.compute_file_bytes(partial(bucket.read, name), size)
        if size != expected:
            damage = safetensors.describe_damage(size, expected)
            raise Unavailable(f"{uri}{name}: {damage}. Fix: upload it again with `blueprint model copy`.")
    return sum(files.values())


def _check_index(bucket: s3.Bucket, uri: str, sizes: Mapping[str, int]) -> None:
    if INDEX_FILE not in sizes:
        return
    try:
        index = json.loads(bucket.read(INDEX_FILE, 0, sizes[INDEX_FILE]))
    except ValueError:
        raise Unavailable(f"{uri}{INDEX_FILE}: it is not JSON. Fix: upload the model again.") from None
    missing_files = safetensors.list_missing(index, sizes)
    if missing_files:
        raise Unavailable(
            f"{uri}: {INDEX_FILE} names files that are not there, {missing_files[0]} first. "
            "Fix: upload the model again with `blueprint model copy`."
        )
