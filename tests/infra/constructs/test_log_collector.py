"""What the log collector of EKS may do with each output, and what holds the logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.constructs import controllers
from infra.constructs.fleet_stack import Account
from llm_serving.fleet.model import Fleet

ACCOUNT = Account("123456789012", "123456789012", "caller", "aws", "amazonaws.com", "us-west-2")
KEY = "arn:aws:kms:us-west-2:123456789012:key/12345678-1234-1234-1234-123456789012"
HASH = "a1" * 13


@pytest.mark.parametrize(
    ("to", "allowed"),
    [
        (
            "cloudwatch",
            {
                ("logs:CreateLogStream", "logs:PutLogEvents"): (
                    "arn:aws:logs:us-west-2:123456789012:log-group:/aws/containerinsights/demo/application:*"
                )
            },
        ),
        (
            "s3",
            {
                ("s3:PutObject",): "arn:aws:s3:::demo-logs-123456789012-us-west-2/logs/*",
                ("kms:GenerateDataKey",): KEY,
            },
        ),
        (
            f"search-app-logs-{HASH}.us-west-2.es.amazonaws.com",
            {("es:ESHttpPost",): "arn:aws:es:us-west-2:123456789012:domain/app-logs/*"},
        ),
    ],
)
def test_the_collector_writes_to_the_fleet_s_output_and_reads_nothing(
    to: str, allowed: dict[tuple[str, ...], str]
) -> None:
    fleet = Fleet.model_validate(
        {
            "name": "demo",
            "region": "us-west-2",
            "zones": ["us-west-2a", "us-west-2b"],
            "account": "123456789012",
            "logs": {"to": to},
            "pools": {"general": {"types": "g6e.2xlarge", "size": "0..2"}},
        }
    )
    statements = controllers.build_log_statements(fleet, ACCOUNT, KEY)
    assert {tuple(statement["Action"]): statement["Resource"] for statement in statements} == allowed  # type: ignore[arg-type]


def test_the_log_group_is_kept_as_long_as_the_fleet_says_under_the_cluster_s_key(
    stacks: dict[tuple[str, str], dict[str, Any]],
) -> None:
    stack = stacks["existing", "eks"]
    group = stack["resource"]["aws_cloudwatch_log_group"]["container-logs"]
    assert group["name"] == "/aws/containerinsights/demo/application"
    assert (group["retention_in_days"], group["kms_key_id"]) == (30, "${aws_kms_key.cluster-key.arn}")
    grants = {
        row["Sid"]: row for row in json.loads(stack["resource"]["aws_kms_key"]["cluster-key"]["policy"])["Statement"]
    }
    [context] = grants["ContainerLogs"]["Condition"]["ArnEquals"].values()
    assert context.endswith(f":log-group:{group['name']}")
    association = stack["resource"]["aws_eks_pod_identity_association"]["logs-identity"]
    assert (association["namespace"], association["service_account"]) == ("kube-system", "aws-for-fluent-bit")
    assert "container-logs" not in stacks["eks", "eks"]["resource"]["aws_cloudwatch_log_group"], "nobody asked"
