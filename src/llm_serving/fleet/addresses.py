"""The address plan of a new VPC: which part of its range each zone's subnets take.

The range is cut into eight. Seven parts are private subnets, by the zone's letter (a to g): with 10.0.0.0/16 a zone has
8,187 addresses for nodes, pods and network interfaces. The last part holds the small public subnets. A zone added or
taken away later, or NAT switched on, moves nobody else's addresses: Terraform would have to replace the subnet with all
that it contains.
"""

from __future__ import annotations

from ipaddress import IPv4Network

LETTERS = "abcdefg"
"""Zones that the address plan covers."""


def compute_private_cidr(cidr: str, zone: str) -> str:
    """Return the range of a zone's private subnet: an eighth of the VPC."""
    return str(_split_eighths(cidr)[LETTERS.index(zone[-1])])


def compute_public_cidr(cidr: str, zone: str) -> str:
    """Return the range of a zone's public subnet, for its NAT gateway: 1/128 of the VPC, at least a /28."""
    sixteenths = list(_split_eighths(cidr)[-1].subnets(prefixlen_diff=4))
    return str(sixteenths[LETTERS.index(zone[-1])])


def _split_eighths(cidr: str) -> list[IPv4Network]:
    return list(IPv4Network(cidr).subnets(prefixlen_diff=3))
