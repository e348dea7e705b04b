"""Deployments on ECS of every shape, rendered and synthesized once, in this one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import deployments
from tests.infra.shapes import Shapes, all_stacks, fleet, manifests, stacks, synth_folder

__all__ = ("all_stacks", "fleet", "manifests", "stacks", "synth_folder")  # fixtures of this folder's tests

CERTIFICATE = "arn:aws:acm:us-west-2:123456789012:certificate/12345678-1234-1234-1234-123456789012"
WEB_ACL = "arn:aws:wafv2:us-west-2:123456789012:regional/webacl/api/12345678-1234-1234-1234-123456789012"

FLEET = """\
name: fabric
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: ecs
alarms_to: arn:aws:sns:us-west-2:123456789012:on-call
add_ons: {observability: on}
image_cache: {}
storage:
  model_buckets:
    bucket: my-adapters
    key: arn:aws:kms:us-west-2:210987654321:key/12345678-1234-1234-1234-123456789012
pools:
  general: {types: [g6e.2xlarge, g6e.12xlarge], size: 0..8, buy: [spot, on-demand]}
  alone: {types: g6e.2xlarge, zones: us-west-2a, size: 0..2}
  fast: {types: p5en.48xlarge, zones: us-west-2a, size: 0..6, efa: on}
"""

_TRAFFIC = """\
traffic: {users: 4, input_tokens: 100..200, output_tokens: 10}
slo: {ttft_ms: {p95: 1000}, errors: 2%}
"""

SHAPES = {
    "aggregated": (
        "pattern: aggregated\nmodel: Qwen/Qwen3-0.6B\n"
        "roles:\n"
        "  worker:\n"
        "    pool: general\n"
        "    replicas: 2..6\n"
        "    scale: {queue: 4, cool_down: 10min}\n"
        "    adapters: {sql: s3://my-adapters/lora/sql}\n"
        "  router: {policy: load-aware, replicas: 2}\n"
        f"load_balancer: {{certificate: {CERTIFICATE}, web_acl: {WEB_ACL}, access_logs: s3://acme-logs/chat}}\n"
    ),
    "single": (
        "pattern: aggregated\nmodel: Qwen/Qwen3-0.6B\n"
        "roles: {worker: {pool: alone, replicas: 0..2}, router: {policy: kv-aware, request_timeout: 2h}}\ntuning: {compile_cache: node}\n"
    ),
    "disaggregated": (
        "pattern: disaggregated\nmodel: Qwen/Qwen3-32B\n"
        "roles:\n"
        "  prefill: {pool: fast, replicas: 0..2, accelerators: 4}\n"
        "  decode: {pool: fast, replicas: 1..3, accelerators: 4, scale: {kv_usage: 80%, peaks: {at: 22:30..06:00, replicas: 2}, time_zone: Europe/Berlin}}\n"
    ),
    "distributed": (
        "pattern: distributed\nmodel: Qwen/Qwen3-32B\n"
        "roles: {worker: {pool: fast, replicas: 2, accelerators: 16, pipeline: 2}}\n"
    ),
    "wide": (
        "pattern: disaggregated\nmodel: Qwen/Qwen3-235B-A22B-FP8\n"
        "roles:\n"
        "  prefill: {pool: fast, accelerators: 16, data: 16, expert: on}\n"
        "  decode: {pool: fast, accelerators: 32, data: 32, expert: on}\n"
    ),
    "orchestrated": (
        "pattern: disaggregated\nengine: tensorrt-llm\nmodel: Qwen/Qwen3-32B\n"
        "roles:\n"
        "  prefill: {pool: general, replicas: 2, accelerators: 4}\n"
        "  decode: {pool: general, replicas: 3, accelerators: 4}\n"
    ),
    "multi-model": (
        "pattern: multi-model\n"
        "traces: http://collector.internal:4318/v1/traces\n"
        "roles:\n"
        "  models:\n"
        "    small: {model: Qwen/Qwen3-0.6B, pool: alone}\n"
        "    large: {model: Qwen/Qwen3-8B, pool: general, replicas: 2, gives_way: on}\n"
    ),
    "shared": (
        "pattern: multi-model\n"
        "roles:\n"
        "  models:\n"
        "    one: {model: Qwen/Qwen3-1.7B, pool: general, replicas: 1..3, scale: {queue: 8}}\n"
        "    two: {model: Qwen/Qwen3-0.6B, shares: one}\n"
    ),
}
"""Rest of blueprint.yaml by the deployment's name."""


def write_blueprint(folder: Path, shape: str, text: str | None = None) -> Path:
    """The folder of a blueprint of that shape, with the pattern's own templates."""
    return deployments.write_blueprint(folder, shape, (text or SHAPES[shape]) + _TRAFFIC)


@pytest.fixture(scope="session")
def shapes() -> Shapes:
    return Shapes("serving", FLEET, dict.fromkeys(SHAPES, "ecs"), write_blueprint)
