"""Network interfaces of an instance in its launch template, and the rules that EFA traffic needs.

Source of the layout: EC2 user guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards",
read 2026-11: card 0 device 0 is the primary interface, ENA; card 0 device 1 is EFA-only where the card takes EFA; every
further card has an EFA-only interface as device 0, and an ENA interface as device 1 for IP bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_serving.catalog.instances import Instance

Layout = Literal["save-addresses", "ip-bandwidth"]
Kind = Literal["interface", "efa-only"]

MAX_ENA = 8
"""Most ENA interfaces of the ip-bandwidth layout: p5's documented number (cards 0, 4, ... 28: 800 Gbps in all)."""


@dataclass(frozen=True)
class Interface:
    """One request of a launch template's `network_interfaces`."""

    card: int
    """NetworkCardIndex."""

    device: int
    """DeviceIndex on that card."""

    kind: Kind
    """InterfaceType: `interface` is ENA and takes an IP address, `efa-only` takes none."""


def list_requested(row: Instance, *, efa: bool, layout: Layout = "save-addresses") -> tuple[Interface, ...]:
    """Interfaces of the launch template, by card and device; the primary interface first."""
    primary = Interface(0, 0, "interface")
    if not efa:
        return (primary,)
    fabric = tuple(Interface(card.index, int(card.index == 0), "efa-only") for card in row.cards if card.efa)
    extra_cards = _select_ena_cards(row) if layout == "ip-bandwidth" else ()
    ena = tuple(Interface(card, 1, "interface") for card in extra_cards)
    return tuple(sorted((primary, *fabric, *ena), key=lambda interface: (interface.card, interface.device)))


def count_addresses(requested: tuple[Interface, ...]) -> int:
    """IP addresses that the interfaces take from their subnet."""
    return sum(interface.kind == "interface" for interface in requested)


def _select_ena_cards(row: Instance) -> tuple[int, ...]:
    """Cards beside the first that carry an ENA interface too, spread evenly; each has room for two."""
    step = -(-len(row.cards) // MAX_ENA)
    return tuple(card.index for card in row.cards if card.index and card.index % step == 0 and card.interfaces > 1)


@dataclass(frozen=True)
class Rule:
    """One rule of a security group whose only peer is the group itself."""

    direction: Literal["ingress", "egress"]
    protocol: str
    """-1 means all protocols: EFA's own (SRD) has no number that a rule could name."""

    description: str


EFA_RULES = (
    Rule("ingress", "-1", "EFA traffic from machines of this group"),
    Rule("egress", "-1", "EFA traffic to machines of this group"),
)
"""Both are needed: an egress rule to 0.0.0.0/0 does not replace the second.

Source: EC2 user guide, "Get started with EFA and NCCL", step "Prepare an EFA-enabled security group", 2026-11.
"""
