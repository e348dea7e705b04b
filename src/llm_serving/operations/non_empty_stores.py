"""What buckets and registries hold: AWS deletes none that is not empty, and nobody should unasked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.aws import state_bucket as buckets
from llm_serving.aws.session import Aws
from llm_serving.settings.units import human_bytes

_COUNTED = 10_000
"""Objects that are counted; whether there are more is said."""

_IMAGES_AT_ONCE = 100
"""In one call. Source: ECR API reference, BatchDeleteImage, 2026-11."""


@dataclass(frozen=True)
class Held:
    """One bucket or registry with something in it."""

    kind: str
    """`bucket` or `repository`."""

    name: str
    said: str
    """How much, for people."""


def look(aws: Aws, outputs: Mapping[str, Any], fleet: str) -> list[Held]:
    """What lies in the storage stack's buckets and repositories, old versions too.

    Args:
        outputs: of the storage stack; empty where it is not applied.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    with clients.refusals():
        return [*_buckets(aws, outputs), *_repositories(aws, outputs, fleet)]


def empty(aws: Aws, held: Held) -> None:
    """Deletes all of it, old versions too.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    with console.step(f"Empty {held.name}: {held.said}"), clients.refusals():
        if held.kind == "bucket":
            buckets.empty(aws.client("s3"), held.name)
            return
        ecr = aws.client("ecr")
        images = _images(ecr, held.name)
        for first in range(0, len(images), _IMAGES_AT_ONCE):
            ecr.batch_delete_image(repositoryName=held.name, imageIds=images[first : first + _IMAGES_AT_ONCE])


def _buckets(aws: Aws, outputs: Mapping[str, Any]) -> Iterator[Held]:
    from botocore.exceptions import ClientError

    s3 = aws.client("s3")
    for name in filter(None, (outputs.get("model_bucket"), outputs.get("results_bucket"))):
        count = size = 0
        try:
            for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
                found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
                count += len(found)
                size += sum(one.get("Size", 0) for one in found)
                if count > _COUNTED:
                    break
        except ClientError as error:
            if clients.code(error) != "NoSuchBucket":
                raise
        if count:
            least = "at least " if count > _COUNTED else ""
            yield Held(
                "bucket", name, f"{least}{count:,} object{'s' * (count != 1)} with old versions, {human_bytes(size)}"
            )


def _repositories(aws: Aws, outputs: Mapping[str, Any], fleet: str) -> Iterator[Held]:
    from botocore.exceptions import ClientError

    ecr = aws.client("ecr")
    for image in outputs.get("repositories", {}):
        name = f"{fleet}/{image}"
        try:
            count = len(_images(ecr, name))
        except ClientError as error:
            if clients.code(error) != "RepositoryNotFoundException":
                raise
            continue
        if count:
            yield Held("repository", name, f"{count:,} image{'s' * (count != 1)}")


def _images(ecr: Any, name: str) -> list[dict[str, str]]:
    pages = ecr.get_paginator("list_images").paginate(repositoryName=name)
    return [{"imageDigest": digest} for digest in {one["imageDigest"] for page in pages for one in page["imageIds"]}]
