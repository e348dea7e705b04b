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

SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b, us-west-2c]\n"
GroupFactory = Callable[..., tuple[Group, ...]]
BLOCK = "{capacity-block: cr-0123456789abcdef0}"
RESERVED = "{reservation: cr-0123456789abcdef0}"


@pytest.fixture
def make_groups(tmp_path: Path) -> GroupFactory:
    """The groups of a fleet with one pool, given its lines and the orchestrator."""

    def make(lines: str, orchestrator: str = "eks") -> tuple[Group, ...]:
        text = f"{HEAD}orchestrator: {orchestrator}\npools:\n  aa: {{{lines}}}\n"
        (tmp_path / "fleet.yaml").write_text(text)
        return groups.resolve_all(files.load(tmp_path / "fleet.yaml", Fleet).value)

    return make


def _summarize(machine_groups: tuple[Group, ...]) -> list[tuple[str, int, int, int]]:
    return [(group.name, group.choice, group.min_size, group.max_size) for group in machine_groups]


def test_g6e_on_eks_has_a_karpenter_node_pool_for_each_family_and_purchase_option(make_groups: GroupFactory) -> None:
    machine_groups = make_groups("types: [g6e.2xlarge, g6e.4xlarge, g6.4xlarge], buy: [spot, on-demand], size: 0..40")
    assert {group.kind for group in machine_groups} == {"karpenter"}
    assert _summarize(machine_groups) == [
        ("aa-g6e-abc-spot", 0, 0, 40),
        ("aa-g6e-abc-od", 1, 0, 40),
        ("aa-g6-abc-spot", 2, 0, 40),
        ("aa-g6-abc-od", 3, 0, 40),
    ]
    assert machine_groups[0].types == ("g6e.2xlarge", "g6e.4xlarge")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("size: 1, zones: us-west-2a", "size: 1"),  # the fleet gets another zone
        ("size: 0..2", "size: 0..3"),  # and the pool grows to a group a zone
        ("size: 1, zones: us-west-2a", "size: 4"),
    ],
)
def test_a_small_pool_on_ecs_keeps_the_provider_that_its_services_use_as_it_grows(
    make_groups: GroupFactory, before: str, after: str
) -> None:
    names = [{group.name for group in make_groups(f"types: g6.xlarge, {lines}", "ecs")} for lines in (before, after)]
    assert names[0] == {"aa-g6-a-od"} <= names[1]


def test_efa_on_eks_is_a_node_group_of_one_type_in_one_zone(make_groups: GroupFactory) -> None:
    (group,) = make_groups("types: p5.48xlarge, zones: us-west-2b, efa: on, size: 0..4")
    assert (group.kind, group.types, group.zones, group.efa) == ("node-group", ("p5.48xlarge",), ("us-west-2b",), 32)
    assert len(group.interfaces) == 33


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
def test_the_pool_selects_karpenter_or_node_groups(make_groups: GroupFactory, lines: str, kind: str) -> None:
    assert {group.kind for group in make_groups(lines)} == {kind}


def test_ecs_has_a_provider_for_each_family_purchase_option_and_zone(make_groups: GroupFactory) -> None:
    machine_groups = make_groups("types: [g6e.12xlarge, g6e.48xlarge], buy: [spot, on-demand], size: 4..8", "ecs")
    assert {group.kind for group in machine_groups} == {"capacity-provider"}
    assert _summarize(machine_groups) == [
        ("aa-g6e-a-spot", 0, 2, 3),
        ("aa-g6e-b-spot", 0, 1, 3),
        ("aa-g6e-c-spot", 0, 1, 2),
        ("aa-g6e-a-od", 1, 0, 3),
        ("aa-g6e-b-od", 1, 0, 3),
        ("aa-g6e-c-od", 1, 0, 2),
    ]
    assert machine_groups[0].accelerators == 4, "the fewest of its types"


def test_a_zone_without_the_types_has_no_group(make_groups: GroupFactory) -> None:
    machine_groups = make_groups("types: [p5e.48xlarge, g6e.48xlarge], size: 2..4", "ecs")
    assert [(group.family, group.zones) for group in machine_groups if group.choice == 0] == [("p5e", ("us-west-2c",))]
    assert [group.min_size for group in machine_groups] == [2, 0, 0, 0]


