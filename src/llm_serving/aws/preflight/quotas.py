"""Whether the account's service quotas hold the fleet at its greatest size."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_serving.aws import session as session
from llm_serving.aws.preflight import runner
from llm_serving.aws.preflight.check import Check, CheckResult, Status, build_kind_result, build_unknown_result
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import account_needs, quotas
from llm_serving.catalog.quotas import Quota
from llm_serving.fleet.capacity import Capacity, Limit, Need
from llm_serving.fleet.model import Fleet

_USAGE_HOURS = 3
"""CloudWatch's usage metrics come every few minutes; the newest of these hours counts."""

_OPEN_STATUSES = ("PENDING", "CASE_OPENED")
"""Requests that AWS has not answered yet."""

_COUNTED_RESOURCES: Mapping[Quota, tuple[str, str]] = {
    quotas.VPCS: ("describe_vpcs", "Vpcs"),
    quotas.INTERNET_GATEWAYS: ("describe_internet_gateways", "InternetGateways"),
    quotas.ELASTIC_IPS: ("describe_addresses", "Addresses"),
}
"""Quotas so small that what is there decides: counted one by one, but for what this fleet has made itself."""


def list_checks(aws: AwsSession, fleet: Fleet, requirements: Capacity) -> list[Check]:
    """One for each quota that the fleet touches, and the limits that are the same for everybody."""
    return [
        *(_build_check(aws, fleet, need) for need in requirements.needs if need.amount),
        *(
            _build_kind_check(_build_check(aws, fleet, Need(row.quota, row.amount, row.breakdown)), kind)
            for kind, needs in account_needs.load_all().items()
            for row in needs.quotas  # what one deployment of the kind uses
            if row.orchestrator in fleet.orchestrators
        ),
        Check("quotas", "limits", lambda: [_check_limit(limit) for limit in requirements.limits]),
    ]


def _build_kind_check(check: Check, kind: str) -> Check:
    def execute() -> list[CheckResult]:
        results = check.list_results()
        return [build_kind_result(result, kind) if result.status == "fail" else result for result in results]

    return replace(check, execute=execute)


def _check_limit(limit: Limit) -> CheckResult:
    message, usage_ratio = f"{limit.amount:,} of {limit.most:,}", limit.amount / limit.most
    if limit.amount <= limit.most:
        return CheckResult(limit.name, "pass", message, usage_ratio=usage_ratio)
    fix = "use fewer zones, types or ways to buy in a pool, smaller pools, or a second fleet for some of them"
    return CheckResult(limit.name, "fail", f"needs {message} ({limit.source})", fix, usage_ratio=usage_ratio)


def _build_check(aws: AwsSession, fleet: Fleet, need: Need) -> Check:
    counting_action = (
        f"ec2:{_COUNTED_RESOURCES[need.quota][0].title().replace('_', '')}"
        if need.quota in _COUNTED_RESOURCES
        else "cloudwatch:GetMetricData"
    )
    actions = ("servicequotas:GetServiceQuota", "servicequotas:GetAWSDefaultServiceQuota", counting_action)
    return Check("quotas", _format_name(need.quota), lambda: _check_quota(aws, fleet, need, actions), actions)


def _format_name(quota: Quota, aws_name: str | None = None) -> str:
    """AWS's own name; EKS's name nothing but what is counted."""
    return f"{'EKS: ' if quota.service == 'eks' else ''}{aws_name or quota.name}"


def _check_quota(aws: AwsSession, fleet: Fleet, need: Need, actions: Sequence[str]) -> CheckResult:
    """Return the line; where AWS does not say, at least what is needed and what a new account has."""
    try:
        return _compare_with_quota(aws, fleet, need)
    except session.get_error_types() as error:
        message = f"{_describe_need(need)}; a new account has {need.quota.default:,.0f}"
        return build_unknown_result(
            _format_name(need.quota), runner.describe_error(error), runner.suggest_fix(error, actions), message=message
        )


def _describe_need(need: Need) -> str:
    unit = f" {need.quota.unit}" if need.quota.unit else ""
    return f"needs up to {need.amount:,}{unit}{f' ({need.breakdown})' if need.breakdown else ''}"


