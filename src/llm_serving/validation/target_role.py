"""Replicas that a load reaches."""

from __future__ import annotations

from llm_serving.services.service import ResolvedData
from llm_serving.settings.units import Bounds


class TargetRole(ResolvedData):
    """Replicas behind the URL that count requests."""

    name: str
    replicas: Bounds
    instances: tuple[str, ...]
    """Names of its processes, where the target names no replicas itself."""

    answers: bool = True
    """Whether clients get its answers: prefill only hands its cache on."""

    accelerators: str = ""
    """Of each replica, where other roles answer the same requests on unlike ones; else empty."""

    weight: int = 1
    """Requests that the router gives each replica, for one that it gives to a replica of weight 1."""
