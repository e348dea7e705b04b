"""The calls of a network test on ECS, held against botocore's model of the API; answers are scripted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.operations.network_test import ecs
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed, Unavailable

FLEET = """\
name: demo
region: us-east-1
zones: [us-east-1b]
orchestrator: ecs
pools:
  large: {types: p5.48xlarge, size: 2, efa: on}
"""
ARN = "arn:aws:ecs:us-east-1:123456789012:task/demo/{}"
FIRST, SECOND = ARN.format("aaa"), ARN.format("bbb")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return load(file, Fleet).value


@pytest.fixture
def group(fleet: Fleet) -> Group:
    return groups.resolve_pool(fleet, "large")[0]


class _Aws:
    """A session whose clients answer from a script."""

    def __init__(self) -> None:
        session = AwsSession("us-east-1", {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"})
        self.clients = {name: session.client(name) for name in ("ecs", "ec2", "logs")}
        self.stubs = {name: Stubber(client) for name, client in self.clients.items()}

    def client(self, name: str) -> Any:
        return self.clients[name]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Aws]:
    monkeypatch.setattr(ecs, "_POLL_S", 0.01)
    scripted = _Aws()
    for stub in scripted.stubs.values():
        stub.activate()
    yield scripted
    for stub in scripted.stubs.values():
        stub.deactivate()


def _describe(arn: str, status: str, address: str = "") -> dict[str, Any]:
    details = [{"name": "privateIPv4Address", "value": address}] if address else []
    attachment = {"type": "ElasticNetworkInterface", "details": details}
    return {"taskArn": arn, "lastStatus": status, "attachments": [attachment]}


def _script_network(aws: _Aws) -> None:
    aws.stubs["ec2"].add_response("describe_security_groups", {"SecurityGroups": [{"GroupId": "sg-1"}]})
    aws.stubs["ec2"].add_response("describe_subnets", {"Subnets": [{"SubnetId": "subnet-1"}]})


def test_rank_0_starts_first_and_the_others_get_its_address(aws: _Aws, fleet: Fleet, group: Group) -> None:
    _script_network(aws)
    stub = aws.stubs["ecs"]
    requests: list[dict[str, Any]] = []
    aws.clients["ecs"].meta.events.register(
        "provide-client-params.ecs.RunTask", lambda params, **_: requests.append(params)
    )
    stub.add_response("run_task", {"tasks": [{"taskArn": FIRST}], "failures": []})
    stub.add_response(
        "describe_tasks", {"tasks": [], "failures": [{"arn": FIRST, "reason": "MISSING"}]}
    )  # not yet known
    stub.add_response("describe_tasks", {"tasks": [_describe(FIRST, "PROVISIONING")]})
    stub.add_response("describe_tasks", {"tasks": [_describe(FIRST, "RUNNING", "10.0.1.5")]})
    stub.add_response("run_task", {"tasks": [{"taskArn": SECOND}], "failures": []})
    stub.add_response("describe_tasks", {"tasks": [_describe(FIRST, "RUNNING")]})
    stub.add_response("describe_tasks", {"tasks": [_describe(FIRST, "STOPPED"), _describe(SECOND, "RUNNING")]})
    stub.add_response("stop_task", {})
    stub.add_response("stop_task", {})
    aws.stubs["logs"].add_response(
        "filter_log_events",
        {"events": [{"message": "line 1"}, {"message": "line 2"}]},
        {"logGroupName": "/aws/ecs/demo/network-test", "logStreamNames": ["pool/nccl/aaa"]},
    )
    assert ecs.run(aws, fleet, group, nodes=2, limit_s=120) == "line 1\nline 2"  # type: ignore[arg-type]
    for stubber in aws.stubs.values():
        stubber.assert_no_pending_responses()
    ranks = [_read_variables(request) for request in requests]
    assert [(rank["RANK"], rank["NODES"], rank["LEADER"]) for rank in ranks] == [
        ("0", "2", "0.0.0.0"),
        ("1", "2", "10.0.1.5"),
    ]
    provider = groups.format_provider_name(fleet, group)
    assert all(
        request["capacityProviderStrategy"] == [{"capacityProvider": provider, "weight": 1}] for request in requests
    )


def _read_variables(request: dict[str, Any]) -> dict[str, str]:
    (override,) = request["overrides"]["containerOverrides"]
    return {variable["name"]: variable["value"] for variable in override["environment"]}


def test_a_task_that_ends_early_is_reported_with_ecs_reason_and_stopped(aws: _Aws, fleet: Fleet, group: Group) -> None:
    _script_network(aws)
    stub = aws.stubs["ecs"]
    stub.add_response("run_task", {"tasks": [{"taskArn": FIRST}], "failures": []})
    state = {**_describe(FIRST, "STOPPED"), "stoppedReason": "CannotPullContainerError"}
    stub.add_response("describe_tasks", {"tasks": [state]})
    stub.add_response("stop_task", {})
    with pytest.raises(CheckFailed, match="rank 0 ended before the test: CannotPullContainerError"):
        ecs.run(aws, fleet, group, nodes=2, limit_s=120)  # type: ignore[arg-type]
    stub.assert_no_pending_responses()


def test_a_fleet_that_is_not_applied_is_reported_with_the_command(aws: _Aws, fleet: Fleet, group: Group) -> None:
    aws.stubs["ec2"].add_response("describe_security_groups", {"SecurityGroups": []})
    with pytest.raises(
        Unavailable, match=r"security group demo-ecs-efa does not exist. Fix: run `blueprint fleet apply`"
    ):
        ecs.run(aws, fleet, group, nodes=2, limit_s=120)  # type: ignore[arg-type]
