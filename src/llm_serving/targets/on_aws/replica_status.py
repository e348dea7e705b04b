"""One running part of a deployment on AWS: a pod on EKS, a task on ECS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaStatus:
    """One row of `blueprint status`."""

    name: str
    role: str
    state: str
    """`ready`, or why it is not ready, in the orchestrator's words."""

    restarts: int
    machine: str
    """The node or container instance; empty where it has none yet."""
