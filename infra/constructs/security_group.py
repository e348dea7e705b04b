"""A security group without rules: nothing comes in and nothing goes out until a rule says so."""

from __future__ import annotations

from typing import Any

from infra.bindings import aws


def add_security_group(stack: Any, construct_id: str, *, name: str, description: str, vpc_id: str) -> Any:
    """Adds the group, known in AWS by `name`."""
    return aws.security_group.SecurityGroup(
        stack, construct_id, name=name, description=description, vpc_id=vpc_id, tags={"Name": name}
    )
