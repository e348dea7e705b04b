"""A deployment on ECS planned, applied, unchanged and destroyed by the real Terraform on the embedded AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving.operations import context
from llm_serving.rehearsal import emulator
from llm_serving.targets import planning
from llm_serving.targets.ecs import load_tasks, stack
from tests.infra.serving.conftest import FLEET, SHAPES, write_blueprint
from tests.targets.ecs.applied_fleet import REGION, AppliedFleet, apply_fleet

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppliedFleet]:
    with apply_fleet(tmp_path, monkeypatch, FLEET) as applied:
        yield applied


def test_a_deployment_is_created_updated_and_destroyed(fleet: AppliedFleet, tmp_path: Path) -> None:
    document, aws = fleet
    endpoint = str(aws.emulator)
    text = SHAPES["aggregated"].replace("replicas: 2..6", "replicas: 0..6")
    deployment_plan = planning.plan(write_blueprint(tmp_path, "aggregated", text), document.path, target="ecs", aws=aws)
    messages: list[str] = []
    with context.lock_fleet(document.value):  # as the AWS workflow holds it while it deploys
        assert stack.deploy(deployment_plan, messages.append) is True
    [changes] = messages
    assert "created: aws_ecs_service.worker-0" in changes
    network = load_tasks._find_network(deployment_plan)["awsvpcConfiguration"]
    assert (len(network["securityGroups"]), len(network["subnets"])) == (1, 2), "where the drivers of a load run"
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
