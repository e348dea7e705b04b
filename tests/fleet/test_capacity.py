"""What a fleet meets at its greatest size: the arithmetic by hand, the refusals by their text, and any valid fleet."""

from __future__ import annotations

import itertools
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from llm_serving.catalog import quotas
from llm_serving.fleet import addresses, capacity, checks, groups
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.settings import document as files
from llm_serving.settings.document import Document
from tests.infra import strategies

SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b, us-west-2c]\n"
NETWORK = "{vpc: vpc-01234567, private_subnets: [subnet-01234560, subnet-01234561, subnet-01234562]}"
BLOCK = "{capacity-block: cr-0123456789abcdef0}"


def _load_fleet(tmp_path: Path, text: str) -> Document[Fleet]:
    (tmp_path / "fleet.yaml").write_text(text)
    return files.load(tmp_path / "fleet.yaml", Fleet)


def _compute_capacity(tmp_path: Path, pools: str, head: str = HEAD) -> capacity.Capacity:
    return capacity.compute(_load_fleet(tmp_path, f"{head}pools:\n{pools}").value)


def _sum_needs(fleet_capacity: capacity.Capacity, quota: quotas.Quota) -> int:
    return sum(need.amount for need in fleet_capacity.needs if need.quota == quota)


def test_vcpus_are_counted_by_family_and_purchase_option(tmp_path: Path) -> None:
    fleet_capacity = _compute_capacity(
        tmp_path,
        "  aa: {types: [g6e.2xlarge, g6.4xlarge], buy: [spot, on-demand], size: 0..10}\n"
        "  bb: {types: p5.48xlarge, zones: us-west-2a, size: 2, buy: {reservation: cr-0123456789abcdef0}}\n"
        f"  cc: {{types: p5e.48xlarge, zones: us-west-2c, size: 4, buy: {BLOCK}}}\n"
        "  dd: {types: inf2.xlarge, size: 0..3}\n"
        "  ee: {types: m8g.2xlarge, size: 0..3}\n",
    )
    g, p, inf, standard = (
        quotas.find_family(name) for name in ("g6e.xlarge", "p5.48xlarge", "inf2.xlarge", "m8g.large")
    )
    assert (_sum_needs(fleet_capacity, g.spot), _sum_needs(fleet_capacity, g.on_demand)) == (10 * 16, 10 * 16), (
        "the largest type in each way"
    )
    assert (_sum_needs(fleet_capacity, p.on_demand), _sum_needs(fleet_capacity, p.spot)) == (2 * 192, 0), (
        "a reservation, and no Capacity Block"
    )
    assert (_sum_needs(fleet_capacity, inf.on_demand), _sum_needs(fleet_capacity, standard.on_demand)) == (
        3 * 4,
        3 * 8 + 6 * 4,
    ), "two system nodes a zone during an update"


def test_a_node_of_eks_takes_two_prefixes_and_an_ecs_machine_one_address_a_task(tmp_path: Path) -> None:
    pool = "  aa: {types: g6e.48xlarge, zones: us-west-2a, size: 0..10}\n"
    on_eks = _compute_capacity(tmp_path, pool)
    on_ecs = _compute_capacity(tmp_path, pool, HEAD + "orchestrator: ecs\n")
    a, b, _ = on_eks.subnets
    assert a.needed - b.needed == 10 * (1 + 2 * 16)
    a, b, _ = on_ecs.subnets
    assert a.needed - b.needed == 10 * (1 + 8)
    first_card = _compute_capacity(tmp_path, pool.replace("g6e", "p5"), HEAD + "orchestrator: ecs\n")
    assert first_card.subnets[0].needed - b.needed == 10 * (1 + 1)  # two interfaces, and one is the instance's


def test_the_ip_bandwidth_layout_takes_eight_addresses_and_the_saving_one_takes_one(tmp_path: Path) -> None:
    pool = "  aa: {{types: p5.48xlarge, zones: us-west-2a, size: 0..10, efa: on, efa_layout: {}}}\n"
    ip_bandwidth, plain = (
        _compute_capacity(tmp_path, pool.format(layout), HEAD + "orchestrator: ecs\n").subnets[0]
        for layout in ("ip-bandwidth", "save-addresses")
    )
    assert ip_bandwidth.needed - plain.needed == 10 * 7


