"""Node groups that a plan ends, with the nodes that run in them. EKS is moto's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.operations import plan_checks
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.services import inputs
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import Plan, ResourceChange
from llm_serving.terraform.runner import Terraform

REGION = "us-west-2"
FLEET = """\
name: turned
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: eks
pools:
  other: {types: m8g.xlarge, size: 1, zones: us-west-2a}
"""
OLD, NEW = "general-g6-xlarge-a-od", "general-g6e-xlarge-a-od"


@pytest.fixture
def cluster(aws: str) -> Iterator[AwsSession]:
    """A cluster with a node group of the pool `general`, that has two nodes."""
    session, role = AwsSession(REGION), f"arn:aws:iam::{'1' * 12}:role/x"
    eks = session.client("eks")
    eks.create_cluster(name="turned", roleArn=role, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]})
    eks.create_nodegroup(
        clusterName="turned",
        nodegroupName=OLD,
        subnets=["subnet-1"],
        nodeRole=role,
        labels={"fleet/pool": "general"},
        scalingConfig={"minSize": 0, "maxSize": 4, "desiredSize": 2},
    )
    yield session
    eks.delete_nodegroup(clusterName="turned", nodegroupName=OLD)
    eks.delete_cluster(name="turned")


def check(
    tmp_path: Path, session: AwsSession, actions: Mapping[str, str], pool: str = "", *, is_tainted: bool = False
) -> None:
    """Check a plan for a fleet with the pool `general`, if any: the actions by node group."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET + (f"  general: {pool}\n" if pool else ""))
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    context = FleetContext(inputs.read_fleet(file), tmp_path, {}, program, session, "123456789012")
    changes = {f"aws_eks_node_group.{name}": tuple(action.split()) for name, action in actions.items()}
    rows = {address: ResourceChange(address, verbs, is_tainted=is_tainted) for address, verbs in changes.items()}
    plan = Plan(rows)
    plan_checks.require_groups_empty(context, [StackPlan("eks", 1, plan)])


ANOTHER_TYPE = "{types: g6e.xlarge, size: 2, zones: us-west-2a}"
SAME_TYPE = "{types: g6.xlarge, size: 2, zones: us-west-2a}"
BY_KARPENTER = "{types: g6.xlarge, size: 0..4, zones: us-west-2a}"


@pytest.mark.parametrize(
    ("pool", "actions"),
    [(ANOTHER_TYPE, {OLD: "delete", NEW: "create"}), (BY_KARPENTER, {OLD: "delete"})],
    ids=["another type", "Karpenter's, since its least is 0"],
)
def test_nodes_do_not_end_before_their_pool_has_others(
    cluster: AwsSession, tmp_path: Path, pool: str, actions: dict[str, str]
) -> None:
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, cluster, actions, pool)
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: the plan ends 2 nodes of the node group {OLD} before their pool has others. Nothing was "
        "changed. Fix: keep what the pool had beside what is new (with size: 0..N, `by: node-groups`), or add another "
        "pool; run this and deploy each blueprint; then remove the old, deploy, and run this again."
    )


def test_what_is_only_removed_may_go_and_what_has_no_node(cluster: AwsSession, tmp_path: Path) -> None:
    check(tmp_path, cluster, {OLD: "delete"})  # the pool
    check(tmp_path, cluster, {OLD: "delete"}, ANOTHER_TYPE)  # one of its types, after the other was there
    check(tmp_path, cluster, {OLD: "delete", "other-m8g-xlarge-a-od": "create"})  # beside another pool's new group
    check(tmp_path, cluster, {"no-such": "delete", NEW: "create"}, ANOTHER_TYPE)
    check(tmp_path, cluster, {OLD: "delete create"}, SAME_TYPE, is_tainted=True)  # its nodes did not join
    eks = cluster.client("eks")
    scale = {"clusterName": "turned", "nodegroupName": OLD}
    eks.update_nodegroup_config(**scale, scalingConfig={"desiredSize": 0})
    check(tmp_path, cluster, {OLD: "delete", NEW: "create"}, ANOTHER_TYPE)
    eks.update_nodegroup_config(**scale, scalingConfig={"desiredSize": 2})
