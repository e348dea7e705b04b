"""Uploads a deployment's weights to the bucket that its replicas stream from, and checks that they are complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.workloads.environment import Environment
from llm_serving.workloads.serving import resolve
from llm_serving.workloads.serving.deployment import Deployment, ServedModel

if TYPE_CHECKING:
    from llm_serving.aws import s3

OnProgress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


class _S3Access(TypedDict):
    endpoint: str | None
    env: Mapping[str, str]


_HEADER_LENGTH_BYTES = 8
"""Bytes of the header's length, with which a safetensors file begins; the header has the end of each tensor."""

_MAX_HEADER_BYTES = 100_000_000
"""Longest header that the format allows, in bytes."""


def upload_models(
    directory: DeploymentDir, deployment: Deployment, on_progress: OnProgress = lambda _done, _all: None
) -> None:
    """Upload the models to the model bucket, without what it has already.

    Weights at an s3://BUCKET/PREFIX of the user's own stay as they are.

    Raises:
        Unavailable: S3 or the hub does not answer or refuses, or the disk is full.
        InputError: the hub has no such model.
    """
    for served_model in deployment.served_models:
        _upload_model(directory, deployment.environment, served_model, on_progress)


def _upload_model(
    directory: DeploymentDir, environment: Environment, served_model: ServedModel, on_progress: OnProgress
) -> None:
    from llm_serving.hub import make_tiny, upload

    name, uri = served_model.model, served_model.weights.uri
    if uri != f"s3://{environment.bucket}/{resolve.build_bucket_prefix(name)}/":
        return
    if name in make_tiny.SIZES:
        folder = make_tiny.make(name, directory.data / "model" / name, on_progress)
        _upload_folder(folder, environment, uri, on_progress)
    elif upload.is_folder(name):
        _upload_folder(Path(name).expanduser(), environment, uri, on_progress)
    else:
        access: _S3Access = {"endpoint": environment.s3_endpoint, "env": environment.env}
        upload.copy_from_hub(name, uri, **access, staging=directory.data / "download", on_progress=on_progress)


def _upload_folder(folder: Path, environment: Environment, uri: str, on_progress: OnProgress) -> None:
    from llm_serving.hub import upload

    access: _S3Access = {"endpoint": environment.s3_endpoint, "env": environment.env}
    upload.upload(folder, uri, **access, on_progress=on_progress)


def check(deployment: Deployment) -> int:
    """Check that each model's URI has config.json and complete safetensors files; return the bytes of the latter.

    The engine fails without them too, but half a minute later and with a message about its internals.

    Raises:
        Unavailable: they are missing, incomplete, or not readable.
    """
    return sum(
        _check_model(deployment.environment, served_model.weights.uri) for served_model in deployment.served_models
    )


def _check_model(environment: Environment, uri: str) -> int:
    from llm_serving.aws import s3

    bucket = s3.Bucket(s3.parse_location(uri), endpoint=environment.s3_endpoint, env=environment.env)
    sizes = bucket.list_sizes()
    files = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    if "config.json" not in sizes or not files:
        missing = "safetensors" if "config.json" in sizes else "config.json"
        raise Unavailable(f"{uri}: no model: {missing} is missing. Fix: upload it with `blueprint model copy`.")
    for name, size in files.items():
        expected_size = _read_expected_size(bucket, name, size)
        if size != expected_size:
            expected = "a safetensors header" if expected_size is None else f"{expected_size} by its header"
            raise Unavailable(
                f"{uri}{name}: incomplete or damaged: {size} bytes, expected {expected}. "
                "Fix: upload it again with `blueprint model copy`."
            )
    return sum(files.values())


def _read_expected_size(bucket: s3.Bucket, name: str, size: int) -> int | None:
    """Read the size of a safetensors file from its header, in bytes; None if that cannot be read."""
    length = int.from_bytes(bucket.read(name, 0, _HEADER_LENGTH_BYTES), "little") if size > _HEADER_LENGTH_BYTES else 0
    if not 0 < length <= min(_MAX_HEADER_BYTES, size):
        return None
    try:
        header = json.loads(bucket.read(name, _HEADER_LENGTH_BYTES, length))
    except ValueError:
        return None
    end_offsets = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    return _HEADER_LENGTH_BYTES + length + max(end_offsets, default=0)