def test_warm_machines_hold_their_addresses_interfaces_and_volumes(tmp_path: Path) -> None:
    pool = "  aa: {{types: g6e.xlarge, zones: us-west-2a, size: 0..100, disk: gp3, warm: {}}}\n"
    warm, none = (_compute_capacity(tmp_path, pool.format(count), HEAD + "orchestrator: ecs\n") for count in (40, 0))
    assert warm.subnets[0].needed - none.subnets[0].needed == 40 * (1 + 1)
    grown = {
        quota: _sum_needs(warm, quota) - _sum_needs(none, quota)
        for quota in (quotas.NETWORK_INTERFACES, quotas.VOLUMES)
    }
    assert list(grown.values()) == [40 * (1 + 1), 69 - 49]  # TiB of 140 and 100 volumes of 500 GiB


def test_subnet_sizes_of_an_existing_vpc_are_unknown(tmp_path: Path) -> None:
    head = f"{HEAD}network: {NETWORK}\n"
    fleet_capacity = _compute_capacity(tmp_path, "  aa: {types: g6e.48xlarge, size: 0..3000}\n", head)
    assert fleet_capacity.subnets == ()
    assert not _sum_needs(fleet_capacity, quotas.VPCS)


def test_nodes_of_an_existing_cluster_need_no_quota(tmp_path: Path) -> None:
    head = f"{HEAD}eks: {{cluster: platform}}\nnetwork: {NETWORK}\n"
    fleet_capacity = _compute_capacity(tmp_path, "  aa: {types: g6e.48xlarge, size: 0..3000}\n", head)
    assert (fleet_capacity.needs, fleet_capacity.max_machines, fleet_capacity.launch_s) == ((), 0, 0)


def test_machines_beyond_a_thousand_start_at_two_a_second(tmp_path: Path) -> None:
    assert _compute_capacity(tmp_path, "  aa: {types: g6e.xlarge, size: 0..1000}\n").launch_s == 0
    assert _compute_capacity(tmp_path, "  aa: {types: g6e.xlarge, size: 0..1120}\n").launch_s == 60


def test_losing_a_zone_loses_its_share_of_accelerators(tmp_path: Path) -> None:
    fleet_capacity = _compute_capacity(
        tmp_path,
        "  aa: {types: g6e.48xlarge, size: 3..30}\n  bb: {types: p5.48xlarge, zones: us-west-2a, efa: on, size: 10}\n",
    )
    # 10 machines of aa in each zone, and all 10 of bb in a, with eight accelerators each.
    assert dict(fleet_capacity.zone_shares) == pytest.approx(
        {"us-west-2a": 0.5, "us-west-2b": 0.25, "us-west-2c": 0.25}
    )
    assert fleet_capacity.single_zone_pools == ("bb",)


def test_what_a_pool_has_beside_its_reservation_is_lost_with_the_same_zone(tmp_path: Path) -> None:
    held = "  bb: {types: g6e.48xlarge, zones: us-west-2a, buy: [{reserve: 2}, on-demand], size: 2..9}\n"
    fleet_capacity = _compute_capacity(tmp_path, f"  aa: {{types: g6e.48xlarge, size: 0..9}}\n{held}")
    assert dict(fleet_capacity.zone_shares)["us-west-2a"] == pytest.approx((3 + 9) / 18)


def test_a_fleet_without_accelerators_loses_none_with_a_zone(tmp_path: Path) -> None:
    fleet_capacity = _compute_capacity(tmp_path, "  aa: {types: m8g.large, size: 3}\n")
    assert set(dict(fleet_capacity.zone_shares).values()) == {0.0}


def _get_error(tmp_path: Path, text: str) -> str:
    (mistake,) = capacity.find_mistakes(_load_fleet(tmp_path, text))
    return str(mistake).removeprefix(f"{tmp_path}/")


def test_a_range_too_small_is_refused_with_the_range_that_is_wide_enough(tmp_path: Path) -> None:
    text = f"{HEAD}network: {{cidr: 10.1.0.0/20}}\npools:\n  aa: {{types: g6e.xlarge, size: 0..60}}\n"
    # 11 interface endpoints, 8 for a load balancer, 16 for the control plane, 65 for the system's node, 20 nodes of 33.
    assert _get_error(tmp_path, text) == (
        'fleet.yaml:4:17: network.cidr: "10.1.0.0/20": at full size the fleet takes 760 addresses in '
        "us-west-2a, and its subnet, an eighth of the range, has 507. Fix: set cidr: 10.1.0.0/19."
    )


