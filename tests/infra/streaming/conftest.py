"""Streams of two shapes, rendered and synthesized once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import deployments
from tests.infra.shapes import Shapes, all_stacks, fleet, manifests, stacks, synth_folder

__all__ = ("all_stacks", "fleet", "manifests", "stacks", "synth_folder")  # fixtures of this folder's tests

FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: ecs
alarms_to: arn:aws:sns:us-west-2:123456789012:on-call
pools:
  general: {types: g6e.2xlarge, size: 0..8, buy: [spot, on-demand]}
"""

_SHOP = """\
kind: streaming
pattern: near-real-time
endpoint: {deployment: chat}
"""

_OUTSIDE = """\
kind: streaming
pattern: near-real-time
endpoint: {url: "https://llm.example.com:8443/v1", model: tiny, api_key: {secret: llm/keys, field: stream}}
checkpoint: 10s
logs: json
parquet: true
partitions: 12
aws: {brokers: 12, broker_type: kafka.m7g.xlarge, broker_storage: 1Ti, cache_type: cache.r7g.large, parallelism: 12}
slo: {dead_events: 5%}
"""

SHAPES = {"shop": _SHOP, "outside": _OUTSIDE}
"""blueprint.yaml by the deployment's name."""


def write_blueprint(folder: Path, shape: str) -> Path:
    """The folder of a blueprint of that shape, with the pattern's own templates."""
    return deployments.write_blueprint(folder, shape, SHAPES[shape])


@pytest.fixture(scope="session")
def shapes() -> Shapes:
    return Shapes("streaming", FLEET, dict.fromkeys(SHAPES, "ecs"), write_blueprint)
