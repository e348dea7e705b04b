"""The security group that EFA traffic needs: everything from itself, and everything to itself."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.lifecycle import keep_until_unused
from infra.constructs.security_group import add_rule, add_security_group
from llm_serving.fleet import names


def add_efa_group(stack: FleetStack, *, vpc_id: str) -> aws.security_group.SecurityGroup:
    """Add the group, one for all of a stack's EFA instances: roles of one model may run in several pools.

    Its rules are for all protocols: EFA's own (SRD) has no number. A rule of egress to 0.0.0.0/0 does not replace its
    second. Source: EC2 user guide, "Get started with EFA and NCCL", step "Prepare an EFA-enabled security group",
    2026-11.
    """
    name = names.format_efa_group_name(stack.fleet.name, stack.node.id)
    description = "EFA traffic between machines of the fleet"
    group = add_security_group(stack, "efa", name=name, description=description, vpc_id=vpc_id)
    keep_until_unused(group)
    for direction, rule, peers in (("in", "ingress", "from"), ("out", "egress", "to")):
        description = f"EFA traffic {peers} machines of this group"
        add_rule(stack, f"efa-{rule}", group, direction, description, peer=group, title=f"{name}-{rule}")
    return group
