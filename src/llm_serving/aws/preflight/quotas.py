"""Whether the account's service quotas hold the fleet at its greatest size."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_serving.aws import session as clients
from llm_serving.aws.preflight import runner
from llm_serving.aws.preflight.check import Line, Question, Status, unknown
from llm_serving.aws.session import Aws
from llm_serving.catalog import quotas
from llm_serving.catalog.quotas import Quota
from llm_serving.fleet.capacity import Limit, Need, Scale
from llm_serving.fleet.model import Fleet

_USAGE_HOURS = 3
"""CloudWatch's usage metrics come every few minutes; the newest of these hours counts."""

_OPEN = ("PENDING", "CASE_OPENED")
"""Requests that AWS has not answered yet."""

_LISTED: Mapping[Quota, tuple[str, str]] = {
    quotas.VPCS: ("describe_vpcs", "Vpcs"),
    quotas.INTERNET_GATEWAYS: ("describe_internet_gateways", "InternetGateways"),
    quotas.ADDRESSES: ("describe_addresses", "Addresses"),
}
"""Quotas so small that what is there decides: counted one by one, but for what this fleet has made itself."""


def questions(aws: Aws, fleet: Fleet, met: Scale) -> list[Question]:
    """One for each quota that the fleet touches, and the limits that are the same for everybody."""
    asked = [_question(aws, fleet, need) for need in met.needs if need.amount]
    return [*asked, Question("quotas", "limits", lambda: [_limit(one) for one in met.limits])]


def _limit(limit: Limit) -> Line:
    said, share = f"{limit.amount:,} of {limit.most:,}", limit.amount / limit.most
    if limit.amount <= limit.most:
        return Line(limit.name, "pass", said, share=share)
    remedy = "fewer zones, types or ways to buy in a pool, smaller pools, or a second fleet for some of them"
    return Line(limit.name, "fail", f"needs {said} ({limit.source})", remedy, share=share)


def _question(aws: Aws, fleet: Fleet, need: Need) -> Question:
    counting = f"ec2:{_camel(_LISTED[need.quota][0])}" if need.quota in _LISTED else "cloudwatch:GetMetricData"
    actions = ("servicequotas:GetServiceQuota", "servicequotas:GetAWSDefaultServiceQuota", counting)
    return Question("quotas", _name(need.quota), lambda: [_answered(aws, fleet, need, actions)], actions)


def _name(quota: Quota, answered: str | None = None) -> str:
    """AWS's own name; EKS's name nothing but what is counted."""
    return f"{'EKS: ' if quota.service == 'eks' else ''}{answered or quota.name}"


def _camel(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))


def _answered(aws: Aws, fleet: Fleet, need: Need, actions: Sequence[str]) -> Line:
    """The line; where AWS does not say, at least what is needed and what a new account has."""
    try:
        return _line(aws, fleet, need)
    except clients.errors() as error:
        said = f"{_needs(need)}; a new account has {need.quota.default:,.0f}"
        return unknown(_name(need.quota), runner.why(error), runner.remedy(error, actions), said=said)


def _needs(need: Need) -> str:
    unit = f" {need.quota.unit}" if need.quota.unit else ""
    return f"needs up to {need.amount:,}{unit}{f' ({need.why})' if need.why else ''}"


def _line(aws: Aws, fleet: Fleet, need: Need) -> Line:
    answer = _asked(aws, need.quota)
    name, value = _name(need.quota, answer.get("QuotaName")), float(answer["Value"])
    used = _used(aws, fleet, need.quota, answer)
    share = (need.amount + used) / value if value else math.inf
    if need.amount > value:
        said = f"{_needs(need)}; the quota is {value:,.0f}"
        return Line(name, "fail", said, *_more(aws, need, answer, used), share=share)
    if used and need.amount + used > value:
        said = f"{_needs(need)}, beside {used:,.0f} in use; the quota is {value:,.0f}"
        return Line(name, _short(need.quota), said, *_more(aws, need, answer, used), share=share)
    unit = f" {need.quota.unit}" if need.quota.unit else ""
    beside = f", {used:,.0f} in use" if used else ""
    return Line(name, "pass", f"{need.amount:,} of {value:,.0f}{unit}{beside}", share=share)


