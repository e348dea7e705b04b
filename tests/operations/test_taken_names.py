"""Names that another fleet's stack has in moto, which replaces and returns what has a name as AWS does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import apply, destroy, taken_names
from llm_serving.operations.context import FleetContext
from llm_serving.operations.destroy import DestroyPlan
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import Plan, ResourceChange
from llm_serving.terraform.runner import Terraform
from llm_serving.terraform.state import StackState

FLEET = """\
name: NAME
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools:
  general: {types: g6.xlarge, size: 0..2}
"""

NAMES = {
    "aws_cloudwatch_metric_alarm": "ml-dev-a-errors",
    "aws_cloudwatch_event_rule": "ml-dev-a-failed",
    "aws_sqs_queue": "ml-dev-a-search-high",
    "aws_cloudwatch_log_group": "/aws/vendedlogs/states/ml-dev-a",
}

THEIRS = {"fleet": "ml", "stack": "batch-dev-a"}


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSession]:
    """An account in which the stack batch-dev-a of the fleet ml has each name, and nobody has them with -free."""
    with emulator.start(tmp_path_factory.mktemp("aws"), bare=True) as endpoint:
        session = emulator.open_session(endpoint, "us-west-2")
        for suffix in ("", "-longer"):  # whose name begins as that of another
            _make(session, {kind: name + suffix for kind, name in NAMES.items()}, THEIRS)
        _make(session, {kind: f"{name}-bare" for kind, name in NAMES.items()}, {})
        yield session


def _make(aws: AwsSession, names: dict[str, str], tags: dict[str, str]) -> None:
    alarm, rule, queue, group = names.values()
    rows = [{"Key": key, "Value": value} for key, value in tags.items()]
    metric: dict[str, Any] = {"Namespace": "N", "MetricName": "M", "Period": 60, "Statistic": "Sum", "Threshold": 1}
    aws.client("cloudwatch").put_metric_alarm(
        AlarmName=alarm, EvaluationPeriods=1, ComparisonOperator="GreaterThanThreshold", Tags=rows, **metric
    )
    aws.client("events").put_rule(Name=rule, ScheduleExpression="rate(1 minute)", Tags=rows)
    aws.client("sqs").create_queue(QueueName=queue, tags=tags)
    aws.client("logs").create_log_group(logGroupName=group, tags=tags)


def check(
    tmp_path: Path,
    aws: AwsSession,
    suffix: str = "",
    fleet: str = "ml-dev",
    stack: str = "batch-a",
    action: str = "create",
    require: Callable[[FleetContext, list[StackPlan]], None] = taken_names.require_free,
) -> None:
    """Check a plan that does `action` to what the stack has of each kind."""
    resources = {kind: {"one": {"name": name + suffix}} for kind, name in NAMES.items()}
    resources["aws_sqs_queue"]["named-later"] = {"name": "${aws_vpc.vpc.id}"}
    (tmp_path / "cdk.tf.json").write_text(json.dumps({"resource": resources}))
    changes = [ResourceChange(f"{kind}.{key}", (action,)) for kind, rows in resources.items() for key in rows]
    context = build_context(tmp_path, aws, fleet, stack)
    require(context, [StackPlan(stack, 5, Plan({change.address: change for change in changes}))])


def build_context(tmp_path: Path, aws: AwsSession, fleet: str, stack: str) -> FleetContext:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("NAME", fleet))
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return FleetContext(load(file, Fleet), tmp_path, {stack: tmp_path}, program, aws, "123456789012")


def test_an_apply_refuses_names_of_another_fleets_stack(tmp_path: Path, aws: AwsSession) -> None:
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, aws, require=apply.apply)
    owner = "(of batch-dev-a, fleet ml)"
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: names of the plan are taken: ml-dev-a-errors {owner}, ml-dev-a-failed {owner}, "
        f"ml-dev-a-search-high {owner} and /aws/vendedlogs/states/ml-dev-a {owner}. Nothing of it was changed. "
        "Fix: choose another `name` of the deployment or the fleet"
    )


def test_names_of_another_stack_of_the_fleet_are_refused(tmp_path: Path, aws: AwsSession) -> None:
    with pytest.raises(CheckFailed, match=r"ml-dev-a-errors \(of batch-dev-a, fleet ml\)"):
        check(tmp_path, aws, fleet="ml", stack="batch-dev")


@pytest.mark.parametrize(
    "change",
    [
        {"suffix": "-free"},
        {"suffix": "-bare"},
        {"suffix": "-long"},
        {"fleet": "ml", "stack": "batch-dev-a"},
        {"action": "update"},
    ],
    ids=["free", "without tags", "beginning of another", "its own", "already made"],
)
def test_other_plans_pass(tmp_path: Path, aws: AwsSession, change: dict[str, Any]) -> None:
    check(tmp_path, aws, **change)


def test_a_second_network_of_a_fleets_name_is_refused_and_no_destroy_without_its_state_ends_well(
    tmp_path: Path, aws: AwsSession
) -> None:
    tags = [{"Key": key, "Value": "twin"} for key in ("fleet", "Name")]
    specification = [{"ResourceType": "vpc", "Tags": tags}]
    vpc = aws.client("ec2").create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=specification)["Vpc"]["VpcId"]

    def require(fleet: str, *actions: str) -> None:
        change = ResourceChange("aws_vpc.vpc", actions)
        context = build_context(tmp_path, aws, fleet, "network")
        taken_names.require_free(context, [StackPlan("network", 1, Plan({change.address: change}))])

    require("twin-dev", "create")
    require("twin", "delete", "create")  # it is its own
    with pytest.raises(CheckFailed) as error:
        require("twin", "create")
    assert str(error.value) == (
        f'{tmp_path}/fleet.yaml:1:7: name: "twin": {vpc} in this account and region is a fleet\'s of this name, and not '
        "in the state of this one. Fix: choose another name, or run this with the state of that fleet; one that an apply "
        "left over that was killed, delete in the VPC console, which deletes its subnets too. Nothing was changed"
    )
    context = build_context(tmp_path, aws, "twin", "network")
    elsewhere = DestroyPlan(context, {}, (), (), (), (), (), with_data=False)
    with pytest.raises(CheckFailed, match="run this with the state of that fleet"):
        destroy.require_no_dependents(elsewhere)
    destroy.require_no_dependents(replace(elsewhere, states={"network": StackState({}, ("aws_vpc.vpc",))}))
