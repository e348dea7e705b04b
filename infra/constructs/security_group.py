"""Security groups, which deny all traffic until rules are added, and their rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack, format_expression

HTTPS = 443

SecurityGroups = Mapping[str, aws.security_group.SecurityGroup]
"""By part of a deployment, or by service."""


@dataclass(frozen=True)
class VpcRanges:
    """Ranges of a VPC; one that exists may have secondary ones, with the subnets in them."""

    primary: str
    secondary: str
    """Terraform's set of the others."""


def add_security_group(
    stack: FleetStack, construct_id: str, *, name: str, description: str, vpc_id: str
) -> aws.security_group.SecurityGroup:
    """Add the group, known in AWS by `name`."""
    return aws.security_group.SecurityGroup(
        stack, construct_id, name=name, description=description, vpc_id=vpc_id, tags={"Name": name}
    )


def add_client_rules(
    stack: FleetStack,
    name: str,
    group: aws.security_group.SecurityGroup,
    description: str,
    port: int,
    clients: Iterable[str],
    *,
    title: str = "",
) -> None:
    """Let in clients, each a range or the id of a security group, by rules that are named after them.

    Named by their places, the rule of a client that goes would get the next one's range, which EC2 refuses while the
    next rule has it: `InvalidPermission.Duplicate`, and the client stays let in.
    """
    for client in dict.fromkeys(clients):
        cidr, peer_id = (None, client) if client.startswith("sg-") else (client, None)
        word = re.sub("[./]", "-", client)
        full_title = f"{title}-{word}" if title else ""
        add_rule(stack, f"{name}-{word}", group, "in", description, port, cidr=cidr, peer_id=peer_id, title=full_title)


def add_rule(
    stack: FleetStack,
    name: str,
    group: aws.security_group.SecurityGroup,
    direction: str,
    description: str,
    port: int | None = None,
    *,
    peer: aws.security_group.SecurityGroup | None = None,
    peer_id: str | None = None,
    cidr: str | None = None,
    prefix_list: str | None = None,
    for_each: str | None = None,
    vpc: VpcRanges | None = None,
    title: str = "",
) -> None:
    """Add a rule of `group`: `in` or `out`, of one TCP port or of all traffic, for a group, a range or a VPC.

    Its name in AWS is the title, or its own.
    """
    if vpc:
        add_rule(stack, name, group, direction, description, port, cidr=vpc.primary)
        name, cidr, for_each = f"{name}-secondary", format_expression("each.value"), vpc.secondary
    rule_class = (
        aws.vpc_security_group_ingress_rule.VpcSecurityGroupIngressRule
        if direction == "in"
        else aws.vpc_security_group_egress_rule.VpcSecurityGroupEgressRule
    )
    rule = rule_class(
        stack,
        name,
        security_group_id=group.id,
        referenced_security_group_id=peer.id if peer else peer_id,
        cidr_ipv4=cidr,
        prefix_list_id=prefix_list,
        ip_protocol="tcp" if port else "-1",
        from_port=port,
        to_port=port,
        description=description,
        tags={"Name": title or name},
    )
    if for_each:
        rule.add_override("for_each", for_each)
