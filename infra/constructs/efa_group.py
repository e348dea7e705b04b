"""The security group that EFA traffic needs: everything from itself, and everything to itself."""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs.security_group import add_security_group
from llm_serving.fleet import interfaces, names


def add_efa_group(stack: TerraformStack, *, fleet: str, vpc_id: str) -> aws.security_group.SecurityGroup:
    """Add the group, one for all of a stack's EFA instances: roles of one model may run in several pools."""
    name = names.format_efa_group_name(fleet, stack.node.id)
    group = add_security_group(
        stack, "efa", name=name, description="EFA traffic between machines of the fleet", vpc_id=vpc_id
    )
    for rule in interfaces.EFA_RULES:
        _select_rule_class(rule)(
            stack,
            f"efa-{rule.direction}",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol=rule.protocol,
            description=rule.description,
            tags={"Name": f"{name}-{rule.direction}"},
        )
    return group


def _select_rule_class(
    rule: interfaces.Rule,
) -> (
    type[aws.vpc_security_group_ingress_rule.VpcSecurityGroupIngressRule]
    | type[aws.vpc_security_group_egress_rule.VpcSecurityGroupEgressRule]
):
    if rule.direction == "ingress":
        return aws.vpc_security_group_ingress_rule.VpcSecurityGroupIngressRule
    return aws.vpc_security_group_egress_rule.VpcSecurityGroupEgressRule
