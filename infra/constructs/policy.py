"""IAM and resource policies as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from infra.constructs.fleet_stack import FleetStack
from llm_serving.settings import own_yaml

_FOLDER = Path(__file__).with_name("policies")

Statement = Mapping[str, object]
"""One statement of a policy document, with IAM's own keys."""

EVENTS = "events.amazonaws.com"
"""EventBridge as a principal."""


def allow(
    sid: str,
    actions: str | Sequence[str],
    resources: str | Sequence[str],
    *,
    condition: Mapping[str, object] | None = None,
) -> Statement:
    """Build a statement that allows actions, such as s3:GetObject, on resources: ARNs, or "*" for all.

    Args:
        sid: name of the statement in its policy: letters and digits.
        condition: by operator, as IAM writes it.
    """
    statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def read_statements(stack: FleetStack, name: str, **values: str) -> list[Statement]:
    """Return the statements of policies/NAME.yaml, with the stack's names and `values` in place of ${KEYS}."""
    account = stack.account
    keys = {"account": account.id, "partition": account.partition, "region": account.region}
    keys |= {"dns_suffix": account.dns_suffix, "cluster": stack.cluster_name, "fleet": stack.fleet.name}

    def fill_in(node: Any) -> Any:
        if isinstance(node, dict):
            return {fill_in(key): fill_in(child) for key, child in node.items()}
        return [*map(fill_in, node)] if isinstance(node, list) else Template(node).substitute(keys, **values)

    return [fill_in(statement) for statement in own_yaml.read(_FOLDER / f"{name}.yaml")]


def build_document(*statements: Statement) -> str:
    """Build a policy's JSON text. Values may be CDKTF tokens, which Terraform replaces."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def build_trust_policy(service: str, **condition: Any) -> str:
    """Build a role's trust policy for an AWS service, such as vpc-flow-logs.amazonaws.com."""
    statement: dict[str, object] = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return build_document({**statement, "Condition": condition} if condition else statement)


def allow_service(
    sid: str,
    service: str,
    actions: str | Sequence[str],
    resources: str | Sequence[str],
    *,
    condition: Mapping[str, object] | None = None,
) -> Statement:
    """Build a statement of a resource's own policy that allows an AWS service, such as events.amazonaws.com."""
    principal = {"Sid": sid, "Effect": "Allow", "Principal": {"Service": service}}
    return {**principal, **allow(sid, actions, resources, condition=condition)}


def allow_rules(sid: str, queue_arn: str, rule_arns: str | Sequence[str]) -> Statement:
    """Build a statement of a queue's policy that lets these EventBridge rules fill it, and no other account's."""
    own_rules = {"ArnEquals": {"aws:SourceArn": rule_arns}}
    return allow_service(sid, EVENTS, "sqs:SendMessage", queue_arn, condition=own_rules)


def require_tls(actions: str, resources: str | Sequence[str]) -> Statement:
    """Build a statement of a resource's own policy that denies whatever comes without TLS."""
    return {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": actions,
        "Resource": resources,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
