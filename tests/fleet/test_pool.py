"""What a pool cannot be: each refusal at its line, with its reason and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError

HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\n"
BLOCK = "buy: {capacity-block: cr-0123456789abcdef0}"
RESERVED = "{reservation: cr-0123456789abcdef0}"
P5 = "types: p5.48xlarge, zones: us-west-2a, size: 2"
G6E = "types: g6e.2xlarge, size: 0..3"


def _get_error(tmp_path: Path, text: str) -> str:
    """The one message about a fleet file, without its folder."""
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        load(file, Fleet)
    (line,) = str(error.value).splitlines()
    return line.removeprefix(f"{tmp_path}/")


def _format_pool(lines: str, orchestrator: str = "eks") -> str:
    return f"{HEAD}orchestrator: {orchestrator}\npools:\n  aa: {{{lines}}}\n"


@pytest.mark.parametrize(
    ("lines", "orchestrator", "message"),
    [
        # how it is bought
        (
            f"{P5}, buy: [{{capacity-block: cr-0123456789abcdef0}}, spot]",
            "eks",
            "fleet.yaml:6:61: pools.aa.buy: a Capacity Block's instances cannot share a pool with other purchase options. Fix: set buy: {capacity-block: cr-...} only, and add a second pool for the rest.",
        ),
        (
            f"{P5}, buy: [on-demand, {RESERVED}]",
            "eks",
            "fleet.yaml:6:73: pools.aa.buy[1]: a reservation is paid for even if unused, so it comes first. Fix: move the reservation to the front of the list.",
        ),
        (
            f"{P5}, buy: [spot, {{reserve: 1}}]",
            "eks",
            "fleet.yaml:6:68: pools.aa.buy[1]: a reservation is paid for even if unused, so it comes first. Fix: move the reservation to the front of the list.",
        ),
        (
            "types: p5.48xlarge, zones: us-west-2a, size: 2..6, buy: [{reserve: 9}, on-demand]",
            "eks",
            "fleet.yaml:6:65: pools.aa.buy[0]: 9 would be reserved and paid for, and the pool starts at most 6. Fix: set {reserve: 6}, or size: 2..9.",
        ),
        (
            "types: p5.48xlarge, zones: us-west-2a, size: 2..6, buy: [{reserve: 1}, on-demand]",
            "eks",
            "fleet.yaml:6:65: pools.aa.buy[0]: the first purchase option covers the pool's minimum of 2 instances, and 1 would be "
            "reserved. Fix: set {reserve: 2}, or size: 1..6.",
        ),
        (
            "types: p5.48xlarge, zones: us-west-2a, size: 2..6, buy: {reserve: 4}",
            "eks",
            "fleet.yaml:6:64: pools.aa.buy: there is no other purchase option, so of up to 6 instances 4 could "
            "start. Fix: set size: 2..4, or add on-demand after it.",
        ),
        (
            "types: [p5.48xlarge, p5en.48xlarge], zones: us-west-2a, size: 2, buy: {reserve: 2}",
            "eks",
            "fleet.yaml:6:15: pools.aa.types: a reservation holds instances of one type, and the pool lists 2. Fix: set types: p5.48xlarge.",
        ),
        (
            f"{P5}, buy: {{reservation: cr-123}}",
            "eks",
            'fleet.yaml:6:75: pools.aa.buy.reservation: "cr-123": it is not a reservation\'s id: cr- and 17 of '
            "0-9a-f. Fix: use a reservation's id such as cr-0123456789abcdef0.",
        ),
        (
            "types: g6e.2xlarge, size: 9..3",
            "eks",
            'fleet.yaml:6:34: pools.aa.size: "9..3": the least, 9, is more than the most, 3. Fix: write 3..9.',
        ),
        # zones and placement
        (
            f"{P5}, {BLOCK}, placement_group: cluster",
            "eks",
            'fleet.yaml:6:118: pools.aa.placement_group: "cluster": EC2 returns InsufficientInstanceCapacity for a placement group with a reservation that was created outside it, and the fleet creates its own groups. Fix: set placement_group: none.',
        ),
        (
            f"{G6E}, efa_layout: ip-bandwidth",
            "eks",
            'fleet.yaml:6:52: pools.aa.efa_layout: "ip-bandwidth": it applies to EFA nodes only, and efa is off. '
            "Fix: set efa: true, or remove efa_layout.",
        ),
        (
            "types: p5.48xlarge, size: 2, efa: on",
            "eks",
            'fleet.yaml:6:42: pools.aa.efa: "on": EFA traffic does not cross an Availability Zone, and the pool '
            "takes the fleet's 2. Fix: set zones: us-west-2a in the pool, or efa: false.",
        ),
        (
            f"{P5}, buy: {RESERVED}, placement_group: cluster",
            "eks",
            'fleet.yaml:6:115: pools.aa.placement_group: "cluster": EC2 returns InsufficientInstanceCapacity for a placement group with a reservation that was created outside it, and the fleet creates its own groups. Fix: set placement_group: none, or buy: {reserve: INSTANCES}, made inside the group.',
        ),
        # what starts it
        (
            "types: g6e.2xlarge, size: 2..3, by: karpenter",
            "eks",
            'fleet.yaml:6:44: pools.aa.by: "karpenter": Karpenter starts nodes for pending pods and has no minimum size, and size starts at 2. Fix: set by: node-groups, or size: 0..3.',
        ),
        (
            f"{G6E}, by: karpenter",
            "ecs",
            'fleet.yaml:6:44: pools.aa.by: "karpenter": on ECS, Auto Scaling groups start the instances. '
            "Fix: remove `by` from pools on ECS.",
        ),
        (
            f"{G6E}, os: bottlerocket",
            "ecs",
            'fleet.yaml:6:44: pools.aa.os: "bottlerocket": AWS\'s ECS AMI with GPU drivers is Amazon Linux 2023 only. Fix: set os: al2023.',
        ),
        (
            f"{G6E}, taints: [a=b:NoSchedule]",
            "ecs",
            "fleet.yaml:6:48: pools.aa.taints: ECS has no taints. "
            "Fix: use labels, which placement constraints of tasks can select.",
        ),
        (
            f"{G6E}, taints: a=b",
            "eks",
            'fleet.yaml:6:48: pools.aa.taints: "a=b": it is not a taint: KEY=VALUE:EFFECT. '
            "Fix: use a taint such as team=ads:NoSchedule.",
        ),
        *(
            (
                f"{G6E}, labels: {{{key}: x}}",
                "eks",
                f"fleet.yaml:6:49: pools.aa.labels.{key}: it is not a label's key of your own: letters, digits and ._-, "
                "not below kubernetes.io, k8s.io, eks.amazonaws.com, karpenter.sh or fleet. Fix: use a label's key of your own such as team.",
            )
            for key in ("kubernetes.io/arch", "eks.amazonaws.com/capacityType", "karpenter.sh/nodepool")
        ),
        (
            f"{G6E}, orchestrator: ecs",
            "eks",
            'fleet.yaml:6:54: pools.aa.orchestrator: "ecs": the fleet\'s orchestrator is eks. '
            "Fix: use the fleet's orchestrator, or set orchestrator: both for the fleet.",
        ),
        # how images start
        (
            f"{G6E}, images: soci",
            "ecs",
            'fleet.yaml:6:48: pools.aa.images: "soci": on ECS, SOCI works on Fargate only, which has no GPUs '
            "(aws/containers-roadmap#1832). "
            "Fix: set images: cached, or {snapshot: snap-...} with the images pulled beforehand.",
        ),
        (
            f"{G6E}, images: {{snapshot: snap-01234567}}, disk: nvme",
            "eks",
            'fleet.yaml:6:81: pools.aa.disk: "nvme": a snapshot becomes a volume, not an NVMe disk. Fix: set disk: gp3.',
        ),
        (
            f"{G6E}, warm: 2, disk: nvme",
            "ecs",
            'fleet.yaml:6:55: pools.aa.disk: "nvme": NVMe disks are empty after a stop, and warm instances are stopped. Fix: set disk: gp3.',
        ),
        (
            f"{G6E}, warm: 2",
            "eks",
            "fleet.yaml:6:46: pools.aa.warm: 2: warm pools are supported on ECS only. Fix: set warm: 0.",
        ),
        (
            f"{G6E}, warm: 4",
            "ecs",
            "fleet.yaml:6:46: pools.aa.warm: 4: 4 would be kept warm, and the pool has at most 3. "
            "Fix: set warm: 3 or less.",
        ),
        (
            f"{G6E}, buy: spot, warm: 2",
            "ecs",
            "fleet.yaml:6:57: pools.aa.warm: 2: EC2 Auto Scaling supports warm instances on demand only, and the pool is not bought on demand. Fix: set warm: 0, or add on-demand to buy.",
        ),
    ],
)
def test_an_invalid_pool_is_refused_with_its_reason(
    tmp_path: Path, lines: str, orchestrator: str, message: str
) -> None:
    assert _get_error(tmp_path, _format_pool(lines, orchestrator)) == message


POOLS = "pools: {aa: {types: g6e.2xlarge, size: 1}}\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "orchestrator: ecs\neks: {version: '1.35', public_from: 203.0.113.0/24}\n",
            "fleet.yaml:5:6: eks: the fleet has no EKS cluster; its orchestrator is ecs. "
            "Fix: set orchestrator: both, or remove eks.",
        ),
        (
            "ecs: {al2023: 2023.0.20260914}\n",
            "fleet.yaml:4:6: ecs: the fleet has no ECS cluster; its orchestrator is eks. "
            "Fix: set orchestrator: both, or remove ecs.",
        ),
        (
            "orchestrator: ecs\nadd_ons: {schedulers: on}\n",
            'fleet.yaml:5:23: add_ons.schedulers: "on": it installs Kubernetes controllers, and the fleet\'s orchestrator is ecs. Fix: set schedulers: off.',
        ),
        (
            "eks: {version: 1.35}\n",
            "fleet.yaml:4:16: eks.version: 1.35: not one of the choices. "
            "Fix: use '1.35', in quotes; the choices are '1.34', '1.35' or '1.36'.",
        ),
        (
            "eks: {public_from: [0.0.0.0/0]}\n",
            'fleet.yaml:4:21: eks.public_from[0]: "0.0.0.0/0": it opens the cluster\'s endpoint to a large part of the internet. Fix: name the ranges that you call from.',
        ),
        (
            "eks: {al2023: v20260505}\n",
            'fleet.yaml:4:15: eks.al2023: "v20260505": nodes of this release never finish pulling the pause image '
            "(awslabs/amazon-eks-ami#2710). Fix: name another release.",
        ),
        (
            "network: {vpc: vpc-01234567}\n",
            "fleet.yaml:4:1: network.private_subnets: required field is missing. "
            "Fix: set private_subnets: [subnet-0123456789abcdef0].",
        ),
    ],
)
def test_an_invalid_cluster_setting_is_refused_with_its_reason(tmp_path: Path, lines: str, message: str) -> None:
    assert _get_error(tmp_path, f"{HEAD}{lines}{POOLS}") == message


def test_with_both_orchestrators_a_pool_defaults_to_eks(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{HEAD}orchestrator: both\npools:\n  aa: {{{G6E}}}\n  bb: {{{G6E}, orchestrator: ecs, warm: 1}}\n")
    fleet = load(file, Fleet).value
    assert [fleet.get_orchestrator(pool) for pool in fleet.pools.values()] == ["eks", "ecs"]
    assert fleet.orchestrators == ("eks", "ecs")
