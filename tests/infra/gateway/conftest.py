"""A gateway on ECS and one on EKS, rendered and synthesized once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra import deployments
from tests.infra.shapes import Shapes, all_stacks, fleet, manifests, stacks, synth_folder

__all__ = ("all_stacks", "fleet", "manifests", "stacks", "synth_folder")  # fixtures of this folder's tests

CERTIFICATE = "arn:aws:acm:us-west-2:123456789012:certificate/12345678-1234-1234-1234-123456789012"

FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
alarms_to: arn:aws:sns:us-west-2:123456789012:on-call
pools:
  tasks: {types: g6e.2xlarge, size: 0..8, orchestrator: ecs}
  pods: {types: g6e.2xlarge, size: 0..8, orchestrator: eks}
"""

_CHAT = """\
pattern: aggregated
model: Qwen/Qwen3-0.6B
roles: {worker: {pool: pods, replicas: 2}}
traffic: {users: 4, input_tokens: 100..200, output_tokens: 10}
slo: {ttft_ms: {p95: 1000}}
"""
"""The deployment that both name; on EKS its price and its metrics are known."""

_CLIENTS = ", clients: [10.8.0.0/16, 10.9.1.0/24]"

_GATEWAY = f"""\
kind: gateway
pattern: gateway
teams:
  search: {{models: chat, budget: {{day: 50 USD}}}}
routes:
  chat:
    deployments:
      - deployment: chat
      - {{url: "https://llm.example.com:8443/v1", model: tiny}}
      - bedrock: us.amazon.nova-lite-v1:0
      - bedrock: amazon.nova-micro-v1:0
    price: {{input: 0.5 USD, output: 1.5 USD}}
load_balancer: {{certificate: {CERTIFICATE}{_CLIENTS}}}
"""

_PRICE = "    price:"
_CACHE = '    cache: {semantic: {embedding: {url: "https://llm.example.com:8443/v1", model: tiny}}}\n'

SHAPES = {
    "edge": _GATEWAY,
    "pods": f"{_GATEWAY.replace(_PRICE, _CACHE + _PRICE).replace(_CLIENTS, '')}aws: {{database_type: db.r7g.large, database_storage: 100Gi, backup_days: 35, replicas: 3}}\n"
    "audit: {export: s3://acme-audit/gateways/pods}\n"
    'guardrails: {bedrock: {id: gr4a1b2c3d4e, version: "1"}}\n',
}
"""blueprint.yaml by the deployment's name."""


def write_blueprint(folder: Path, shape: str) -> Path:
    """The folder of a blueprint of that shape, with the pattern's own templates, beside the deployment that it names."""
    if not (folder / "chat").exists():
        deployments.write_blueprint(folder, "chat", _CHAT)
    return deployments.write_blueprint(folder, shape, SHAPES[shape])


@pytest.fixture(scope="session")
def shapes() -> Shapes:
    return Shapes("gateway", FLEET, {"edge": "ecs", "pods": "eks"}, write_blueprint)