def test_fewer_machines_than_zones_share_one_group_over_all_zones(make_groups: GroupFactory) -> None:
    (group,) = make_groups("types: g6e.2xlarge, size: 2", "ecs")
    assert (group.zones, group.min_size, group.max_size) == (("us-west-2a", "us-west-2b", "us-west-2c"), 2, 2)


def test_zones_in_another_order_rename_no_group_of_eks(tmp_path: Path) -> None:
    def name_groups(zones: str) -> list[str]:
        pools = "{kk: {types: g6e.2xlarge, size: 0..8}, nn: {types: g6e.2xlarge, size: 1..2}}"
        (tmp_path / "fleet.yaml").write_text(f"name: demo\nregion: us-west-2\nzones: {zones}\npools: {pools}\n")
        return [group.name for group in groups.resolve_all(files.load(tmp_path / "fleet.yaml", Fleet).value)]

    assert name_groups("[us-west-2a, us-west-2b, us-west-2c]") == ["kk-g6e-abc-od", "nn-g6e-2xlarge-abc-od"]
    assert name_groups("[us-west-2c, us-west-2a, us-west-2b]") == ["kk-g6e-abc-od", "nn-g6e-2xlarge-abc-od"]


def test_a_pool_of_size_zero_has_no_group(make_groups: GroupFactory) -> None:
    assert make_groups("types: g6e.2xlarge, size: 0", "ecs") == ()


def test_warm_machines_are_of_one_type_and_go_to_the_first_choice_on_demand(make_groups: GroupFactory) -> None:
    machine_groups = make_groups(
        "types: [g6e.2xlarge, g6e.4xlarge], buy: [spot, on-demand], size: 0..9, warm: 4", "ecs"
    )
    assert [(group.types, group.warm) for group in machine_groups if group.warm] == [
        (("g6e.2xlarge",), 2),
        (("g6e.2xlarge",), 1),
        (("g6e.2xlarge",), 1),
    ]
    assert {group.purchase_option for group in machine_groups if group.warm} == {"on-demand"}
    assert not any(group.nvme for group in machine_groups), "NVMe disks are empty after a stop"


def test_each_reservation_has_its_own_group_with_its_id(make_groups: GroupFactory) -> None:
    other = RESERVED.replace("def0", "def1")
    machine_groups = make_groups(
        f"types: p5.48xlarge, zones: us-west-2a, size: 2, buy: [{RESERVED}, {other}, on-demand]", "ecs"
    )
    assert [(group.name, group.reservation) for group in machine_groups] == [
        ("aa-p5-a-cr1", "cr-0123456789abcdef0"),
        ("aa-p5-a-cr2", "cr-0123456789abcdef1"),
        ("aa-p5-a-od", None),
    ]


def test_the_group_of_the_fleets_own_reservation_is_no_larger_than_it(make_groups: GroupFactory) -> None:
    lines = "types: p5.48xlarge, zones: us-west-2a, size: 2..6, efa: on, placement_group: cluster"
    machine_groups = make_groups(f"{lines}, buy: [{{reserve: 3}}, on-demand]")
    assert [
        (group.name, group.reserve, group.reservation, group.min_size, group.max_size) for group in machine_groups
    ] == [
        ("aa-p5-48xlarge-a-cr", 3, None, 2, 3),
        ("aa-p5-48xlarge-a-od", 0, None, 0, 6),
    ]
    assert {group.placement_group for group in machine_groups} == {"aa-a"}, "made inside the group that both share"


def test_karpenter_has_a_cluster_placement_group_in_each_zone(make_groups: GroupFactory) -> None:
    machine_groups = make_groups("types: g6e.48xlarge, size: 0..6, placement_group: cluster")
    assert [(group.zones, group.placement_group) for group in machine_groups] == [
        (("us-west-2a",), "aa-a"),
        (("us-west-2b",), "aa-b"),
        (("us-west-2c",), "aa-c"),
    ]


