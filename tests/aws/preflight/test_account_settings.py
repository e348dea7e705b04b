"""Settings of an account, which the embedded AWS does not have: answers in the form of botocore's models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from llm_serving.aws.preflight import account_settings
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.aws.preflight.identity import Identity

POOL = "  general:\n    types: g6e.xlarge\n    size: 1\n"
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\n"
CALLER = Identity("123456789012", "arn:aws:sts::123456789012:assumed-role/admin/me")
KEY = "arn:aws:kms:us-west-2:123456789012:key/0d1"
CLOSED = "image_cache: {docker_hub: 'arn:aws:secretsmanager:us-west-2:123456789012:secret:ecr-pullthroughcache/hub'}\n"


def run_check(stubbed_aws: Any, fleet: Any, name: str, service: str, calls: Mapping[str, Any]) -> CheckResult:
    for operation, answer in calls.items():
        stubbed_aws.stub(service).add_response(operation, answer)
    [check] = [item for item in account_settings.list_checks(stubbed_aws, fleet, CALLER) if item.name == name]
    [result] = check.list_results()
    assert result.name == name
    return result


def test_a_default_key_of_the_accounts_own_is_a_warning_with_the_statement_that_it_needs(
    stubbed_aws: Any, read_fleet: Any
) -> None:
    fleet = read_fleet(POOL).value
    calls = {"get_ebs_default_kms_key_id": {"KmsKeyId": KEY}}
    result = run_check(stubbed_aws, fleet, "default EBS key", "ec2", calls)
    assert (result.status, result.message) == (
        "warn",
        f"{KEY} is the account's own: instances end as they start unless its policy lets Auto Scaling use it",
    )
    intro, _, statement = result.fix.partition(": ")
    assert intro == "see that the key's policy has this statement, or one like it"
    conditions = {"kms:CallerAccount": "123456789012", "kms:ViaService": "ec2.us-west-2.amazonaws.com"}
    assert json.loads(statement)["Condition"] == {"StringEquals": conditions}
    assert "kms:CreateGrant" in json.loads(statement)["Action"]


def test_the_key_of_ebs_needs_nothing(stubbed_aws: Any, read_fleet: Any) -> None:
    calls = {"get_ebs_default_kms_key_id": {"KmsKeyId": "alias/aws/ebs"}}
    result = run_check(stubbed_aws, read_fleet(POOL).value, "default EBS key", "ec2", calls)
    assert (result.status, result.message) == ("pass", "alias/aws/ebs")


@pytest.mark.parametrize(
    ("state", "providers", "status"),
    [
        ("disabled", [], "pass"),
        ("audit-mode", ["123456789012"], "pass"),
        ("enabled", ["amazon"], "pass"),
        ("enabled", ["123456789012"], "fail"),
    ],
)
def test_allowed_amis_without_amazons_fail(
    stubbed_aws: Any, read_fleet: Any, state: str, providers: list[str], status: str
) -> None:
    answer = {"State": state, "ImageCriteria": [{"ImageProviders": providers}]}
    fleet = read_fleet(POOL).value
    result = run_check(stubbed_aws, fleet, "allowed AMIs", "ec2", {"get_allowed_images_settings": answer})
    assert result.status == status
    if status == "fail":
        assert result.message == "only AMIs of 123456789012 start; those of EKS and ECS are amazon's"
        assert result.fix == "add amazon to the image providers of Allowed AMIs"


@pytest.mark.parametrize(
    ("mode", "status"), [("off", "pass"), ("block-ingress", "pass"), ("block-bidirectional", "warn")]
)
def test_a_block_of_public_access_both_ways_stops_nat_gateways(
    stubbed_aws: Any, read_fleet: Any, mode: str, status: str
) -> None:
    answer = {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": mode}}
    calls = {"describe_vpc_block_public_access_options": answer}
    result = run_check(stubbed_aws, read_fleet(POOL).value, "VPC block public access", "ec2", calls)
    assert result.status == status


@pytest.mark.parametrize(("status", "expected"), [("ENABLED", "warn"), ("DISABLED", "pass")])
def test_agents_that_guardduty_manages_hold_up_the_destroy(
    stubbed_aws: Any, read_fleet: Any, status: str, expected: str
) -> None:
    feature = {
        "Name": "RUNTIME_MONITORING",
        "Status": "ENABLED",
        "AdditionalConfiguration": [{"Name": "EC2_AGENT_MANAGEMENT", "Status": status}],
    }
    calls = {
        "list_detectors": {"DetectorIds": ["d1"]},
        "get_detector": {"ServiceRole": "role", "Status": "ENABLED", "Features": [feature]},
    }
    result = run_check(stubbed_aws, read_fleet(POOL).value, "GuardDuty", "guardduty", calls)
    assert result.status == expected
    assert ("EC2_AGENT_MANAGEMENT" in result.message) is (expected == "warn")


@pytest.mark.parametrize(
    ("network", "asked"),
    [
        ("", ["default EBS key", "allowed AMIs", "GuardDuty", "VPC block public access"]),
        (f"network: {{nat: off}}\n{CLOSED}", ["default EBS key", "allowed AMIs", "GuardDuty"]),
        (
            "network: {vpc: vpc-0123456789abcdef0, private_subnets: [subnet-0123456789abcdef0, subnet-0123456789abcdef1]}\n",
            ["default EBS key", "allowed AMIs"],
        ),
    ],
)
def test_only_what_touches_the_fleet_is_asked_with_the_actions_that_it_takes(
    stubbed_aws: Any, read_fleet: Any, network: str, asked: list[str]
) -> None:
    checks = account_settings.list_checks(stubbed_aws, read_fleet(POOL, head=f"{HEAD}{network}").value, CALLER)
    assert [check.name for check in checks] == asked
    assert all(check.actions for check in checks)