def _short(quota: Quota) -> Status:
    """What is counted one by one leaves this fleet out, so it is sure; a metric holds its running machines too."""
    return "fail" if quota in _LISTED else "warn"


def _more(aws: Aws, need: Need, answer: Mapping[str, Any], used: float) -> tuple[str, tuple[str, ...]]:
    """The remedy and its command."""
    if not answer.get("Adjustable", True):
        return "AWS raises this quota for nobody: a smaller fleet, or two in two accounts or regions", ()
    wanted = math.ceil(need.amount + used)
    requested = _requested(aws, need.quota)
    if requested >= wanted:
        return f"{requested:,.0f} are asked for already: wait for AWS's answer", ()
    command = (
        *("aws", "service-quotas", "request-service-quota-increase", "--region", aws.region),
        *("--service-code", need.quota.service, "--quota-code", need.quota.code, "--desired-value", str(wanted)),
    )
    if need.quota.unit == "vCPUs":  # people decide on those of accelerators, and ask back
        return "ask AWS for more, days ahead, or make the pools smaller", command
    return f"ask AWS for more{', or remove what nobody uses' if used else ''}", command


def _requested(aws: Aws, quota: Quota) -> float:
    """What an open request asks for; 0 where there is none, or where nobody says."""
    with contextlib.suppress(*clients.errors()):
        answer = aws.client("service-quotas").list_requested_service_quota_change_history_by_quota(
            ServiceCode=quota.service, QuotaCode=quota.code
        )
        found = answer["RequestedQuotas"]
        return float(max((one["DesiredValue"] for one in found if one["Status"] in _OPEN), default=0))
    return 0.0


def _asked(aws: Aws, quota: Quota) -> Mapping[str, Any]:
    """The account's own value; AWS's default where the account has none."""
    from botocore.exceptions import ClientError

    client = aws.client("service-quotas")
    names = {"ServiceCode": quota.service, "QuotaCode": quota.code}
    try:
        answer: Mapping[str, Any] = client.get_service_quota(**names)["Quota"]
    except ClientError as error:
        if not clients.code(error).startswith("NoSuchResource"):
            raise
        answer = client.get_aws_default_service_quota(**names)["Quota"]
    return answer


def _used(aws: Aws, fleet: Fleet, quota: Quota, answer: Mapping[str, Any]) -> float:
    """How much of a quota is in use, as far as AWS tells."""
    if quota in _LISTED:
        method, key = _LISTED[quota]
        ec2 = aws.client("ec2")
        paged = ec2.can_paginate(method)
        found = ec2.get_paginator(method).paginate().build_full_result() if paged else getattr(ec2, method)()
        return sum(not _own(one, fleet) for one in found.get(key, ()))
    metric = answer.get("UsageMetric")
    return _newest(aws, metric) if metric else 0.0


def _own(thing: Mapping[str, Any], fleet: Fleet) -> bool:
    """Whether this fleet's stacks have made it: they tag all that they make."""
    return any(tag["Key"] == "fleet" and tag["Value"] == fleet.name for tag in thing.get("Tags", ()))


def _newest(aws: Aws, metric: Mapping[str, Any]) -> float:
    now = datetime.datetime.now(datetime.UTC)
    dimensions = [{"Name": name, "Value": value} for name, value in metric["MetricDimensions"].items()]
    named = {"Namespace": metric["MetricNamespace"], "MetricName": metric["MetricName"], "Dimensions": dimensions}
    stat = {"Metric": named, "Period": 300, "Stat": metric.get("MetricStatisticRecommendation", "Maximum")}
    answer = aws.client("cloudwatch").get_metric_data(
        MetricDataQueries=[{"Id": "used", "MetricStat": stat}],
        StartTime=now - datetime.timedelta(hours=_USAGE_HOURS),
        EndTime=now,
        ScanBy="TimestampDescending",
    )
    values = answer["MetricDataResults"][0]["Values"] if answer["MetricDataResults"] else []
    return float(values[0]) if values else 0.0
