"""A deployment on ECS planned, applied, unchanged and destroyed by the real Terraform on the embedded AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import context
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import Document
from llm_serving.targets import planning
from llm_serving.targets.ecs import stack
from llm_serving.workloads import inputs
from tests.infra.serving.conftest import FLEET, SHAPES, write_blueprint

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]

REGION = "us-west-2"


def create_fleet_resources(endpoint: str, fleet: Fleet) -> None:
    """What the fleet's own stacks make and a deployment looks up: network, keys, cluster, namespaces."""

    def make_client(service: str) -> Any:
        return emulator.create_client(service, endpoint, REGION)

    ec2 = make_client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.create_tags(Resources=[vpc], Tags=_format_tags(names.build_vpc_tags(fleet)))
    for number, zone in enumerate(fleet.zones):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=zone)
        tags = _format_tags(names.build_private_subnet_tags(fleet, zone))
        ec2.create_tags(Resources=[subnet["Subnet"]["SubnetId"]], Tags=tags)
    for key_name in ("ecs", "storage"):
        key = make_client("kms").create_key()["KeyMetadata"]["KeyId"]
        make_client("kms").create_alias(AliasName=f"alias/{fleet.name}-{key_name}", TargetKeyId=key)
    make_client("ecs").create_cluster(clusterName=names.format_cluster_name(fleet))
    make_client("servicediscovery").create_private_dns_namespace(Name=names.format_namespace(fleet), Vpc=vpc)


def _format_tags(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Document[Fleet], AwsSession]]:
    """The fleet's file, and an embedded AWS with the resources of its stacks."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    document = inputs.read_fleet(Path("fleet.yaml"))
    with context.use_emulator(document) as aws:
        create_fleet_resources(str(aws.emulator), document.value)
        yield document, aws


def test_a_deployment_is_created_updated_and_destroyed(
    fleet: tuple[Document[Fleet], AwsSession], tmp_path: Path
) -> None:
    document, aws = fleet
    endpoint = str(aws.emulator)
    text = SHAPES["aggregated"].replace("replicas: 2..6", "replicas: 0..6")
    deployment_plan = planning.plan(write_blueprint(tmp_path, "aggregated", text), document.path, target="ecs", aws=aws)
    messages: list[str] = []
    with context.lock_fleet(document.value):  # as the AWS workflow holds it while it deploys
        assert stack.deploy(deployment_plan, messages.append) is True
    [changes] = messages
    assert "created: aws_ecs_service.worker-0" in changes
    client = emulator.create_client("ecs", endpoint, REGION)
    arns = client.list_services(cluster="fabric")["serviceArns"]
    assert sorted(arn.rpartition("/")[2] for arn in arns) == [
        "aggregated-router",
        "aggregated-worker",
        "aggregated-worker-1",
    ]
    alarms = emulator.create_client("cloudwatch", endpoint, REGION).describe_alarms()["MetricAlarms"]
    called = {alarm["AlarmName"].partition("worker-")[2]: alarm["AlarmActions"] for alarm in alarms}
    steps = {"sleep": [], "wake-errors": [], "wake-requests": []}
    assert called.items() >= steps.items(), "the policies that they call are left out here"
    assert called["late"] == ["arn:aws:sns:us-west-2:123456789012:on-call"]
    assert stack.deploy(deployment_plan, messages.append) is False, "a plan after the apply is empty"
    assert len(messages) == 1
    assert stack.destroy(deployment_plan) is True
    assert client.list_services(cluster="fabric")["serviceArns"] == []
    roles = emulator.create_client("iam", endpoint, REGION).list_roles()["Roles"]
    assert [role["RoleName"] for role in roles if role["RoleName"].startswith("fabric-")] == []
    assert stack.destroy(deployment_plan) is False, "nothing is left to take away"
