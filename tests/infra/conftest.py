"""Fleets of every shape, synthesized once, in this one process: CDKTF is heavy to start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

Stack = dict[str, Any]

_EXAMPLES = Path(__file__).parents[2] / "infra/fleets"

_HEAD = """\
name: demo
region: us-west-2
pools:
  general: {types: g6e.2xlarge, size: 0..8}
"""

DOCKER_HUB = "arn:aws:secretsmanager:us-west-2:123456789012:secret:ecr-pullthroughcache/docker-hub-AbCdEf"

FLEETS = {
    "eks": "zones: [us-west-2a, us-west-2b, us-west-2c]\ntags: {team: serving}\n",
    "ecs": ("zones: [us-west-2a]\norchestrator: ecs\nalarms_to: arn:aws:sns:us-west-2:123456789012:on-call\n"),
    "closed": "zones: [us-west-2a, us-west-2d]\nnetwork: {cidr: 10.32.0.0/20, nat: false, flow_logs: 365d, endpoint_access: o-a1b2c3d4e5}\n"
    f"image_cache: {{docker_hub: {DOCKER_HUB}}}\n",
    "existing": (
        "zones: [us-west-2a, us-west-2b]\n"
        "network:\n"
        "  vpc: vpc-0123456789abcdef0\n"
        "  private_subnets: [subnet-0aaaaaaaaaaaaaaaa, subnet-0bbbbbbbbbbbbbbbb]\n"
        "logs: {to: cloudwatch, keep: 30d}\n"
    ),
    "cluster": (
        "zones: [us-west-2a, us-west-2b]\n"
        "network: {vpc: vpc-0123456789abcdef0, private_subnets: [subnet-0aaaaaaaaaaaaaaaa, subnet-0bbbbbbbbbbbbbbbb]}\n"
        "eks: {cluster: platform}\n"
        "alarms_to: arn:aws:sns:us-west-2:123456789012:on-call\n"
    ),
    "s3": (
        "  grouped: {types: g6e.2xlarge, size: 1, by: node-groups, images: cached}\n"
        "  quick: {types: g6e.2xlarge, size: 0..2, by: karpenter, images: soci}\n"
        "zones: [us-west-2a, us-west-2b]\n"
        "orchestrator: both\n"
        "state: s3://my-states/serving/prod\n"
        "permissions_boundary: arn:aws:iam::123456789012:policy/platform/boundary\n"
        "storage: {repositories: [vllm, batch-worker], results_kept: 7d}\n"
        'eks: {version: "1.34", applied_by: "arn:aws:iam::123456789012:role/apply", admins: "arn:aws:iam::123456789012:role/platform"}\n'
        "ecs: {container_insights: enhanced}\n"
        "add_ons: {operators: on, observability: on}\n"
    ),
    "machines": (
        "  block: {types: p5en.48xlarge, zones: us-west-2c, buy: {capacity-block: cr-0123456789abcdef0}, size: 2, efa: on}\n"
        "  wide: {types: p5.48xlarge, zones: us-west-2a, size: 2, efa: on, placement_group: cluster}\n"
        "  odcr: {types: g6e.12xlarge, zones: us-west-2a, size: 1, buy: [{reservation: cr-0123456789abcdef1}, spot], disk: gp3}\n"
        "  held: {types: p5.48xlarge, zones: us-west-2b, size: 1..6, buy: [{reserve: 2}, on-demand], efa: on, placement_group: cluster}\n"
        "  rocket: {types: g6e.2xlarge, size: 3..9, os: bottlerocket, taints: [team=ads:NoExecute], ami: ami-0123456789abcdef0}\n"
        "  pulled: {types: g6e.2xlarge, size: 1, images: {snapshot: snap-0123456789abcdef0}}\n"
        "zones: [us-west-2a, us-west-2b, us-west-2c]\n"
        "alarms_to: arn:aws:sns:us-west-2:123456789012:on-call\n"
        "eks:\n"
        '  version: "1.36"\n'
        "  public_from: [203.0.113.0/24]\n"
        "  admins: [arn:aws:iam::123456789012:role/platform, arn:aws:iam::123456789012:role/deployer]\n"
        "  csi_drivers: [efs, fsx, s3]\n"
        "  private_from: [10.8.0.0/16, sg-0123456789abcdef0]\n"
        "network: {cidr: 172.20.0.0/16, endpoint_access: account}\n"
        "add_ons: {observability: on}\n"
    ),
    "instances": (
        "  block: {types: p5en.48xlarge, zones: us-west-2c, buy: {capacity-block: cr-0123456789abcdef0}, size: 2, efa: on}\n"
        "  wide: {types: p5.48xlarge, zones: us-west-2a, size: 2, efa: on, efa_layout: ip-bandwidth, placement_group: cluster}\n"
        "  odcr: {types: g6e.12xlarge, zones: us-west-2a, size: 1, buy: [{reservation: cr-0123456789abcdef1}, spot], disk: gp3}\n"
        "  pulled: {types: g6e.2xlarge, size: 1, images: {snapshot: snap-0123456789abcdef0}, ami: ami-0123456789abcdef0}\n"
        "  held: {types: p5.48xlarge, zones: us-west-2b, size: 1..6, buy: [{reserve: 2}, on-demand], efa: on, placement_group: cluster}\n"
        "  neuron: {types: [inf2.8xlarge, inf2.24xlarge], size: 0..4, buy: [spot, on-demand], labels: {team: ads}}\n"
        "  warm: {types: g6e.2xlarge, size: 0..6, warm: 2, images: plain}\n"
        "  kept: {types: g6e.2xlarge, size: 0..9, spare: 3, images: plain}\n"
        "zones: [us-west-2a, us-west-2b, us-west-2c]\n"
        "orchestrator: ecs\n"
        "ecs: {al2023: 2023.0.20260901}\n"
    ),
}
"""Rest of the fleet file by the fleet's shape."""

EXAMPLES = tuple(sorted(path.stem for path in _EXAMPLES.glob("*.yaml")))
"""Example fleets beside them, by the name of their file."""


@pytest.fixture(scope="session")
def synth_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fleets by shape, each with its stacks/STACK/cdk.tf.json."""
    folder = tmp_path_factory.mktemp("synthesized")
    synthesize_all(folder)
    return folder


@pytest.fixture(scope="session")
def stacks(synth_folder: Path) -> dict[tuple[str, str], Stack]:
    """Each synthesized stack by the fleet's shape and the stack's name."""
    return _read_stacks(synth_folder)


def synthesize_all(folder: Path) -> dict[tuple[str, str], Stack]:
    """Synthesize every fleet in a folder of its own; return the stacks by the fleet's shape and the stack's name."""
    from infra import main

    texts = {name: (_EXAMPLES / f"{name}.yaml").read_text() for name in EXAMPLES}
    texts |= {shape: _HEAD + fleet_body for shape, fleet_body in FLEETS.items()}
    for shape, text in texts.items():
        file = folder / shape / "fleet.yaml"
        file.parent.mkdir()
        file.write_text(text)
        main.synthesize(load(file, Fleet), file.parent)
    return _read_stacks(folder)


def _read_stacks(folder: Path) -> dict[tuple[str, str], Stack]:
    return {
        (path.parts[-4], path.parts[-2]): json.loads(path.read_text()) for path in folder.glob("*/stacks/*/cdk.tf.json")
    }