def _compare_with_quota(aws: AwsSession, fleet: Fleet, need: Need) -> CheckResult:
    response = _fetch_quota(aws, need.quota)
    name, value = _format_name(need.quota, response.get("QuotaName")), float(response["Value"])
    usage = _fetch_usage(aws, fleet, need.quota, response)
    usage_ratio = (need.amount + usage) / value if value else math.inf
    if need.amount > value:
        message = f"{_describe_need(need)}; the quota is {value:,.0f}"
        remedy = _suggest_increase(aws, need, response, usage)
        return CheckResult(name, "fail", message, *remedy, usage_ratio=usage_ratio)
    if usage and need.amount + usage > value:
        message = f"{_describe_need(need)}, plus {usage:,.0f} in use; the quota is {value:,.0f}"
        # A count leaves this fleet out, so it is sure; a metric holds its running instances too.
        status: Status = "fail" if need.quota in _COUNTED_RESOURCES else "warn"
        remedy = _suggest_increase(aws, need, response, usage)
        return CheckResult(name, status, message, *remedy, usage_ratio=usage_ratio)
    unit = f" {need.quota.unit}" if need.quota.unit else ""
    usage_note = f", {usage:,.0f} in use" if usage else ""
    return CheckResult(name, "pass", f"{need.amount:,} of {value:,.0f}{unit}{usage_note}", usage_ratio=usage_ratio)


def _suggest_increase(
    aws: AwsSession, need: Need, response: Mapping[str, Any], usage: float
) -> tuple[str, tuple[str, ...]]:
    if not response.get("Adjustable", True):
        return "this quota cannot be raised: use a smaller fleet, or two in two accounts or regions", ()
    desired_value = math.ceil(need.amount + usage)
    requested = _fetch_requested_value(aws, need.quota)
    if requested >= desired_value:
        return f"{requested:,.0f} already requested: wait for AWS's answer", ()
    command = (
        *("aws", "service-quotas", "request-service-quota-increase", "--region", aws.region),
        *("--service-code", need.quota.service, "--quota-code", need.quota.code, "--desired-value", str(desired_value)),
    )
    if need.quota.unit == "vCPUs":  # people decide on those of accelerators, and ask back
        return "request more, days ahead, or use smaller pools", command
    return f"request more{', or remove unused ones' if usage else ''}", command


def _fetch_requested_value(aws: AwsSession, quota: Quota) -> float:
    """Return what an open request asks for; 0 where there is none, or where nobody says."""
    with contextlib.suppress(*session.get_error_types()):
        response = aws.client("service-quotas").list_requested_service_quota_change_history_by_quota(
            ServiceCode=quota.service, QuotaCode=quota.code
        )
        requests = [row for row in response["RequestedQuotas"] if row["Status"] in _OPEN_STATUSES]
        return float(max((row["DesiredValue"] for row in requests), default=0))
    return 0.0


def _fetch_quota(aws: AwsSession, quota: Quota) -> Mapping[str, Any]:
    """Return the account's own value; AWS's default where the account has none."""
    client = aws.client("service-quotas")
    identifiers = {"ServiceCode": quota.service, "QuotaCode": quota.code}
    with session.ignore_errors("NoSuchResource"):
        own: Mapping[str, Any] = client.get_service_quota(**identifiers)["Quota"]
        return own
    default: Mapping[str, Any] = client.get_aws_default_service_quota(**identifiers)["Quota"]
    return default


def _fetch_usage(aws: AwsSession, fleet: Fleet, quota: Quota, quota_response: Mapping[str, Any]) -> float:
    """Return how much of a quota is in use, as far as AWS tells."""
    if quota in _COUNTED_RESOURCES:
        method, key = _COUNTED_RESOURCES[quota]
        ec2 = aws.client("ec2")
        is_paged = ec2.can_paginate(method)
        resources = session.list_all(ec2, method, key) if is_paged else getattr(ec2, method)()[key]
        own = {"Key": "fleet", "Value": fleet.name}  # the fleet's stacks tag all that they make
        return sum(own not in resource.get("Tags", ()) for resource in resources)
    metric = quota_response.get("UsageMetric")
    return _fetch_latest_usage(aws, metric) if metric else 0.0


def _fetch_latest_usage(aws: AwsSession, metric: Mapping[str, Any]) -> float:
    now = datetime.datetime.now(datetime.UTC)
    dimensions = [{"Name": name, "Value": value} for name, value in metric["MetricDimensions"].items()]
    name, namespace = metric["MetricName"], metric["MetricNamespace"]
    metric_identity = {"Namespace": namespace, "MetricName": name, "Dimensions": dimensions}
    stat = {"Metric": metric_identity, "Period": 300, "Stat": metric.get("MetricStatisticRecommendation", "Maximum")}
    response = aws.client("cloudwatch").get_metric_data(
        MetricDataQueries=[{"Id": "used", "MetricStat": stat}],
        StartTime=now - datetime.timedelta(hours=_USAGE_HOURS),
        EndTime=now,
        ScanBy="TimestampDescending",
    )
    values = response["MetricDataResults"][0]["Values"] if response["MetricDataResults"] else []
    return float(values[0]) if values else 0.0
