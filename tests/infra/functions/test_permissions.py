"""Every call of AWS in our own Lambdas and images is allowed to the role that runs it, found from the code itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from tests.infra.aws_calls import find_actions

ROOT = Path(__file__).parents[3]
FUNCTIONS = sorted(file for file in (ROOT / "infra" / "functions").glob("*.py") if file.stem != "__init__")

Stack = dict[str, Any]
Stacks = dict[tuple[str, str], Stack]

LOG_ACTIONS = {"logs:CreateLogStream", "logs:PutLogEvents"}
"""Of Lambda itself, which writes the log by the function's role."""

BESIDE_CALLS: dict[str, dict[str, str]] = {
    "gpu_repair": dict.fromkeys(
        ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"),
        "Lambda reads the queue by the function's role",
    )
}
"""What AWS asks for beside the action of a call, by the function's file, with the reason."""


def list_allowed(stack: Stack, function: Stack) -> set[str]:
    """The actions of the role that runs a Lambda function."""
    role = function["role"].removesuffix(".arn}") + ".name}"
    return {
        action
        for policy in stack["resource"]["aws_iam_role_policy"].values()
        if policy["role"] == role
        for statement in json.loads(policy["policy"])["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }


def list_functions(stacks: Stacks, source: str) -> Iterator[tuple[Stack, Stack]]:
    """Each function of a stack that runs the file, with its stack."""
    for stack in stacks.values():
        for function in stack.get("resource", {}).get("aws_lambda_function", {}).values():
            if function["handler"] == f"{source}.handler":
                yield stack, function


@pytest.mark.parametrize("file", FUNCTIONS, ids=lambda file: file.stem)
def test_a_functions_role_allows_what_its_code_calls_and_nothing_else(stacks: Stacks, file: Path) -> None:
    called = find_actions(file.read_text())
    allowed = [list_allowed(stack, function) for stack, function in list_functions(stacks, file.stem)]
    assert called and allowed
    # What a fleet's function never calls, its role need not allow; some fleet calls it.
    assert called - set().union(*allowed) == set(), "not allowed"
    for actions in allowed:
        assert actions - called == {*LOG_ACTIONS, *BESIDE_CALLS.get(file.stem, {})}, "allowed, and never called"


def test_the_images_whose_programs_call_aws_are_known() -> None:
    """Their roles are held against their calls in tests/infra/serving/test_stack.py and tests/infra/batch/test_stack.py."""
    modules = {folder.name: [file.read_text() for file in folder.rglob("*.py")] for folder in paths.IMAGES.iterdir()}
    assert {name for name, codes in modules.items() if find_actions(*codes)} == {"router", "batch-worker"}


def test_a_call_that_the_role_does_not_allow_is_reported(stacks: Stacks) -> None:
    code = (ROOT / "infra" / "functions" / "ecs_fallback.py").read_text()
    [allowed, *_] = [list_allowed(stack, function) for stack, function in list_functions(stacks, "ecs_fallback")]
    assert find_actions(f"{code}\ndef drop(ecs):\n    ecs.delete_cluster()\n") - allowed == {"ecs:DeleteCluster"}


def test_a_call_is_found_whatever_its_form() -> None:
    code = """
import boto3
def run():
    s3 = boto3.client("s3")
    elb = boto3.client("elbv2")
    help(s3, elb)
def help(s3, elb):
    s3.list_objects_v2(Bucket="b")
    s3.get_paginator("list_object_versions")
    elb.get_waiter("load_balancer_available").wait()
    connect("ec2").describe_volumes()
def connect(service):
    return boto3.Session(region_name="us-west-2").client(service)
def ask():
    import botocore.session
    cloud_map = botocore.session.get_session().create_client("servicediscovery", region_name="us-west-2")
    cloud_map.discover_instances(NamespaceName="n", ServiceName="s")
class Queue:
    def __init__(self, client=None):
        self._sqs, self.store = client or connect("sqs"), Store(connect("sfn"))
    def send(self):
        self._sqs.send_message_batch(QueueUrl="q")
class Store:
    def __init__(self, sqs):
        sqs.receive_message(QueueUrl="q")
"""
    assert find_actions(code) == {
        "s3:ListBucket",
        "s3:ListObjectVersions",
        "elasticloadbalancing:DescribeLoadBalancers",
        "ec2:DescribeVolumes",
        "servicediscovery:DiscoverInstances",
        "sqs:SendMessage",
        "sqs:ReceiveMessage",
    }


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import boto3\nboto3.resource('s3').Bucket('b')", "otherwise"),
        ("import boto3\ns3 = boto3.client('s3')\ns3.fetch_everything()", "no operation"),
        ("import boto3\ndef make(x):\n    return wrap(boto3.client(x))", "otherwise"),
        ("import boto3\na = boto3.client('s3')\nself.a = boto3.client('sqs')", "a is a client of s3 and of sqs"),
        ("import botocore.session\ns = botocore.session.Session()\ns.create_client('s3')", "otherwise"),
    ],
)
def test_a_use_that_cannot_be_followed_is_refused(code: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_actions(code)