def test_a_fleet_too_large_for_any_range_is_refused_with_both_fixes(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa: {{types: g6e.xlarge, size: 0..900}}\n"
    assert _get_error(tmp_path, text) == (
        'fleet.yaml:1:1: network.cidr: "10.0.0.0/16": at full size the fleet takes 10,000 addresses in '
        "us-west-2a, and its subnet, an eighth of the range, has 8,187. Fix: use smaller pools, pools over more zones, "
        "or a network of your own: {vpc: vpc-..., private_subnets: [...]}."
    )


def test_too_many_capacity_providers_for_a_cluster_are_refused(tmp_path: Path) -> None:
    types = "[g6e.xlarge, g6.xlarge, g5.xlarge, p5.4xlarge]"
    text = f"{HEAD}orchestrator: ecs\npools:\n  aa: {{types: {types}, buy: [spot, on-demand], size: 0..9}}\n"
    assert _get_error(tmp_path, text) == (
        "fleet.yaml:5:1: pools: [aa]: they make 24 capacity providers of the ECS cluster beside Fargate's two, which takes "
        "18 (ECS developer guide, Amazon ECS service quotas, 2026-11: not adjustable). Fix: use fewer zones, types or ways "
        "to buy in a pool, smaller pools, or a second fleet for some of them."
    )


def test_too_many_container_instances_for_a_cluster_are_refused(tmp_path: Path) -> None:
    text = f"{HEAD}orchestrator: ecs\npools:\n  aa: {{types: g6e.xlarge, size: 0..5001}}\n"
    assert "they make 5,001 container instances of the ECS cluster, which takes 5,000" in _get_error(tmp_path, text)


def test_an_unknown_type_is_left_out_of_the_limits(tmp_path: Path) -> None:
    document = _load_fleet(tmp_path, f"{HEAD}pools:\n  aa: {{types: g6e.7xlarge, size: 0..90000}}\n")
    assert capacity.find_mistakes(document) == []


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_a_fleet_without_enough_addresses_is_refused(fleet: Fleet) -> None:
    document = strategies.build_document(fleet)
    fleet_capacity = capacity.compute(fleet)
    short_subnets = [subnet for subnet in fleet_capacity.subnets if subnet.needed > subnet.available]
    mistakes = [mistake for mistake in capacity.find_mistakes(document) if mistake.field == "network.cidr"]
    assert bool(short_subnets) == bool(mistakes)
    if mistakes and mistakes[0].fix.startswith("cidr: "):
        wider_network = NewNetwork(cidr=mistakes[0].fix.removeprefix("cidr: "))
        wider_capacity = capacity.compute(fleet.model_copy(update={"network": wider_network}))
        assert all(subnet.needed <= subnet.available for subnet in wider_capacity.subnets), (
            "what is offered instead is enough"
        )


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_planned_subnets_are_disjoint_and_inside_the_vpc(fleet: Fleet) -> None:
    assert isinstance(fleet.network, NewNetwork)
    cidr = fleet.network.cidr
    subnets = [
        IPv4Network(allocate(cidr, zone))
        for zone in fleet.zones
        for allocate in (addresses.compute_private_cidr, addresses.compute_public_cidr)
    ]
    assert all(subnet.subnet_of(IPv4Network(cidr)) for subnet in subnets)
    assert not any(subnet.overlaps(other) for subnet, other in itertools.combinations(subnets, 2))


@settings(max_examples=80, deadline=None, suppress_health_check=SUPPRESSED_CHECKS)
@given(strategies.fleets())
def test_an_accepted_fleet_stays_within_fixed_limits(fleet: Fleet) -> None:
    if checks.find_mistakes(strategies.build_document(fleet)):
        return
    fleet_capacity = capacity.compute(fleet)
    assert all(limit.amount <= limit.most for limit in fleet_capacity.limits)
    providers = [group for group in groups.resolve_all(fleet) if group.kind == "capacity-provider"]
    assert len(providers) <= 18
    assert sum(share for _, share in fleet_capacity.zone_shares) == pytest.approx(1.0) or not any(
        group.accelerators for group in groups.resolve_all(fleet)
    )
