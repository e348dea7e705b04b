"""Images of public registries by way of ECR's pull-through cache.

ECR imports an image when it is first pulled by a name below the cache's prefix, and serves it from the fleet's region
from then on. Names that begin with a registry's host map to names that begin with its prefix.

Source: ECR user guide, "Sync an upstream registry with an Amazon ECR private registry", 2026-11. nvcr.io is not among
the registries that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_serving.fleet.model import Fleet

DOCKER_HUB = "docker.io"
"""Host of images without one."""


@dataclass(frozen=True)
class Upstream:
    """A registry that ECR can cache."""

    host: str
    """First part of its images' names."""

    url: str
    """What ECR calls it."""

    suffix: str
    """What follows the fleet's name in the cache's prefix, three or four letters."""

    secret: Literal["docker_hub", "ghcr"] | None = None
    """Field of `image_cache` with its login; None where it asks for none."""


UPSTREAMS = (
    Upstream("public.ecr.aws", "public.ecr.aws", "ecr"),
    Upstream("registry.k8s.io", "registry.k8s.io", "k8s"),
    Upstream("quay.io", "quay.io", "quay"),
    Upstream(DOCKER_HUB, "registry-1.docker.io", "hub", "docker_hub"),
    Upstream("ghcr.io", "ghcr.io", "ghcr", "ghcr"),
)


def list_upstreams(fleet: Fleet) -> list[Upstream]:
    """Return the registries that the fleet's cache takes images from; none without a cache."""
    return [row for row in UPSTREAMS if fleet.image_cache and (not row.secret or get_secret(fleet, row))]


def get_secret(fleet: Fleet, upstream: Upstream) -> str | None:
    """Return the ARN of the secret with a registry's login."""
    return getattr(fleet.image_cache, upstream.secret) if fleet.image_cache and upstream.secret else None


def format_prefix(fleet: Fleet, upstream: Upstream) -> str:
    """Return the prefix of the cached repositories of a registry, which no other rule of the account and region has."""
    return f"{fleet.name}-{upstream.suffix}"


def build_prefixes(fleet: Fleet, registry: str) -> dict[str, str]:
    """Return the prefixes of images' names by the host that each replaces.

    Args:
        registry: host of the account's own registry.
    """
    return {row.host: f"{registry}/{format_prefix(fleet, row)}" for row in list_upstreams(fleet)}


def rewrite(image: str, prefixes: Mapping[str, str]) -> str:
    """Return an image's name in the cache; as it is where its registry has none."""
    host, path = split_host(image)
    return f"{prefixes[host]}/{path}" if host in prefixes else image


def split_host(image: str) -> tuple[str, str]:
    """Return an image's registry, and its name there."""
    host, _, path = image.partition("/")
    if path and ("." in host or ":" in host or host == "localhost"):
        return (DOCKER_HUB, path) if host in ("index.docker.io", "registry-1.docker.io") else (host, path)
    return DOCKER_HUB, image if path else f"library/{image}"
