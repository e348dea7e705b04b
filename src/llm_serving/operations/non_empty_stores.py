"""Buckets and registries that are not empty: AWS does not delete them, and a destroy asks first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_serving import console
from llm_serving.aws import session, state_bucket
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import format_bytes, format_count

_MAX_COUNTED = 10_000
"""Objects that are counted; of more, only that there are more is known."""

_IMAGES_PER_CALL = 100
"""In one call. Source: ECR API reference, BatchDeleteImage, 2026-11."""


@dataclass(frozen=True)
class NonEmptyStore:
    """One bucket or registry that is not empty."""

    kind: str
    """`bucket` or `repository`."""

    name: str
    summary: str
    """Its content, for people."""


def find(aws: AwsSession, outputs: Mapping[str, Any], fleet: str) -> list[NonEmptyStore]:
    """Return the storage stack's buckets and repositories that are not empty, old versions included.

    Args:
        outputs: of the storage stack; empty where it is not applied.
    """
    with session.translate_errors():
        return [*_find_buckets(aws, outputs), *_find_repositories(aws, outputs, fleet)]


def empty(aws: AwsSession, store: NonEmptyStore) -> None:
    """Delete all of it, old versions too."""
    with console.step(f"Empty {store.name}: {store.summary}"), session.translate_errors():
        if store.kind == "bucket":
            state_bucket.delete_all_versions(aws.client("s3"), store.name)
            return
        _delete_images(aws.client("ecr"), store.name)


def _delete_images(ecr: Any, name: str) -> None:
    """Delete images until there are none: ECR keeps those of a list, such as of several platforms, until it is gone.

    Source: ECR API reference, ImageFailure, ImageReferencedByManifestList, 2026-11.
    """
    while images := _list_images(ecr, name):
        failures = [
            failure
            for batch in session.split(images, _IMAGES_PER_CALL)
            for failure in ecr.batch_delete_image(repositoryName=name, imageIds=batch).get("failures", ())
        ]
        if len(failures) == len(images):
            raise Unavailable(f"{name}: ECR deletes none of its images: {failures[0]['failureReason']}")


def _find_buckets(aws: AwsSession, outputs: Mapping[str, Any]) -> Iterator[NonEmptyStore]:
    s3 = aws.client("s3")
    for name in filter(None, (outputs.get("model_bucket"), outputs.get("results_bucket"))):
        count = size = 0
        with session.ignore_errors("NoSuchBucket"):
            for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
                versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
                count += len(versions)
                size += sum(version.get("Size", 0) for version in versions)
                if count > _MAX_COUNTED:
                    break
        if count:
            prefix = "at least " if count > _MAX_COUNTED else ""
            yield NonEmptyStore(
                "bucket", name, f"{prefix}{format_count(count, 'object')} with old versions, {format_bytes(size)}"
            )


def _find_repositories(aws: AwsSession, outputs: Mapping[str, Any], fleet: str) -> Iterator[NonEmptyStore]:
    ecr = aws.client("ecr")
    for image in outputs.get("repositories", {}):
        name = f"{fleet}/{image}"
        with session.ignore_errors("RepositoryNotFoundException"):
            if count := len(_list_images(ecr, name)):
                yield NonEmptyStore("repository", name, format_count(count, "image"))


def _list_images(ecr: Any, name: str) -> list[dict[str, str]]:
    images = session.list_all(ecr, "list_images", "imageIds", repositoryName=name)
    return [{"imageDigest": digest} for digest in {image["imageDigest"] for image in images}]
