"""The cap of node repair, set on an emulated EKS."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from infra.functions import node_repair

REPAIR = {"enabled": True, "maxUnhealthyNodeThresholdPercentage": 20, "maxParallelNodesRepairedCount": 1}
EVENT = {"cluster": "demo", "group": "general", "repair": REPAIR}


@pytest.fixture
def eks(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    with mock_aws():
        client = boto3.client("eks")
        role = "arn:aws:iam::123456789012:role/demo"
        client.create_cluster(name="demo", roleArn=role, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]})
        client.create_nodegroup(clusterName="demo", nodegroupName="general", subnets=["subnet-1"], nodeRole=role)
        yield client


def test_the_cap_is_set_once(eks: Any) -> None:
    assert node_repair.handler(EVENT) == {"group": "general", "repair": REPAIR, "changed": True}
    node_group = eks.describe_nodegroup(clusterName="demo", nodegroupName="general")["nodegroup"]
    assert node_group["nodeRepairConfig"] == REPAIR
    assert not node_repair.handler(EVENT)["changed"], "EKS refuses an update that changes nothing"


def test_a_missing_node_group_fails_the_apply(eks: Any) -> None:
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        node_repair.handler({**EVENT, "group": "no-such"})
