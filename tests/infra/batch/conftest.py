"""Batches on ECS of two shapes, rendered and synthesized once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_serving.fleet import loading
from llm_serving.targets import planning

Stack = dict[str, Any]

ROOT = Path(__file__).parents[3]

FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: ecs
alarms_to: arn:aws:sns:us-west-2:123456789012:on-call
storage:
  model_buckets:
    bucket: my-catalogue
    key: arn:aws:kms:us-west-2:210987654321:key/12345678-1234-1234-1234-123456789012
pools:
  general: {types: g6e.2xlarge, size: 0..8, buy: [spot, on-demand]}
"""

SHAPES = {
    "catalogue": """\
kind: batch
pattern: offline-batch
endpoint: {deployment: chat}
teams:
  search: {weight: 30}
  ads: {weight: 20, priority: low}
workers: {count: 6}
limits: {takeover: 45s}
inputs: s3://my-catalogue/exports
schedules:
  nightly:
    at: cron(0 2 * * ? *)
    file: all/products.jsonl
    team: ads
results: {parquet: on}
sample: {model: chat}
""",
    "outside": """\
kind: batch
pattern: offline-batch
endpoint:
  url: https://llm.example.com/v1
  api_key: {secret: llm/keys, field: batch}
workers: {spot: off}
results:
  cache:
    url: rediss://cache.example.com
    login:
      secret: arn:aws:secretsmanager:us-west-2:210987654321:secret:cache/login-AbCdEf
      key: arn:aws:kms:us-west-2:210987654321:key/87654321-4321-4321-4321-210987654321
sample: {model: chat}
""",
}
"""blueprint.yaml by the deployment's name."""


def write_blueprint(folder: Path, shape: str) -> Path:
    """The folder of a blueprint of that shape, with the pattern's own templates."""
    blueprint_folder = folder / shape
    shutil.copytree(ROOT / "blueprints" / "offline-batch", blueprint_folder)
    (blueprint_folder / "blueprint.yaml").write_text(SHAPES[shape])
    return blueprint_folder


@pytest.fixture(scope="session")
def batch_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET)
    return file


@pytest.fixture(scope="session")
def batch_manifests(batch_fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each shape is rendered to."""
    folder = tmp_path_factory.mktemp("batch")
    return {
        shape: planning.write_rendered(
            planning.plan(
                write_blueprint(folder, shape), batch_fleet, target="ecs", root=folder, account="123456789012"
            )
        )
        for shape in SHAPES
    }


@pytest.fixture(scope="session")
def batch_folder(batch_manifests: dict[str, Path], batch_fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stacks/batch-SHAPE/cdk.tf.json."""
    from infra import main

    out = tmp_path_factory.mktemp("synthesized")
    names = [f"batch-{shape}" for shape in SHAPES]
    main.synthesize(loading.load_fleet(batch_fleet), out, list(batch_manifests.values()), stack_names=names)
    return out


@pytest.fixture(scope="session")
def batch_stacks(batch_folder: Path) -> dict[str, Stack]:
    """Each synthesized stack by the deployment's name."""
    return {shape: json.loads((batch_folder / f"stacks/batch-{shape}/cdk.tf.json").read_text()) for shape in SHAPES}
