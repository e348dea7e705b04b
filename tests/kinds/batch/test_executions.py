"""What keeps AWS from deleting a state machine, by answers of Step Functions in their own shape."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving.kinds.batch import cloud
from llm_serving.kinds.batch.kind import KIND

MACHINE = "arn:aws:states:us-west-2:123456789012:stateMachine:cotton-catalog"
RUNNING = {"stateMachineArn": MACHINE, "statusFilter": "RUNNING"}
DEPLOYMENT: Any = SimpleNamespace(environment=None, stack=SimpleNamespace(workflow="cotton-catalog"))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    monkeypatch.setattr(cloud, "format_state_machine", lambda *_: MACHINE)
    client = boto3.client(
        "stepfunctions", region_name="us-west-2", aws_access_key_id="none", aws_secret_access_key="none"
    )
    return Stubber(client)


def format_arn(name: str) -> str:
    return MACHINE.replace("stateMachine", "execution") + f":{name}"


def list_page(*names: str, token: str = "") -> dict[str, Any]:
    started = datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)
    rows = [
        {"executionArn": format_arn(name), "stateMachineArn": MACHINE, "name": name, "status": "RUNNING",
         "startDate": started}
        for name in names
    ]  # fmt: skip
    return {"executions": rows, **({"nextToken": token} if token else {})}


def test_all_executions_are_stopped_once_nothing_starts_them_again(stub: Stubber) -> None:
    removed: list[bool] = []
    stub.add_response("list_executions", list_page("one"), RUNNING)
    stub.add_response("list_executions", list_page("one-2", token="more"), RUNNING)
    stub.add_response("stop_execution", {"stopDate": 0}, {"executionArn": format_arn("one-2")})
    stub.add_response("list_executions", list_page("two"), {**RUNNING, "nextToken": "more"})
    stub.add_response("stop_execution", {"stopDate": 0}, {"executionArn": format_arn("two")})
    with stub:
        KIND.stop_work(DEPLOYMENT, lambda _: stub.client, lambda: removed.append(True))
    stub.assert_no_pending_responses()
    assert removed == [True]


@pytest.mark.parametrize("exists", [True, False])
def test_without_executions_the_services_go_with_the_stack(stub: Stubber, exists: bool) -> None:
    if exists:
        stub.add_response("list_executions", list_page(), RUNNING)
    else:
        stub.add_client_error("list_executions", "StateMachineDoesNotExist", expected_params=RUNNING)
    with stub:
        KIND.stop_work(DEPLOYMENT, lambda _: stub.client, lambda: pytest.fail("removed"))
