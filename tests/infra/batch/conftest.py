"""Batches of two shapes on ECS and on EKS, rendered and synthesized once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import deployments
from tests.infra.shapes import Shapes, all_stacks, fleet, manifests, stacks, synth_folder

__all__ = ("all_stacks", "fleet", "manifests", "stacks", "synth_folder")  # fixtures of this folder's tests

FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
alarms_to: arn:aws:sns:us-west-2:123456789012:on-call
storage:
  model_buckets:
    bucket: my-catalog
    key: arn:aws:kms:us-west-2:210987654321:key/12345678-1234-1234-1234-123456789012
pools:
  general: {types: g6e.2xlarge, size: 0..8, buy: [spot, on-demand], orchestrator: ecs}
  cores: {types: [m7i.xlarge, m7i.2xlarge], size: 0..8, buy: [spot, on-demand], taints: [team=ads:NoSchedule], orchestrator: eks}
add_ons: {schedulers: on}
"""

_CATALOG = """\
kind: batch
pattern: offline-batch
endpoint: {deployment: chat}
teams:
  search: {weight: 30}
  ads: {weight: 20, priority: low}
workers: {count: 6}
limits: {takeover: 45s}
inputs: s3://my-catalog/exports
schedules:
  nightly:
    at: cron(0 2 * * ? *)
    time_zone: America/Los_Angeles
    file: all/products.jsonl
    team: ads
results: {parquet: on}
sample: {model: chat}
"""

_OUTSIDE = """\
kind: batch
pattern: offline-batch
endpoint:
  url: https://llm.example.com/v1
  api_key: {secret: llm/keys, field: batch}
workers: {spot: off}
api: {clients: [10.0.1.0/24, sg-0123456789abcdef0]}
results:
  cache:
    url: rediss://cache.example.com
    login:
      secret: arn:aws:secretsmanager:us-west-2:210987654321:secret:cache/login-AbCdEf
      key: arn:aws:kms:us-west-2:210987654321:key/87654321-4321-4321-4321-210987654321
sample: {model: chat}
"""

ON_ECS = {"catalog": _CATALOG, "outside": _OUTSIDE}
ON_EKS = {
    "pods": _CATALOG.replace("{count: 6}", "{count: 6, pool: cores}"),
    "pods-outside": _OUTSIDE.replace("sg-0123456789abcdef0", "ads"),
}
SHAPES = {**ON_ECS, **ON_EKS}
"""blueprint.yaml by the deployment's name."""


def write_blueprint(folder: Path, shape: str) -> Path:
    """The folder of a blueprint of that shape, with the pattern's own templates."""
    return deployments.write_blueprint(folder, shape, SHAPES[shape])


@pytest.fixture(scope="session")
def shapes() -> Shapes:
    targets = {shape: "ecs" if shape in ON_ECS else "eks" for shape in SHAPES}
    return Shapes("batch", FLEET, targets, write_blueprint)
