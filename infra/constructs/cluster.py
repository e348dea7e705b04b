"""A cluster of either orchestrator, as its stack and constructs pass it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.bindings import aws


@dataclass(frozen=True)
class Cluster:
    """The cluster and its key, as resources."""

    resource: Any
    key: aws.kms_key.KmsKey
