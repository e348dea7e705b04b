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
Kind = Literal["interface", "efa", "efa-only"]

MAX_ENA = 8
"""Most ENA interfaces of the ip-bandwidth layout: p5's documented number (cards 0, 4, ... 28: 800 Gbps in all)."""

EFA_HUGE_PAGES = 5128
"""Of 2 MiB, that a node with EFA's driver has. Source: EKS User Guide, "Run machine learning training on Amazon EKS
with Elastic Fabric Adapter", 2026-11."""


@dataclass(frozen=True)
class Interface:
    """One request of a launch template's `network_interfaces`."""

    card: int
    """NetworkCardIndex."""

    device: int
    """DeviceIndex on that card."""

    kind: Kind
    """InterfaceType: `interface` is ENA and takes an IP address, `efa` is both, `efa-only` takes none."""


def list_requested(
    row: Instance, *, efa: bool, layout: Layout = "save-addresses", task_interfaces: bool = False
) -> tuple[Interface, ...]:
    """Return the interfaces of the launch template, by card and device; the primary interface first.

    Args:
        task_interfaces: containers attach interfaces of their own to the first card, as on ECS. That card's own is then
            one of type `efa`: beside two of them, p5, p5e and trn2 would have no room for a task's. Source for type and
            device: aws-samples/awsome-distributed-training, 1.architectures/3.aws-batch/
            0.aws-batch-distributed-training-p5.yaml at 391573b, which is for AWS Batch on ECS.
    """
    primary = Interface(0, 0, "interface")
    if not efa:
        return (primary,)
    fabric = [Interface(card.index, int(card.index == 0), "efa-only") for card in row.cards if card.efa]
    if task_interfaces and fabric and fabric[0].card == 0:
        primary, fabric = Interface(0, 0, "efa"), fabric[1:]
    extra_cards = _select_ena_cards(row) if layout == "ip-bandwidth" else ()
    ena = tuple(Interface(card, 1, "interface") for card in extra_cards)
    return tuple(sorted((primary, *fabric, *ena), key=lambda interface: (interface.card, interface.device)))


EFA_DEVICE = "/dev/infiniband/uverbs"
"""How the name of an EFA interface's device file begins."""


def list_device_files(count: int) -> tuple[str, ...]:
    """Return the device files of EFA interfaces, for containers without a device plugin."""
    return tuple(f"{EFA_DEVICE}{number}" for number in range(count))


def count_addresses(requested: tuple[Interface, ...]) -> int:
    """Return the IP addresses that the interfaces take from their subnet."""
    return sum(interface.kind != "efa-only" for interface in requested)


def _select_ena_cards(row: Instance) -> tuple[int, ...]:
    """Return the cards beside the first that carry an ENA interface too, spread evenly; each has room for two."""
    step = -(-len(row.cards) // MAX_ENA)
    return tuple(card.index for card in row.cards if card.index and card.index % step == 0 and card.interfaces > 1)