def test_nodes_have_labels_for_pool_and_accelerator_and_a_taint(make_groups: GroupFactory) -> None:
    (group,) = make_groups("types: g7e.2xlarge, size: 0..3, labels: {team: ads}, taints: team=ads:NoExecute")
    assert group.labels == {
        "fleet/pool": "aa",
        "fleet/purchase": "on-demand",
        "fleet/accelerator": "rtx-pro-server-6000",
        "team": "ads",
    }
    assert group.taints == (Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("team", "ads", "NoExecute"))
    assert [taint.eks_effect for taint in group.taints] == ["NO_SCHEDULE", "NO_EXECUTE"]


def test_the_autoscaler_waits_for_the_gpus_of_a_node_group_and_for_no_others(make_groups: GroupFactory) -> None:
    (gpu,) = make_groups("types: g6e.2xlarge, zones: us-west-2a, size: 1..3")
    (neuron,) = make_groups("types: inf2.xlarge, zones: us-west-2a, size: 1..3")
    (by_karpenter,) = make_groups("types: g6e.2xlarge, size: 0..3")
    assert gpu.labels["k8s.amazonaws.com/accelerator"] == "l40s"
    assert "k8s.amazonaws.com/accelerator" not in {**neuron.labels, **by_karpenter.labels}


def test_neuron_has_its_own_taint_and_ami_and_a_machine_without_accelerator_none(make_groups: GroupFactory) -> None:
    (neuron,) = make_groups("types: inf2.xlarge, size: 0..3")
    (plain,) = make_groups("types: m8g.2xlarge, size: 0..3")
    assert (neuron.variant, neuron.taints[0].key) == ("neuron", "aws.amazon.com/neuron")
    assert (plain.variant, plain.taints, plain.arch) == ("standard", (), "arm64")


@pytest.mark.parametrize(
    ("orchestrator", "lines", "images", "volume", "nvme"),
    [
        ("eks", "types: g6e.2xlarge", "soci", groups.SMALL_VOLUME, True),
        ("eks", "types: inf2.8xlarge", "soci", groups.FAST_VOLUME, False),
        ("eks", "types: inf2.8xlarge, images: plain", "plain", groups.BASELINE_VOLUME, False),
        ("eks", "types: m8g.large", "plain", groups.SMALL_VOLUME, False),
        ("ecs", "types: inf2.8xlarge", "cached", groups.FAST_VOLUME, False),
        ("ecs", "types: g6e.2xlarge, images: {snapshot: snap-01234567}", "snapshot", groups.FAST_VOLUME, False),
        ("ecs", "types: g6e.2xlarge, disk: gp3", "cached", groups.FAST_VOLUME, False),
    ],
)
def test_images_start_from_the_machines_fastest_storage(
    make_groups: GroupFactory, orchestrator: str, lines: str, images: str, volume: groups.Volume, nvme: bool
) -> None:
    group = make_groups(f"{lines}, size: 0..3", orchestrator)[0]
    assert (group.images, group.volume, group.nvme) == (images, volume, nvme)


@pytest.mark.parametrize("orchestrator", ["eks", "ecs"])
@pytest.mark.parametrize(
    ("lines", "volume"),
    [
        ("types: m8g.xlarge, size: 1", groups.SMALL_VOLUME),
        ("types: m7i.4xlarge, size: 1", groups.SMALL_VOLUME),
        ("types: m8g.xlarge, size: 1, images: {snapshot: snap-0123456789abcdef0}", groups.FAST_VOLUME),
        ("types: g6e.xlarge, size: 1, images: plain, disk: gp3", groups.BASELINE_VOLUME),
    ],
)
def test_machines_without_accelerators_have_plain_small_volumes(
    make_groups: GroupFactory, orchestrator: str, lines: str, volume: groups.Volume
) -> None:
    assert {group.volume for group in make_groups(lines, orchestrator)} == {volume}
    assert groups.Volume(size_gib=100, throughput_mib_s=125, iops=3000) == groups.SMALL_VOLUME


def test_fast_volumes_have_the_throughput_that_soci_needs() -> None:
    assert (groups.FAST_VOLUME.throughput_mib_s, groups.FAST_VOLUME.iops) == (1000, 16_000)


