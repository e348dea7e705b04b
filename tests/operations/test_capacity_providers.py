"""A plan that deletes capacity providers, and the services that use them.

moto keeps no strategy of a service, so the answers here are of ECS's published shapes and checked against them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import capacity_providers
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import Plan, ResourceChange
from llm_serving.terraform.runner import Terraform

FLEET = """\
name: moved
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools:
  general: {types: g6.xlarge, size: 0..2}
"""
ADDRESS = "aws_ecs_capacity_provider.general-g6-a-od"
SERVICE = "arn:aws:ecs:us-west-2:123456789012:service/moved/mine-worker"


def build_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ecs: Any) -> FleetContext:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    session = AwsSession("us-west-2")
    monkeypatch.setattr(AwsSession, "client", lambda *_: ecs)
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return FleetContext(load(file, Fleet), tmp_path, {}, program, session, "123456789012")


def build_plan(*actions: str) -> list[StackPlan]:
    return [StackPlan("ecs", 1, Plan({ADDRESS: ResourceChange(ADDRESS, actions)}))]


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, *actions: str) -> None:
    """Checks a plan that does `actions` to the pool's provider, while a service uses `provider`."""
    ecs = boto3.client("ecs", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="x")
    service = {
        "serviceName": "mine-worker",
        "capacityProviderStrategy": [{"capacityProvider": provider, "weight": 1}],
    }
    with Stubber(ecs) as stub:
        if "delete" in actions:
            stub.add_response("list_services", {"serviceArns": [SERVICE]}, {"cluster": "moved"})
            stub.add_response(
                "describe_services",
                {"services": [service]},
                {"cluster": "moved", "services": [SERVICE], "include": ["TAGS"]},
            )
        capacity_providers.require_unused(build_context(tmp_path, monkeypatch, ecs), build_plan(*actions))
        stub.assert_no_pending_responses()


def test_a_provider_that_a_service_uses_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, monkeypatch, "cp-moved-general-g6-a-od", "delete")
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: the plan deletes capacity providers that services on ECS still use: mine-worker uses "
        "cp-moved-general-g6-a-od. Nothing was changed. Fix: run `blueprint deploy DIR --target ecs` with this fleet "
        "file first, which moves the tasks; then run this again."
    )


def test_another_provider_in_its_place_is_made_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deploy with this file would name a provider that is not there."""
    new = "aws_ecs_capacity_provider.general-g5-a-od"
    monkeypatch.setattr(
        f"{__name__}.build_plan",
        lambda *actions: [
            StackPlan(
                "ecs", 1, Plan({ADDRESS: ResourceChange(ADDRESS, actions), new: ResourceChange(new, ("create",))})
            )
        ],
    )
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, monkeypatch, "cp-moved-general-g6-a-od", "delete")
    assert str(error.value).endswith(
        "Nothing was changed. Fix: keep what the pool had beside what is new, or add another pool, and run this; then "
        "remove the old, and run `blueprint deploy DIR --target ecs` with this fleet file first, which moves the tasks; "
        "then run this again."
    )


def test_a_provider_that_no_service_uses_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, "cp-moved-general-g6-b-od", "delete")


def test_a_plan_that_deletes_no_provider_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, "cp-moved-general-g6-a-od", "update")


@pytest.mark.parametrize(
    "name", ["aws_launch_template.general-g6-a-od-template", "aws_autoscaling_group.general-g6-a-od-machines"]
)
def test_instances_do_not_change_to_a_type_that_their_services_do_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The refresh of the group would go on until no instance is left that has a task."""

    def check_types(*types: str, verb: str = "update") -> None:
        ecs = boto3.client("ecs", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="x")
        service = {
            "serviceName": "mine-worker",
            "capacityProviderStrategy": [{"capacityProvider": "cp-moved-general-g6-a-od", "weight": 1}],
            "placementConstraints": [
                {"type": "memberOf", "expression": expression}
                for expression in (
                    f"attribute:ecs.instance-type in [{', '.join(types)}]",
                    "attribute:ecs.availability-zone in [us-west-2a]",
                )
                if types
            ],
        }
        with Stubber(ecs) as stub:
            if verb == "update":
                stub.add_response("list_services", {"serviceArns": [SERVICE]}, {"cluster": "moved"})
                asked = {"cluster": "moved", "services": [SERVICE], "include": ["TAGS"]}
                stub.add_response("describe_services", {"services": [service]}, asked)
            plans = [StackPlan("ecs", 1, Plan({name: ResourceChange(name, (verb,))}))]
            capacity_providers.require_placeable(build_context(tmp_path, monkeypatch, ecs), plans)
            stub.assert_no_pending_responses()

    with pytest.raises(CheckFailed) as error:
        check_types("g6.12xlarge", "g6.48xlarge")
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: services on ECS would lose their instances and start on no new one: mine-worker takes "
        "g6.12xlarge and g6.48xlarge, and cp-moved-general-g6-a-od would have g6.xlarge. Nothing was changed. Fix: write "
        "the new type after the old in the pool, run this and `blueprint deploy DIR --target ecs`; then remove the old, "
        "deploy, and run this again."
    )
    check_types("g6.12xlarge", "g6.xlarge")
    check_types()
    check_types("g6.12xlarge", verb="create")
