"""Which of a fleet's nodes a program may run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.targets import planning
from tests.infra import deployments

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
account: '123456789012'
add_ons: {operators: on}
pools:
  gpus: {types: g6e.12xlarge, size: 0..4}
"""
CPUS = "  cpus: {types: m7i.xlarge, size: 1..2}\n"
OWN = """\
network: {vpc: vpc-0123456789abcdef0, private_subnets: [subnet-0123456789abcdef0, subnet-0123456789abcdef1]}
eks: {cluster: platform}
"""
GATEWAY = "kind: gateway\npattern: gateway\nteams: {ads: {models: tiny}}\nslo: {}\n"
GATEWAY += "routes: {tiny: {deployments: {mock: Hello}}}\n"
SERVING = "pattern: aggregated\nmodel: Qwen/Qwen3-8B\nroles: {worker: {pool: gpus, accelerators: 4, replicas: 2}}\n"
SERVING += "traffic: {users: 1}\nslo: {}\n"
MASTER = "tuning: {kv_tiers: {by: mooncake, ram: 8Gi}}\n"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (GATEWAY, "The gateway"),
        (f"{SERVING}{MASTER}", "The master of the cached prompts"),
        (f"{SERVING}framework: ray\n", "The router"),
        (SERVING, ""),
    ],
    ids=["gateway", "master", "ray", "plain"],
)
def test_a_program_that_no_node_of_the_fleet_can_run_is_named(tmp_path: Path, text: str, program: str) -> None:
    """System nodes are Graviton, and pods without accelerators stay off nodes that have some."""
    folder = deployments.write_blueprint(tmp_path, "mine", text)
    tainted = CPUS.replace("size", "taints: 'team=ads:NoSchedule', size")
    fleets = {FLEET: True, FLEET + tainted: True, FLEET + CPUS: False, FLEET.replace("pools:", f"{OWN}pools:"): False}
    for fleet, is_missing in fleets.items():
        (tmp_path / "fleet.yaml").write_text(fleet)
        notes = planning.plan_offline(folder, tmp_path / "fleet.yaml", "eks").deployment.notes
        missing = [note for note in notes if "waits for a node of x86-64 without taints" in note]
        assert [note.partition(" waits")[0] for note in missing] == [program] * bool(is_missing and program)
