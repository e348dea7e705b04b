"""Puts a deployment's weights where its replicas stream them from, and checks that all of them are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.workloads.serving import resolve
from llm_serving.workloads.serving.deployment import Deployment, Place, Served

if TYPE_CHECKING:
    from llm_serving.aws import s3

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class _Where(TypedDict):
    endpoint: str | None
    environment: Mapping[str, str]


_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header; the header says where each tensor ends."""

_HEADER_LIMIT = 100_000_000
"""Longest header that the format allows."""


def put(run: Run, deployment: Deployment, progress: Progress = lambda _done, _all: None) -> None:
    """Makes or finds the model and puts it into the model bucket; sends nothing that is there already.

    A blueprint that names its own s3://BUCKET/PREFIX has its weights there: nothing is put.

    Raises:
        Unavailable: S3 or the hub does not answer or refuses, or the disk is full.
        InputError: the hub has no such model.
    """
    for served in deployment.models:
        _put_one(run, deployment.place, served, progress)


def _put_one(run: Run, place: Place, served: Served, progress: Progress) -> None:
    from llm_serving.hub import make_tiny, upload

    name, uri = served.model, served.weights.uri
    if uri != f"s3://{place.bucket}/{resolve.prefix_of(name)}/":
        return
    if name in make_tiny.SIZES:
        folder = make_tiny.make(name, run.data / "model" / name, progress)
        _send(folder, place, uri, progress)
    elif upload.is_folder(name):
        _send(Path(name).expanduser(), place, uri, progress)
    else:
        where: _Where = {"endpoint": place.s3_endpoint, "environment": place.environment}
        upload.from_hub(name, uri, **where, staging=run.data / "download", progress=progress)


def _send(folder: Path, place: Place, uri: str, progress: Progress) -> None:
    from llm_serving.hub import upload

    where: _Where = {"endpoint": place.s3_endpoint, "environment": place.environment}
    upload.upload(folder, uri, **where, progress=progress)


def check(deployment: Deployment) -> int:
    """Checks that config.json and whole safetensors files lie at each model's URI; returns the bytes of the latter.

    The engine would find out as well, but half a minute later and in words about its own insides.

    Raises:
        Unavailable: they are not there, cut short, or must not be read.
    """
    return sum(_check_one(deployment.place, served.weights.uri) for served in deployment.models)


def _check_one(place: Place, uri: str) -> int:
    from llm_serving.aws import s3

    bucket = s3.Bucket(s3.place(uri), endpoint=place.s3_endpoint, environment=place.environment)
    sizes = bucket.sizes()
    files = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    if "config.json" not in sizes or not files:
        missing = "safetensors" if "config.json" in sizes else "config.json"
        raise Unavailable(f"{uri}: there is no model there, no {missing}; put it there with `blueprint model copy`")
    for name, size in files.items():
        whole = _whole(bucket, name, size)
        if size != whole:
            speaks = "and no header of a safetensors file" if whole is None else f"and its header speaks of {whole}"
            raise Unavailable(
                f"{uri}{name}: it is cut short or damaged: {size} bytes, {speaks}; "
                "put it there again with `blueprint model copy`"
            )
    return sum(files.values())


def _whole(bucket: s3.Bucket, name: str, size: int) -> int | None:
    """How many bytes a safetensors file has by its own header; None where that cannot be read."""
    length = int.from_bytes(bucket.read(name, 0, _LENGTH_BYTES), "little") if size > _LENGTH_BYTES else 0
    if not 0 < length <= min(_HEADER_LIMIT, size):
        return None
    try:
        header = json.loads(bucket.read(name, _LENGTH_BYTES, length))
    except ValueError:
        return None
    ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    return _LENGTH_BYTES + length + max(ends, default=0)