def test_an_unknown_type_is_refused_in_one_sentence(make_groups: GroupFactory) -> None:
    with pytest.raises(InputError, match=r"g6e\.7xlarge: the catalog has no such instance type"):
        make_groups("types: g6e.7xlarge, size: 1")


# Services of one pool


def test_each_choice_is_a_service_over_its_zones(make_groups: GroupFactory) -> None:
    machine_groups = make_groups("types: [g6e.48xlarge, g6.48xlarge], buy: [spot, on-demand], size: 3..9", "ecs")
    services = groups.group_by_choice(machine_groups)
    assert [
        [(group.family, group.purchase_option, group.zones[0][-1]) for group in service] for service in services
    ] == [
        [("g6e", "spot", zone) for zone in "abc"],
        [("g6e", "on-demand", zone) for zone in "abc"],
        [("g6", "spot", zone) for zone in "abc"],
        [("g6", "on-demand", zone) for zone in "abc"],
    ]


def test_no_strategy_is_too_long_in_a_fleet_of_six_zones() -> None:
    zones = tuple(f"us-east-1{letter}" for letter in "abcdef")
    pool = {"types": ["p5.48xlarge", "g6.48xlarge"], "buy": ["spot", "on-demand"], "size": "6..60"}
    fleet = Fleet(name="demo", region="us-east-1", zones=zones, orchestrator="ecs", pools={"aa": pool})
    lengths = [len(service) for service in groups.group_by_choice(groups.resolve_all(fleet))]
    assert lengths == [groups.MAX_PROVIDERS] * 2 + [5, 5], "one of the zones has no g6"


def test_no_group_makes_no_service() -> None:
    assert groups.group_by_choice([]) == []


# What no valid fleet breaks


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_any_valid_fleet_resolves_within_its_bounds(fleet: Fleet) -> None:
    machine_groups = groups.resolve_all(fleet)
    names = [group.name for group in machine_groups]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z][a-z0-9-]{0,62}", name) for name in names)
    for name, pool in fleet.pools.items():
        pool_groups = [group for group in machine_groups if group.pool == name]
        assert pool_groups, "every pool has machines"
        assert sum(group.min_size for group in pool_groups) == pool.size.min
        for choice in {group.choice for group in pool_groups}:
            choice_groups = [group for group in pool_groups if group.choice == choice]
            assert sum(group.max_size for group in choice_groups) == (choice_groups[0].reserve or pool.size.max)
        assert all(group.min_size <= group.max_size and group.max_size for group in pool_groups)
        assert {zone for group in pool_groups for zone in group.zones} <= set(fleet.get_zones(pool))
        assert {kind for group in pool_groups for kind in group.types} == set(pool.types)


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_efa_implies_one_zone_one_type_and_all_of_its_interfaces(fleet: Fleet) -> None:
    for group in groups.resolve_all(fleet):
        if not group.efa:
            assert interfaces.count_addresses(group.interfaces) == len(group.interfaces) == 1
            continue
        assert len(group.zones) == len(group.types) == 1
        assert group.efa == instances.find(group.types[0]).efa_interfaces


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_every_provider_is_in_a_strategy_of_at_most_six(fleet: Fleet) -> None:
    machine_groups = groups.resolve_all(fleet)
    for name in fleet.pools:
        pool_groups = [group for group in machine_groups if group.pool == name and group.kind == "capacity-provider"]
        services = groups.group_by_choice(pool_groups)
        assert all(1 <= len(service) <= 6 for service in services)
        group_counts = Counter(group.name for service in services for group in service)
        assert group_counts == Counter(group.name for group in pool_groups)
        assert all(
            not groups.format_provider_name(fleet, group).startswith(("aws", "ecs", "fargate")) for group in pool_groups
        )


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_each_orchestrator_gets_only_settings_that_it_supports(fleet: Fleet) -> None:
    for group in groups.resolve_all(fleet):
        if group.orchestrator == "ecs":
            assert (group.kind, group.taints, group.os) == ("capacity-provider", (), "al2023")
            assert group.images != "soci"
        else:
            assert not group.warm
        assert not (group.reservation and group.placement_group)
        assert not (group.nvme and group.images == "snapshot")
