"""Security groups, which deny all traffic until rules are added, and their rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass(frozen=True)
class Peer:
    """Whom a rule lets in, or reach: a security group, a range, or a list of ranges that AWS keeps."""

    group_id: str | None = None
    cidr: str | None = None
    prefix_list_id: str | None = None


ANYWHERE = Peer(cidr="0.0.0.0/0")


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
        peer = Peer(group_id=client) if client.startswith("sg-") else Peer(cidr=client)
        word = re.sub("[./]", "-", client)
        full_title = f"{title}-{word}" if title else ""
        add_rule(stack, f"{name}-{word}", group, "in", description, port, peer=peer, title=full_title)


def add_rule(
    stack: FleetStack,
    name: str,
    group: aws.security_group.SecurityGroup,
    direction: str,
    description: str,
    port: int | None = None,
    *,
    peer: aws.security_group.SecurityGroup | VpcRanges | Peer,
    title: str = "",
) -> None:
    """Add a rule of `group`: `in` or `out`, of one TCP port or of all traffic.

    Its name in AWS is the title, or its own.
    """
    rule_class = (
        aws.vpc_security_group_ingress_rule.VpcSecurityGroupIngressRule
        if direction == "in"
        else aws.vpc_security_group_egress_rule.VpcSecurityGroupEgressRule
    )
    for ending, rule_peer, for_each in _split_peer(peer):
        rule = rule_class(
            stack,
            f"{name}{ending}",
            security_group_id=group.id,
            referenced_security_group_id=rule_peer.group_id,
            cidr_ipv4=rule_peer.cidr,
            prefix_list_id=rule_peer.prefix_list_id,
            ip_protocol="tcp" if port else "-1",
            from_port=port,
            to_port=port,
            description=description,
            tags={"Name": title or f"{name}{ending}"},
        )
        if for_each:
            rule.add_override("for_each", for_each)


def _split_peer(
    peer: aws.security_group.SecurityGroup | VpcRanges | Peer,
) -> Iterator[tuple[str, Peer, str | None]]:
    """Yield the peer of each rule, after the ending of the rule's name and before the set that it is repeated for.

    A VPC needs a rule for each of its ranges.
    """
    if isinstance(peer, VpcRanges):
        yield "", Peer(cidr=peer.primary), None
        yield "-secondary", Peer(cidr=format_expression("each.value")), peer.secondary
    else:
        yield "", peer if isinstance(peer, Peer) else Peer(group_id=peer.id), None
