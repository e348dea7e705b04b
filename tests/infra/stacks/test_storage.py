"""What watches a fleet of any orchestrator: its quotas and its Capacity Blocks."""

from __future__ import annotations

import json
from typing import Any

Stack = dict[str, Any]
Stacks = dict[tuple[str, str], Stack]

TOPIC = "arn:aws:sns:us-west-2:123456789012:on-call"


def test_an_alarm_rings_before_a_quota_of_the_fleets_instances_is_used(stacks: Stacks) -> None:
    alarms = stacks["machines", "storage"]["resource"]["aws_cloudwatch_metric_alarm"]
    # A Capacity Block counts against no quota, and the cluster's own nodes are of the standard families.
    classes = ["G/OnDemand", "G/Spot", "P/OnDemand", "Standard/OnDemand"]
    assert sorted(row["metric_query"][0]["metric"]["dimensions"]["Class"] for row in alarms.values()) == classes
    alarm = alarms["quota-p-ondemand-alarm"]
    used, percent = alarm["metric_query"]
    assert used["metric"] == {
        "namespace": "AWS/Usage",
        "metric_name": "ResourceCount",
        "dimensions": {"Class": "P/OnDemand", "Resource": "vCPU", "Service": "EC2", "Type": "Resource"},
        "period": 300,
        "stat": "Maximum",
    }
    assert percent["expression"] == "100 * used / SERVICE_QUOTA(used)"
    assert percent["return_data"] is True
    assert (alarm["comparison_operator"], alarm["threshold"]) == ("GreaterThanThreshold", 80)
    assert (alarm["alarm_name"], alarm["alarm_actions"]) == ("demo-quota-p-ondemand", [TOPIC])


def test_the_topic_hears_of_the_end_of_the_fleets_own_capacity_block(stacks: Stacks) -> None:
    resources = stacks["machines", "storage"]["resource"]
    [rule] = resources["aws_cloudwatch_event_rule"].values()
    # Both editions of AWS's page: docs.aws.amazon.com has the first, docs.amazonaws.cn the second.
    assert json.loads(rule["event_pattern"]) == {
        "source": ["aws.ec2"],
        "detail-type": ["Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"],
        "detail": {"capacity-reservation-id": ["cr-0123456789abcdef0"]},
    }
    [target] = resources["aws_cloudwatch_event_target"].values()
    assert target["arn"] == TOPIC


def test_a_fleet_without_a_topic_or_a_block_has_neither(stacks: Stacks) -> None:
    watched = {"aws_cloudwatch_metric_alarm", "aws_cloudwatch_event_rule"}
    assert not watched & stacks["eks", "storage"]["resource"].keys()
    assert not watched & stacks["instances", "storage"]["resource"].keys()
