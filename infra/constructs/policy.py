"""IAM and resource policies as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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
