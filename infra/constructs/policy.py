"""IAM and resource policies as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Statement = Mapping[str, object]
"""One statement of a policy document, with IAM's own keys."""


def build_document(*statements: Statement) -> str:
    """A policy's JSON text. Values may be CDKTF tokens: Terraform fills them in."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def build_trust_policy(service: str, **condition: Any) -> str:
    """A role's trust policy for one AWS service, such as vpc-flow-logs.amazonaws.com."""
    statement: dict[str, object] = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return build_document({**statement, "Condition": condition} if condition else statement)
