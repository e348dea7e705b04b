"""An IAM role with what it may do: AWS's own policies where they are the norm, else statements of ours."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformResource
from infra.constructs import policy
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement
from llm_serving.fleet import names


def add_role(
    stack: FleetStack,
    name: str,
    *,
    description: str,
    trust: str,
    managed: Sequence[str] = (),
    statements: Sequence[Statement] = (),
) -> aws.iam_role.IamRole:
    """Add a role named FLEET-REGION-`name`: roles are the account's, so the region is in their names.

    Args:
        name: at most 16 characters, for IAM takes 64 in all.
        trust: who may take it on, as `policy.build_trust_policy` gives it.
        managed: AWS's own policies, named as below arn:aws:iam::aws:policy/.
        statements: what else it may do.
    """
    iam_role = aws.iam_role.IamRole(
        stack,
        f"{name}-role",
        name=names.format_role_name(stack.fleet.name, stack.account.region, name),
        description=description,
        assume_role_policy=trust,
        permissions_boundary=stack.fleet.permissions_boundary,
    )
    for arn in managed:
        aws.iam_role_policy_attachment.IamRolePolicyAttachment(
            stack,
            f"{name}-role-{arn.rpartition('/')[2]}",
            role=iam_role.name,
            policy_arn=f"arn:{stack.account.partition}:iam::aws:policy/{arn}",
        )
    if statements:
        aws.iam_role_policy.IamRolePolicy(
            stack, f"{name}-role-policy", name=name, role=iam_role.name, policy=policy.build_document(*statements)
        )
    return iam_role


def list_policies(stack: FleetStack, name: str) -> list[ITerraformDependable]:
    """List what `role` gave the role `name`. Whoever acts by the role names these in depends_on: made after its rights,
    and gone before they are, so that it can still clean up.
    """
    return [
        child
        for child in stack.node.children
        if isinstance(child, TerraformResource) and child.node.id.startswith(f"{name}-role-")
    ]
