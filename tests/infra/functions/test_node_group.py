"""Settings of a node group, applied on an emulated EKS; Capacity Blocks are answers in EC2's words."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import boto3
import botocore
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto import mock_aws

from infra.functions import node_group

REPAIR = {"enabled": True, "maxUnhealthyNodeThresholdPercentage": 20, "maxParallelNodesRepairedCount": 1}
UPDATE = {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}
BOUNDS = {"minSize": 0, "maxSize": 2}
EVENT: dict[str, Any] = {
    "cluster": "demo",
    "group": "general",
    "config": {"nodeRepairConfig": REPAIR},
    "scaling": BOUNDS,
    "block": None,
}
NOW = datetime.datetime.now(datetime.UTC)
HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def eks(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    with mock_aws():
        client = boto3.client("eks")
        role = "arn:aws:iam::123456789012:role/demo"
        client.create_cluster(name="demo", roleArn=role, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]})
        client.create_nodegroup(
            clusterName="demo",
            nodegroupName="general",
            subnets=["subnet-1"],
            nodeRole=role,
            scalingConfig={"minSize": 0, "maxSize": 2, "desiredSize": 0},
        )
        yield client


def read_group(eks: Any) -> dict[str, Any]:
    group: dict[str, Any] = eks.describe_nodegroup(clusterName="demo", nodegroupName="general")["nodegroup"]
    return group


def test_the_caps_are_set_once(eks: Any) -> None:
    assert node_group.handler(EVENT)["changed"] == ["nodeRepairConfig"]
    assert read_group(eks)["nodeRepairConfig"] == REPAIR
    assert node_group.handler(EVENT)["changed"] == [], "EKS refuses an update that changes nothing"


def test_the_update_strategy_is_set_beside_what_terraform_set(eks: Any) -> None:
    event = {**EVENT, "config": {"updateConfig": UPDATE}}
    assert node_group.handler(event)["changed"] == ["updateConfig"]
    assert read_group(eks)["updateConfig"] == UPDATE


@pytest.mark.parametrize(
    ("least", "most", "started", "desired"),
    [(4, 6, 2, 4), (0, 1, 2, 1), (1, 6, 2, 2)],
    ids=["EKS takes no least above it", "nor a most below it", "else it is the autoscaler's"],
)
def test_a_pools_new_size_moves_the_number_of_nodes_no_more_than_it_must(
    eks: Any, least: int, most: int, started: int, desired: int
) -> None:
    eks.update_nodegroup_config(clusterName="demo", nodegroupName="general", scalingConfig={"desiredSize": started})
    event = {**EVENT, "config": {}, "scaling": {"minSize": least, "maxSize": most}}
    assert node_group.handler(event)["changed"] == ["scalingConfig"]
    assert read_group(eks)["scalingConfig"] == {"minSize": least, "maxSize": most, "desiredSize": desired}
    assert node_group.handler(event)["changed"] == []


def test_a_missing_node_group_fails_the_apply(eks: Any) -> None:
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        node_group.handler({**EVENT, "group": "no-such"})


class Ec2:
    """EC2 with one Capacity Block."""

    def __init__(self, **block: Any) -> None:
        self.block = block

    def describe_capacity_reservations(self, *, CapacityReservationIds: list[str]) -> dict[str, Any]:  # noqa: N803
        assert CapacityReservationIds == ["cr-1"]
        return {"CapacityReservations": [self.block]}


class AutoScaling:
    """EC2 Auto Scaling that keeps what it is asked for."""

    def __init__(self) -> None:
        self.actions: list[dict[str, Any]] = []

    def put_scheduled_update_group_action(self, **action: Any) -> None:
        self.actions.append(action)


def run_with_block(
    monkeypatch: pytest.MonkeyPatch, *, least: int = 2, **block: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The handler's answer and the scheduled actions, with a Capacity Block as EC2 describes it."""
    auto_scaling, connect = AutoScaling(), node_group._connect
    clients = {"ec2": Ec2(**block), "autoscaling": auto_scaling}
    monkeypatch.setattr(node_group, "_connect", lambda service: clients.get(service) or connect(service))
    event = {**EVENT, "block": "cr-1", "scaling": {"minSize": least, "maxSize": 2}}
    return node_group.handler(event), auto_scaling.actions


