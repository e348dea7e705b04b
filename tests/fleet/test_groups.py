"""Pools resolved into groups: what each orchestrator gets, how sizes are split, and what no valid fleet ever breaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from llm_serving.catalog import instances
from llm_serving.fleet import groups, interfaces
from llm_serving.fleet.groups import Group, Taint
from llm_serving.fleet.model import Fleet
from llm_serving.settings import document as files
from llm_serving.settings.errors import InputError
from tests.infra import strategies

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b, us-west-2c]\n"
Make = Callable[..., tuple[Group, ...]]
BLOCK = "{capacity-block: cr-0123456789abcdef0}"
RESERVED = "{reservation: cr-0123456789abcdef0}"


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """The groups of a fleet with one pool, given its lines and the orchestrator."""

    def make(lines: str, orchestrator: str = "eks") -> tuple[Group, ...]:
        text = f"{HEAD}orchestrator: {orchestrator}\npools:\n  aa: {{{lines}}}\n"
        (tmp_path / "fleet.yaml").write_text(text)
        return groups.groups(files.load(tmp_path / "fleet.yaml", Fleet).value, instances.load())

    return make


def _shape(made: tuple[Group, ...]) -> list[tuple[str, int, int, int]]:
    return [(group.name, group.choice, group.least, group.most) for group in made]


def test_g6e_on_eks_is_karpenters_over_all_zones_a_family_and_way_at_a_time(made: Make) -> None:
    got = made("types: [g6e.2xlarge, g6e.4xlarge, g6.4xlarge], buy: [spot, on-demand], size: 0..40")
    assert {group.kind for group in got} == {"karpenter"}
    assert _shape(got) == [
        ("aa-g6e-abc-spot", 0, 0, 40),
        ("aa-g6e-abc-od", 1, 0, 40),
        ("aa-g6-abc-spot", 2, 0, 40),
        ("aa-g6-abc-od", 3, 0, 40),
    ]
    assert got[0].types == ("g6e.2xlarge", "g6e.4xlarge")


def test_efa_on_eks_is_a_node_group_of_one_type_in_one_zone(made: Make) -> None:
    (got,) = made("types: p5.48xlarge, zones: us-west-2b, efa: on, size: 0..4")
    assert (got.kind, got.types, got.zones, got.efa) == ("node-group", ("p5.48xlarge",), ("us-west-2b",), 32)
    assert len(got.interfaces) == 33


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ("types: g6e.2xlarge, size: 0..3", "karpenter"),
        ("types: g6e.2xlarge, size: 1..3", "node-group"),
        ("types: p5.48xlarge, zones: us-west-2a, size: 0..3, buy: " + BLOCK, "node-group"),
        ("types: p5.48xlarge, zones: us-west-2a, size: 0..3, by: karpenter, buy: " + BLOCK, "karpenter"),
        ("types: p5.48xlarge, zones: us-west-2a, size: 0..3, efa: on, by: karpenter", "karpenter"),
        ("types: g6e.2xlarge, size: 0..3, by: node-groups", "node-group"),
    ],
)
def test_who_starts_machines_on_eks_follows_from_the_pool(made: Make, lines: str, kind: str) -> None:
    assert {group.kind for group in made(lines)} == {kind}


def test_ecs_has_a_provider_for_each_family_way_and_zone_and_shares_the_sizes_evenly(made: Make) -> None:
    got = made("types: [g6e.12xlarge, g6e.48xlarge], buy: [spot, on-demand], size: 4..8", "ecs")
    assert {group.kind for group in got} == {"capacity-provider"}
    assert _shape(got) == [
        ("aa-g6e-a-spot", 0, 2, 3),
        ("aa-g6e-b-spot", 0, 1, 3),
        ("aa-g6e-c-spot", 0, 1, 2),
        ("aa-g6e-a-od", 1, 0, 3),
        ("aa-g6e-b-od", 1, 0, 3),
        ("aa-g6e-c-od", 1, 0, 2),
    ]
    assert got[0].accelerators == 4, "the fewest of its types"


def test_a_zone_that_lacks_the_types_has_no_group(made: Make) -> None:
    got = made("types: [p5e.48xlarge, g6e.48xlarge], size: 2..4", "ecs")
    assert [(group.family, group.zones) for group in got if group.choice == 0] == [("p5e", ("us-west-2c",))]
    assert [group.least for group in got] == [2, 0, 0, 0]


def test_fewer_machines_than_zones_stand_in_one_group_over_all_of_them(made: Make) -> None:
    (got,) = made("types: g6e.2xlarge, size: 2", "ecs")
    assert (got.zones, got.least, got.most) == (("us-west-2a", "us-west-2b", "us-west-2c"), 2, 2)


def test_a_pool_of_no_machine_has_no_group(made: Make) -> None:
    assert made("types: g6e.2xlarge, size: 0", "ecs") == ()


def test_warm_machines_are_of_one_type_and_go_to_the_first_choice_on_demand(made: Make) -> None:
    got = made("types: [g6e.2xlarge, g6e.4xlarge], buy: [spot, on-demand], size: 0..9, warm: 4", "ecs")
    assert [(group.types, group.warm) for group in got if group.warm] == [
        (("g6e.2xlarge",), 2),
        (("g6e.2xlarge",), 1),
        (("g6e.2xlarge",), 1),
    ]
    assert {group.bought for group in got if group.warm} == {"on-demand"}
    assert not any(group.nvme for group in got), "NVMe disks are empty after a stop"


def test_a_reservation_keeps_its_id_and_two_of_them_stay_apart(made: Make) -> None:
    other = RESERVED.replace("def0", "def1")
    got = made(f"types: p5.48xlarge, zones: us-west-2a, size: 2, buy: [{RESERVED}, {other}, on-demand]", "ecs")
    assert [(group.name, group.reservation) for group in got] == [
        ("aa-p5-a-cr1", "cr-0123456789abcdef0"),
        ("aa-p5-a-cr2", "cr-0123456789abcdef1"),
        ("aa-p5-a-od", None),
    ]


def test_a_reservation_of_the_fleets_own_holds_what_it_says_and_its_group_no_more(made: Make) -> None:
    lines = "types: p5.48xlarge, zones: us-west-2a, size: 2..6, efa: on, placement_group: cluster"
    got = made(f"{lines}, buy: [{{reserve: 3}}, on-demand]")
    assert [(group.name, group.reserve, group.reservation, group.least, group.most) for group in got] == [
        ("aa-p5-48xlarge-a-cr", 3, None, 2, 3),
        ("aa-p5-48xlarge-a-od", 0, None, 0, 6),
    ]
    assert {group.placement_group for group in got} == {"aa-a"}, "made inside the group that both share"


def test_a_cluster_placement_group_is_one_a_zone_for_karpenter_too(made: Make) -> None:
    got = made("types: g6e.48xlarge, size: 0..6, placement_group: cluster")
    assert [(group.zones, group.placement_group) for group in got] == [
        (("us-west-2a",), "aa-a"),
        (("us-west-2b",), "aa-b"),
        (("us-west-2c",), "aa-c"),
    ]


def test_nodes_carry_the_pool_the_accelerator_and_a_taint_that_keeps_other_pods_off(made: Make) -> None:
    (got,) = made("types: g7e.2xlarge, size: 0..3, labels: {team: ads}, taints: team=ads:NoExecute")
    assert got.labels == {
        "fleet/pool": "aa",
        "fleet/purchase": "on-demand",
        "fleet/accelerator": "rtx-pro-server-6000",
        "team": "ads",
    }
    assert got.taints == (Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("team", "ads", "NoExecute"))
    assert [taint.eks_effect for taint in got.taints] == ["NO_SCHEDULE", "NO_EXECUTE"]


def test_neuron_has_its_own_taint_and_ami_and_a_machine_without_accelerator_none(made: Make) -> None:
    (neuron,) = made("types: inf2.xlarge, size: 0..3")
    (plain,) = made("types: m8g.2xlarge, size: 0..3")
    assert (neuron.variant, neuron.taints[0].key) == ("neuron", "aws.amazon.com/neuron")
    assert (plain.variant, plain.taints, plain.arch) == ("standard", (), "arm64")


@pytest.mark.parametrize(
    ("orchestrator", "lines", "images", "volume", "nvme"),
    [
        ("eks", "types: g6e.2xlarge", "soci", groups.SMALL, True),
        ("eks", "types: inf2.8xlarge", "soci", groups.FAST, False),
        ("eks", "types: inf2.8xlarge, images: plain", "plain", groups.PLAIN, False),
        ("eks", "types: m8g.large", "plain", groups.PLAIN, False),
        ("ecs", "types: inf2.8xlarge", "cached", groups.FAST, False),
        ("ecs", "types: g6e.2xlarge, images: {snapshot: snap-01234567}", "snapshot", groups.FAST, False),
        ("ecs", "types: g6e.2xlarge, disk: gp3", "cached", groups.FAST, False),
    ],
)
def test_images_start_from_what_is_fast_on_the_machine(
    made: Make, orchestrator: str, lines: str, images: str, volume: groups.Volume, nvme: bool
) -> None:
    got = made(f"{lines}, size: 0..3", orchestrator)[0]
    assert (got.images, got.volume, got.nvme) == (images, volume, nvme)


def test_fast_volumes_have_what_soci_needs() -> None:
    assert (groups.FAST.throughput_mib_s, groups.FAST.iops) == (1000, 16_000)


def test_an_unknown_type_is_refused_in_one_sentence(made: Make) -> None:
    with pytest.raises(InputError, match=r"g6e\.7xlarge: the catalogue has no such instance type"):
        made("types: g6e.7xlarge, size: 1")


# Services of one pool


def test_each_choice_is_a_service_whose_zones_share_its_tasks(made: Make) -> None:
    got = made("types: [g6e.48xlarge, g6.48xlarge], buy: [spot, on-demand], size: 3..9", "ecs")
    services = groups.strategies(got)
    assert [[(group.family, group.bought, group.zones[0][-1]) for group in service] for service in services] == [
        [("g6e", "spot", zone) for zone in "abc"],
        [("g6e", "on-demand", zone) for zone in "abc"],
        [("g6", "spot", zone) for zone in "abc"],
        [("g6", "on-demand", zone) for zone in "abc"],
    ]


def test_no_strategy_is_too_long_in_a_fleet_of_six_zones() -> None:
    zones = tuple(f"us-east-1{letter}" for letter in "abcdef")
    pool = {"types": ["p5.48xlarge", "g6.48xlarge"], "buy": ["spot", "on-demand"], "size": "6..60"}
    fleet = Fleet(name="demo", region="us-east-1", zones=zones, orchestrator="ecs", pools={"aa": pool})
    lengths = [len(service) for service in groups.strategies(groups.groups(fleet, instances.load()))]
    assert lengths == [groups.MOST_PROVIDERS] * 2 + [5, 5], "one of the zones has no g6"


def test_no_group_makes_no_service() -> None:
    assert groups.strategies([]) == []


# What no valid fleet breaks


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
@given(strategies.fleets())
def test_any_valid_fleet_resolves_within_its_bounds(fleet: Fleet) -> None:
    made = groups.groups(fleet, instances.load())
    names = [group.name for group in made]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z][a-z0-9-]{0,62}", name) for name in names)
    for name, pool in fleet.pools.items():
        mine = [group for group in made if group.pool == name]
        assert mine, "every pool has machines"
        assert sum(group.least for group in mine) == pool.size.least
        for choice in {group.choice for group in mine}:
            here = [group for group in mine if group.choice == choice]
            assert sum(group.most for group in here) == (here[0].reserve or pool.size.most)
        assert all(group.least <= group.most and group.most for group in mine)
        assert {zone for group in mine for zone in group.zones} <= set(fleet.zones_of(pool))
        assert {kind for group in mine for kind in group.types} == set(pool.types)


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
@given(strategies.fleets())
def test_efa_implies_one_zone_one_type_and_all_of_its_interfaces(fleet: Fleet) -> None:
    for group in groups.groups(fleet, instances.load()):
        if not group.efa:
            assert interfaces.addresses(group.interfaces) == len(group.interfaces) == 1
            continue
        assert len(group.zones) == len(group.types) == 1
        assert group.efa == instances.find(group.types[0]).efa_interfaces


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
@given(strategies.fleets())
def test_no_strategy_has_more_than_six_providers_and_none_is_lost(fleet: Fleet) -> None:
    made = groups.groups(fleet, instances.load())
    for name in fleet.pools:
        mine = [group for group in made if group.pool == name and group.kind == "capacity-provider"]
        services = groups.strategies(mine)
        assert all(1 <= len(service) <= 6 for service in services)
        held = Counter(group.name for service in services for group in service)
        assert held == Counter(group.name for group in mine)
        assert all(not groups.provider_name(fleet, group).startswith(("aws", "ecs", "fargate")) for group in mine)


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
@given(strategies.fleets())
def test_what_an_orchestrator_does_not_know_does_not_reach_it(fleet: Fleet) -> None:
    for group in groups.groups(fleet, instances.load()):
        if group.orchestrator == "ecs":
            assert (group.kind, group.taints, group.os) == ("capacity-provider", (), "al2023")
            assert group.images != "soci"
        else:
            assert not group.warm
        assert not (group.reservation and group.placement_group)
        assert not (group.nvme and group.images == "snapshot")
