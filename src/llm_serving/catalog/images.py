"""Images of other projects: what is known of each, and the digest to pull it by."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import StringConstraints

from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FILE = Path(__file__).with_name("images.yaml")

COPIER = "public.ecr.aws/aws-cli/aws-cli:2.35.11"
"""Copies weights and adapters from S3."""

COLLECTOR = "public.ecr.aws/aws-observability/aws-otel-collector:v0.48.0"
"""Brings a task's metrics to CloudWatch."""

JAVA = "public.ecr.aws/docker/library/eclipse-temurin:17.0.20_8-jre-jammy"
"""Java, with `curl`, for the driver of a stream. Source: adoptium/containers, 17/jre/ubuntu/jammy/Dockerfile."""

NCCL_TESTS = "public.ecr.aws/hpc-cloud/nccl-tests:cuda13.1.2-efa1.50.0-ofiv1.21.1-ncclv2.31.2-1-testsv2.20.0"
"""Tests the network between instances."""

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class Image(PlainData):
    """One row of the table."""

    digest: Digest | None = None
    """Digest of the multi-platform image; None where no source gives it."""

    source: str
    seen_on: date
    """When the source was read."""


@functools.cache
def load() -> Mapping[str, Image]:
    """Return all images by REPOSITORY:TAG."""
    return own_yaml.read_rows(FILE, Image)


def pin(reference: str, digests: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return an image with its digest, where the catalog or `digests` (by REPOSITORY:TAG) know it; else as it is."""
    if "@" in reference:
        return reference
    row = load().get(reference)
    digest = digests.get(reference) or (row.digest if row else None)
    return f"{reference}@{digest}" if digest else reference
