"""A security group without rules: it denies all traffic until rules are added."""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack


def add_security_group(
    stack: TerraformStack, construct_id: str, *, name: str, description: str, vpc_id: str
) -> aws.security_group.SecurityGroup:
    """Add the group, known in AWS by `name`."""
    return aws.security_group.SecurityGroup(
        stack, construct_id, name=name, description=description, vpc_id=vpc_id, tags={"Name": name}
    )
