"""EFA's layouts: request structures of every type, against EC2's cards and against AWS's documented tables."""

from __future__ import annotations

from collections import Counter

import pytest

from llm_serving.catalog import instances
from llm_serving.fleet import interfaces
from llm_serving.fleet.interfaces import Interface, Layout

WITH_EFA = [row for row in instances.load().values() if row.efa_interfaces]
LAYOUTS: tuple[Layout, ...] = ("save-addresses", "ip-bandwidth")

# Requests in all, EFA-only ones and cards without one: EC2 user guide, "Network cards" and "Maximize network bandwidth",
# 2026-11. Cards with ENA for IP bandwidth: documented for p5 and p5e; for the others spread by the same count.
DOCUMENTED = [
    ("p5.48xlarge", 33, 32, [], [0, 4, 8, 12, 16, 20, 24, 28]),
    ("p5e.48xlarge", 33, 32, [], [0, 4, 8, 12, 16, 20, 24, 28]),
    ("p5en.48xlarge", 17, 16, [], [0, 2, 4, 6, 8, 10, 12, 14]),
    ("p6-b200.48xlarge", 9, 8, [], [0, 1, 2, 3, 4, 5, 6, 7]),
    ("p6-b300.48xlarge", 17, 16, [0], [0, 3, 6, 9, 12, 15]),
    ("p4d.24xlarge", 5, 4, [], [0, 1, 2, 3]),
    ("p4de.24xlarge", 5, 4, [], [0, 1, 2, 3]),
    ("p5.4xlarge", 2, 1, [], [0]),
    ("trn1.32xlarge", 9, 8, [], [0, 1, 2, 3, 4, 5, 6, 7]),
    ("trn1n.32xlarge", 17, 16, [], [0, 2, 4, 6, 8, 10, 12, 14]),
    ("trn2.48xlarge", 17, 16, [], [0, 2, 4, 6, 8, 10, 12, 14]),
    ("g6e.8xlarge", 2, 1, [], [0]),
    ("g6e.12xlarge", 2, 1, [], [0]),
    ("g6e.16xlarge", 2, 1, [], [0]),
    ("g6e.24xlarge", 3, 2, [], [0, 1]),
    ("g6e.48xlarge", 5, 4, [], [0, 1, 2, 3]),
]


def _list_ena_cards(requested: tuple[Interface, ...]) -> list[int]:
    return [interface.card for interface in requested if interface.kind == "interface"]


def test_p5_saves_addresses_with_the_documented_33_requests() -> None:
    requested = interfaces.list_requested(instances.find("p5.48xlarge"), efa=True)
    expected = [Interface(0, 0, "interface"), Interface(0, 1, "efa-only")]
    expected += [Interface(card, 0, "efa-only") for card in range(1, 32)]
    assert list(requested) == expected


def test_p5_carries_ip_on_every_fourth_card_as_device_1() -> None:
    requested = interfaces.list_requested(instances.find("p5.48xlarge"), efa=True, layout="ip-bandwidth")
    secondary = [interface for interface in requested if interface.kind == "interface" and interface.card]
    assert secondary == [Interface(card, 1, "interface") for card in (4, 8, 12, 16, 20, 24, 28)]
    assert len(requested) == 40


def test_card_0_of_p6_b300_carries_no_efa() -> None:
    requested = interfaces.list_requested(instances.find("p6-b300.48xlarge"), efa=True)
    assert [interface for interface in requested if interface.card == 0] == [Interface(0, 0, "interface")]
    assert [interface.card for interface in requested if interface.kind == "efa-only"] == list(range(1, 17))


@pytest.mark.parametrize(("name", "requests", "fabric", "bare", "ena"), DOCUMENTED, ids=[row[0] for row in DOCUMENTED])
def test_a_types_layout_matches_awss_documentation(
    name: str, requests: int, fabric: int, bare: list[int], ena: list[int]
) -> None:
    row = instances.find(name)
    plain = interfaces.list_requested(row, efa=True)
    assert len(plain) == requests
    assert sum(interface.kind == "efa-only" for interface in plain) == fabric
    carrying = {interface.card for interface in plain if interface.kind == "efa-only"}
    assert [card.index for card in row.cards if card.index not in carrying] == bare
    assert _list_ena_cards(plain) == [0]
    ip_bandwidth = interfaces.list_requested(row, efa=True, layout="ip-bandwidth")
    assert _list_ena_cards(ip_bandwidth) == ena
    assert [interface for interface in ip_bandwidth if interface.kind == "efa-only"] == [
        interface for interface in plain if interface.kind == "efa-only"
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("row", WITH_EFA, ids=lambda row: row.name)
def test_every_layout_fits_the_cards_that_ec2_names(row: instances.Instance, layout: Layout) -> None:
    requested = interfaces.list_requested(row, efa=True, layout=layout)
    assert sum(interface.kind == "efa-only" for interface in requested) == row.efa_interfaces
    assert requested[0] == Interface(0, 0, "interface"), "the primary interface cannot be EFA-only"
    assert len({(interface.card, interface.device) for interface in requested}) == len(requested), (
        "no two on one device index of a card"
    )
    cards_by_index = {card.index: card for card in row.cards}
    for card, count in Counter(interface.card for interface in requested).items():
        assert count <= cards_by_index[card].interfaces
    assert all(cards_by_index[interface.card].efa for interface in requested if interface.kind == "efa-only")


@pytest.mark.parametrize("row", instances.load().values(), ids=lambda row: row.name)
def test_without_efa_a_machine_has_its_primary_interface_alone(row: instances.Instance) -> None:
    assert interfaces.list_requested(row, efa=False, layout="ip-bandwidth") == (Interface(0, 0, "interface"),)


def test_an_efa_only_interface_takes_no_address() -> None:
    row = instances.find("p5.48xlarge")
    assert interfaces.count_addresses(interfaces.list_requested(row, efa=True)) == 1
    assert interfaces.count_addresses(interfaces.list_requested(row, efa=True, layout="ip-bandwidth")) == 8


@pytest.mark.parametrize("kind", ["p5.48xlarge", "p5e.48xlarge", "trn2.48xlarge", "p5en.48xlarge"])
def test_a_task_finds_room_on_the_first_card_where_tasks_have_interfaces_of_their_own(kind: str) -> None:
    row = instances.find(kind)
    requested = interfaces.list_requested(row, efa=True, task_interfaces=True)
    assert requested[0] == Interface(0, 0, "efa")
    assert requested[1:] == tuple(Interface(card.index, 0, "efa-only") for card in row.cards[1:])
    assert sum(interface.card == 0 for interface in requested) < row.cards[0].interfaces
    assert interfaces.count_addresses(requested) == 1


def test_the_layout_without_tasks_of_their_own_fills_the_first_card_of_p5() -> None:
    row = instances.find("p5.48xlarge")
    requested = interfaces.list_requested(row, efa=True)
    assert sum(interface.card == 0 for interface in requested) == row.cards[0].interfaces


def test_a_first_card_without_efa_keeps_its_plain_interface() -> None:
    requested = interfaces.list_requested(instances.find("p6-b300.48xlarge"), efa=True, task_interfaces=True)
    assert requested[0] == Interface(0, 0, "interface")
