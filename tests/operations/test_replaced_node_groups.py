"""Node groups that a plan ends, with the nodes that run in them. EKS is moto's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.operations import plan_checks
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.services import inputs
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import Plan, ResourceChange, parse_plan
from llm_serving.terraform.runner import Terraform
from tests.terraform.plan_data import build_change, build_plan

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


def test_nodes_of_karpenter_keep_their_access_to_the_cluster(cluster: AwsSession, tmp_path: Path) -> None:
    def check_entry(*actions: str) -> None:
        file, address = tmp_path / "fleet.yaml", "aws_eks_access_entry.karpenter-nodes"
        file.write_text(FLEET)
        program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
        context = FleetContext(inputs.read_fleet(file), tmp_path, {}, program, cluster, "123456789012")
        plan = StackPlan("eks", 1, Plan({address: ResourceChange(address, actions)}))
        plan_checks.require_karpenter_idle(context, [plan])

    check_entry("delete")  # where it has no node
    tags = {"karpenter.sh/nodepool": "general", "kubernetes.io/cluster/turned": "owned"}
    rows = [{"Key": key, "Value": value} for key, value in tags.items()]
    ec2, specification = cluster.client("ec2"), {"ResourceType": "instance", "Tags": rows}
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    started = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=[specification])
    try:
        check_entry("update")
        with pytest.raises(CheckFailed) as error:
            check_entry("delete")
    finally:
        ec2.terminate_instances(InstanceIds=[started["Instances"][0]["InstanceId"]])
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: the plan takes the cluster from 1 node of Karpenter, of which the file has no pool any "
        "more. Nothing was changed. Fix: keep its pool beside a new one, run this and deploy each blueprint; then run "
        "`kubectl delete nodepools --all`, which drains them, and this again without the pool."
    )


BLOCKS = OLD_BLOCK, NEW_BLOCK = "cr-0aaaaaaaaaaaaaaa1", "cr-0bbbbbbbbbbbbbbb2"
TEMPLATE = "aws_launch_template.general-p5-48xlarge-a-cb-template"


def check_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object] | str) -> None:
    """Check a plan that gives a pool the next Capacity Block, where EC2 says so of the one before, or ends with an error."""
    file = tmp_path / "fleet.yaml"
    block = f"{{types: p5.48xlarge, size: 2, zones: us-west-2a, buy: {{capacity-block: {NEW_BLOCK}}}}}"
    file.write_text(f"{FLEET}  general: {block}\n")
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    session = AwsSession(REGION)
    context = FleetContext(inputs.read_fleet(file), tmp_path, {}, program, session, "123456789012")
    sides = [
        {
            "capacity_reservation_specification": [
                {"capacity_reservation_target": [{"capacity_reservation_id": block_id}]}
            ]
        }
        for block_id in BLOCKS
    ]
    change = build_change(TEMPLATE, "update")
    change["change"] |= dict(zip(("before", "after"), sides, strict=True))
    ec2 = boto3.client("ec2", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    monkeypatch.setattr(session, "client", lambda _service: ec2)
    with Stubber(ec2) as stub:
        if isinstance(answer, str):
            stub.add_client_error("describe_capacity_reservations", answer)
        else:
            asked = {"CapacityReservationIds": [OLD_BLOCK]}
            stub.add_response("describe_capacity_reservations", {"CapacityReservations": [answer]}, asked)
        plan_checks.require_blocks_ended(context, [StackPlan("eks", 1, parse_plan(build_plan(change)))])
        stub.assert_no_pending_responses()


def test_instances_of_a_capacity_block_are_not_replaced_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"TotalInstanceCount": 2, "AvailableInstanceCount": 0, "State": "active"}
    with pytest.raises(CheckFailed) as error:
        check_block(tmp_path, monkeypatch, used)
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml:7:66: pools.general.buy: {{capacity-block: {NEW_BLOCK}}}: 2 instances of the block "
        f"{OLD_BLOCK} would be replaced at once. Fix: set {OLD_BLOCK} again until it ends, and add a pool for {NEW_BLOCK}. "
        "Nothing was changed"
    )
    check_block(tmp_path, monkeypatch, {**used, "AvailableInstanceCount": 2})
    check_block(tmp_path, monkeypatch, {**used, "State": "expired"})
    check_block(tmp_path, monkeypatch, "InvalidCapacityReservationId.NotFound")
