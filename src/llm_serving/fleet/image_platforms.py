"""Platforms that the fleet's own images are built for: those of what runs them."""

from __future__ import annotations

from llm_serving.fleet.groups import resolve_pool
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.system_group import build_system_group

_PLATFORMS = {"x86_64": "linux/amd64", "arm64": "linux/arm64"}

_FARGATE = "x86_64"
"""Architecture of the tasks on Fargate, as their task definitions have it."""


def list_platforms(fleet: Fleet) -> list[str]:
    """Return the platforms of the pools' instances, of the system's nodes on EKS and of Fargate on ECS."""
    architectures: set[str] = {group.arch for name in fleet.pools for group in resolve_pool(fleet, name)}
    if fleet.creates_eks:
        architectures.add(build_system_group(fleet).arch)
    if "ecs" in fleet.orchestrators:
        architectures.add(_FARGATE)
    return sorted(_PLATFORMS[architecture] for architecture in architectures)