def test_a_block_to_come_starts_its_machines_at_its_start(eks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, actions = run_with_block(monkeypatch, State="scheduled", StartDate=NOW + HOUR, EndDate=NOW + 25 * HOUR)
    assert result["starts"] == (NOW + HOUR).isoformat()
    assert actions == [
        {
            "AutoScalingGroupName": read_group(eks)["resources"]["autoScalingGroups"][0]["name"],
            "ScheduledActionName": "capacity-block-start",
            "StartTime": NOW + HOUR,
            "MinSize": 2,
            "MaxSize": 2,
            "DesiredCapacity": 2,
        }
    ]
    assert read_group(eks)["scalingConfig"]["desiredSize"] == 0


def test_an_active_block_starts_its_machines_at_once(eks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, actions = run_with_block(monkeypatch, State="active", StartDate=NOW - HOUR, EndDate=NOW + 23 * HOUR)
    assert (result["starts"], actions) == (None, [])
    assert read_group(eks)["scalingConfig"] == {"minSize": 2, "maxSize": 2, "desiredSize": 2}


def test_another_setting_ends_no_machine_that_an_autoscaler_started_in_a_block(
    eks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    eks.update_nodegroup_config(clusterName="demo", nodegroupName="general", scalingConfig={"desiredSize": 2})
    block = {"State": "active", "StartDate": NOW - HOUR, "EndDate": NOW + 23 * HOUR}
    assert run_with_block(monkeypatch, least=0, **block)[0]["changed"] == ["nodeRepairConfig"]
    assert read_group(eks)["scalingConfig"]["desiredSize"] == 2


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"State": "expired"}, "cr-1 is expired. Fix: write another block's id"),
        ({"State": "active", "EndDate": NOW + HOUR / 2}, "its last 40 minutes start no node"),
    ],
)
def test_a_block_that_is_over_fails_the_apply_with_the_reason(
    eks: Any, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], message: str
) -> None:
    with pytest.raises(node_group.BlockEnded, match=message):
        run_with_block(monkeypatch, **block)
    assert read_group(eks)["scalingConfig"]["desiredSize"] == 0


def test_node_groups_that_auto_scaling_gave_up_start_nodes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    auto_scaling = boto3.client("autoscaling", "us-west-2")
    monkeypatch.setattr(node_group, "_connect", {"autoscaling": auto_scaling}.__getitem__)
    reasons = {"eks-h100-1": "Administratively suspended", "eks-l40s-1": "User suspended at 2025-10-20T22:56:42Z"}
    described = [
        {
            "AutoScalingGroupName": name,
            "MinSize": 2,
            "MaxSize": 2,
            "DesiredCapacity": 2,
            "DefaultCooldown": 300,
            "AvailabilityZones": ["us-west-2a"],
            "HealthCheckType": "EC2",
            "CreatedTime": NOW,
            "SuspendedProcesses": [{"ProcessName": "Launch", "SuspensionReason": reason}],
        }
        for name, reason in reasons.items()
    ]
    with Stubber(auto_scaling) as stub:
        of_cluster = {"Filters": [{"Name": "tag:eks:cluster-name", "Values": ["demo"]}]}
        stub.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": described}, of_cluster)
        starts = {"AutoScalingGroupName": "eks-h100-1", "ScalingProcesses": ["Launch"]}
        stub.add_response("resume_processes", {}, starts)
        assert node_group.handler({"cluster": "demo"}) == {"resumed": {"eks-h100-1": ["Launch"]}}
        stub.assert_no_pending_responses()


PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
import node_group
print(sorted(node_group._connect("eks").meta.service_model.shape_for("NodegroupUpdateConfig").members))
"""


def test_the_archive_knows_settings_that_the_runtimes_boto3_does_not(synth_folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(synth_folder / "eks/stacks/eks/node_group.zip") as archive:
        archive.extractall(tmp_path / "task")
    # What the SDK reads before its own data: an API model of before MINIMAL.
    source = next((Path(botocore.__file__).parent / "data/eks").glob("*/service-2.json*"))
    model = boto3.session.Session()._session.get_component("data_loader").load_service_model("eks", "service-2")
    model = json.loads(json.dumps(model))
    del model["shapes"]["NodegroupUpdateConfig"]["members"]["updateStrategy"]
    old = tmp_path / "home/.aws/models/eks" / source.parent.name / "service-2.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps(model))
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "AWS_DEFAULT_REGION": "us-west-2"}

    def list_members() -> str:
        command = [sys.executable, "-c", PROBE, str(tmp_path / "task")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True).stdout

    assert "updateStrategy" in list_members()
    for file in (tmp_path / "task/models/eks").rglob("service-2*"):
        file.unlink()
    assert "updateStrategy" not in list_members()
