"""Of service quotas the embedded AWS knows VPC's alone, and usage metrics not at all: the rest is recorded here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_serving.aws.preflight import quotas as preflight_quotas
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import account_needs, quotas
from llm_serving.fleet import capacity
from llm_serving.fleet.capacity import Limit

POOL = "  prefill:\n    types: p5.48xlarge\n    zones: us-west-2a\n    size: 0..4\n"
P = quotas.find_family("p5.48xlarge").on_demand
METRIC = {
    "MetricNamespace": "AWS/Usage",
    "MetricName": "ResourceCount",
    "MetricDimensions": {"Service": "EC2", "Resource": "vCPU", "Type": "Resource", "Class": "P/OnDemand"},
    "MetricStatisticRecommendation": "Maximum",
}


def _build_response(value: float, **fields: Any) -> dict[str, Any]:
    return {"Quota": {"ServiceCode": "ec2", "QuotaCode": P.code, "QuotaName": P.name, "Value": value, **fields}}


def _check_quota(
    stubbed_aws: Any, read_fleet: Any, quota: quotas.Quota, pools: str = POOL, **options: str
) -> CheckResult:
    document = read_fleet(pools, **options)
    fleet_capacity = capacity.compute(document.value)
    (check,) = [
        candidate
        for candidate in preflight_quotas.list_checks(stubbed_aws, document.value, fleet_capacity)
        if candidate.name == quota.name
    ]
    (line,) = check.list_results()
    return line


def test_a_quota_that_is_too_low_fails_with_the_command_that_asks_for_more(stubbed_aws: Any, read_fleet: Any) -> None:
    expected = {"ServiceCode": "ec2", "QuotaCode": "L-417A185B"}
    stubbed_aws.stub("service-quotas").add_response(
        "get_service_quota", _build_response(192, Adjustable=True), expected
    )
    line = _check_quota(stubbed_aws, read_fleet, P)
    assert (line.name, line.status) == ("Running On-Demand P instances", "fail")
    assert line.message == "needs up to 768 vCPUs (prefill 4 × p5.48xlarge); the quota is 192"
    assert line.usage_ratio == 4
    assert " ".join(line.command) == (
        "aws service-quotas request-service-quota-increase --region us-west-2 "
        "--service-code ec2 --quota-code L-417A185B --desired-value 768"
    )


def test_more_that_is_asked_for_already_is_not_asked_for_again(stubbed_aws: Any, read_fleet: Any) -> None:
    stub = stubbed_aws.stub("service-quotas")
    for open_, command in ((768.0, False), (400.0, True)):
        stub.add_response("get_service_quota", _build_response(192, Adjustable=True))
        history = [{"DesiredValue": 9000.0, "Status": "DENIED"}, {"DesiredValue": open_, "Status": "CASE_OPENED"}]
        stub.add_response("list_requested_service_quota_change_history_by_quota", {"RequestedQuotas": history})
        line = _check_quota(stubbed_aws, read_fleet, P)
        assert line.status == "fail"
        assert bool(line.command) is command
        assert (line.fix == "768 already requested: wait for AWS's answer") is not command


def test_a_quota_that_is_enough_passes(stubbed_aws: Any, read_fleet: Any) -> None:
    stubbed_aws.stub("service-quotas").add_response("get_service_quota", _build_response(768))
    line = _check_quota(stubbed_aws, read_fleet, P)
    assert (line.status, line.message, line.command) == ("pass", "768 of 768 vCPUs", ())


def test_current_use_is_added_and_marked_as_uncertain(stubbed_aws: Any, read_fleet: Any) -> None:
    stubbed_aws.stub("service-quotas").add_response("get_service_quota", _build_response(1000, UsageMetric=METRIC))
    newest = {"MetricDataResults": [{"Id": "used", "Values": [384.0, 0.0]}]}
    stubbed_aws.stub("cloudwatch").add_response("get_metric_data", newest)
    line = _check_quota(stubbed_aws, read_fleet, P)
    assert line.status == "warn"
    assert line.message == ("needs up to 768 vCPUs (prefill 4 × p5.48xlarge), plus 384 in use; the quota is 1,000")
    assert line.command[-1] == "1152"


def test_a_quota_that_nobody_raises_says_so(stubbed_aws: Any, read_fleet: Any) -> None:
    stubbed_aws.stub("service-quotas").add_response("get_service_quota", _build_response(0, Adjustable=False))
    line = _check_quota(stubbed_aws, read_fleet, P)
    assert line.status == "fail"
    assert line.fix == "this quota cannot be raised: use a smaller fleet, or two in two accounts or regions"
    assert line.command == ()


def test_an_account_without_a_value_of_its_own_has_the_default(stubbed_aws: Any, read_fleet: Any) -> None:
    stub = stubbed_aws.stub("service-quotas")
    stub.add_client_error("get_service_quota", "NoSuchResourceException", "no such quota")
    stub.add_response("get_aws_default_service_quota", _build_response(1000))
    assert _check_quota(stubbed_aws, read_fleet, P).status == "pass"


def test_a_role_without_quota_rights_gets_the_need_and_the_action_to_allow(stubbed_aws: Any, read_fleet: Any) -> None:
    stubbed_aws.stub("service-quotas").add_client_error("get_service_quota", "AccessDeniedException", "not authorized")
    line = _check_quota(stubbed_aws, read_fleet, P)
    assert (line.status, line.is_known) == ("warn", False)
    assert line.unknown_reason == "no permission for GetServiceQuota"
    assert line.message == "needs up to 768 vCPUs (prefill 4 × p5.48xlarge); a new account has 0"
    assert line.fix.startswith("allow servicequotas:GetServiceQuota, ")


@pytest.mark.terraform
def test_vpcs_of_others_count_and_the_fleets_own_do_not(account: AwsSession, read_fleet: Any) -> None:
    # Asked of the embedded AWS itself: it has one VPC from the beginning, and its quota is five.
    ec2 = account.client("ec2")
    for _ in range(4):
        ec2.create_vpc(CidrBlock="10.0.0.0/16")
    line = _check_quota(account, read_fleet, quotas.VPCS)
    assert line.status == "fail"
    assert line.message == "needs up to 1, plus 5 in use; the quota is 5"
    assert line.command[-1] == "6"
    own_vpc = ec2.describe_vpcs()["Vpcs"][-1]["VpcId"]
    ec2.create_tags(Resources=[own_vpc], Tags=[{"Key": "fleet", "Value": "demo"}])
    line = _check_quota(account, read_fleet, quotas.VPCS)
    assert (line.status, line.message) == ("pass", "1 of 5, 4 in use")


def test_a_fixed_limit_is_compared_with_the_fleet(stubbed_aws: Any, read_fleet: Any) -> None:
    limit = Limit("capacity providers of the ECS cluster", 24, 20, "ECS developer guide")
    document = read_fleet(POOL)
    fleet_capacity = replace(capacity.compute(document.value), needs=(), limits=(limit,))
    (check,) = preflight_quotas.list_checks(stubbed_aws, document.value, fleet_capacity)
    (line,) = check.list_results()
    assert (line.status, line.message) == ("fail", "needs 24 of 20 (ECS developer guide)")


def test_a_quota_of_a_kind_of_work_only_warns(stubbed_aws: Any, read_fleet: Any) -> None:
    spot = next(row.quota for row in account_needs.load_all()["batch"].quotas if "Spot" in row.quota.name)
    stub = stubbed_aws.stub("service-quotas")
    stub.add_response("get_service_quota", {"Quota": {"QuotaName": spot.name, "Value": 1, "Adjustable": True}})
    stub.add_response("list_requested_service_quota_change_history_by_quota", {"RequestedQuotas": []})
    line = _check_quota(
        stubbed_aws, read_fleet, spot, head="name: demo\nregion: us-west-2\nzones: [us-west-2a]\norchestrator: ecs\n"
    )
    assert (line.status, line.message) == (
        "warn",
        "needs up to 2 vCPUs (the second worker of a batch, doubled in an update); the quota is 1",
    )
    assert line.fix.startswith("only if you deploy blueprints of kind: batch: ")
