from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.aws.instance_types import rows


def _build_type(name: str, **changes: Any) -> dict[str, Any]:
    """A type as DescribeInstanceTypes gives it, with the fields that the catalog reads."""
    card = {
        "NetworkCardIndex": 0,
        "MaximumNetworkInterfaces": 4,
        "BaselineBandwidthInGbps": 2.5,
        "PeakBandwidthInGbps": 20.0,
        "InterfaceTypes": ["interface"],
    }
    gpu = {"Name": "L40S", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 45776}}
    return {
        "InstanceType": name,
        "VCpuInfo": {"DefaultVCpus": 4},
        "MemoryInfo": {"SizeInMiB": 32768},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "GpuInfo": {"Gpus": [gpu]},
        "NetworkInfo": {"NetworkPerformance": "Up to 20 Gigabit", "NetworkCards": [card]},
        "EbsInfo": {"EbsOptimizedInfo": {"MaximumThroughputInMBps": 625.0}},
        "SupportedUsageClasses": ["spot", "on-demand"],
        **changes,
    }


def _build_region(
    *type_documents: dict[str, Any], zones: str = "ab", prices: dict[str, float] | None = None, date: str = "2026-01-01"
) -> Any:
    return {
        "source": "AWS EC2",
        "date": date,
        "types": list(type_documents),
        "zones": {document["InstanceType"]: zones for document in type_documents},
        "prices": prices,
    }


def test_a_row_has_only_used_fields() -> None:
    assert rows.build_row(_build_type("g6e.xlarge"), "us-west-2") == {
        "from": "us-west-2",
        "vcpus": 4,
        "memory_mib": 32768,
        "arch": "x86_64",
        "accelerators": {"kind": "gpu", "name": "L40S", "count": 1, "memory_mib": 45776},
        "efa_interfaces": 0,
        "network_gbps": 20,
        "cards": [{"index": 0, "interfaces": 4, "baseline_gbps": 2.5, "peak_gbps": 20, "efa": False}],
        "nvme_gb": 0,
        "ebs_mb_s": 625,
        "purchase": ["on-demand", "spot"],
    }


def test_neuron_devices_are_read_from_their_own_field() -> None:
    device = {"Name": "Trainium2", "Count": 16, "CoreInfo": {"Count": 8}, "MemoryInfo": {"SizeInMiB": 524288}}
    neuron_type = _build_type("trn2.48xlarge", NeuronInfo={"NeuronDevices": [device]})
    del neuron_type["GpuInfo"]
    assert rows.build_row(neuron_type, "us-east-2")["accelerators"] == {
        "kind": "neuron",
        "name": "Trainium2",
        "count": 16,
        "memory_mib": 524288,
        "cores": 8,
    }


@pytest.mark.parametrize(
    ("text", "gbps"),
    [("Up to 12.5 Gigabit", 12.5), ("100 Gigabit", 100), ("16x 200 Gigabit", 3200), ("22.5 Gigabit", 22.5)],
)
def test_the_machines_bandwidth_is_read_in_each_form_that_ec2_writes(text: str, gbps: float) -> None:
    network = {"NetworkPerformance": text, "NetworkCards": []}
    row = rows.build_row(_build_type("g6e.xlarge", NetworkInfo=network), "us-west-2")
    assert row["network_gbps"] == gbps


def test_local_zones_are_left_out() -> None:
    zones = ["us-east-1a", "us-east-1-atl-2a", "us-east-1c", "us-east-1-wl1-bos-wlz-1"]
    offerings = [{"InstanceType": "p5.48xlarge", "Location": zone} for zone in zones]
    assert rows.collect_zone_letters(offerings, "us-east-1") == {"p5.48xlarge": "ac"}


def test_a_type_without_a_zone_is_not_offered_in_the_region() -> None:
    responses = {
        "us-west-2": {
            **_build_region(_build_type("g6e.xlarge"), _build_type("p5.48xlarge")),
            "zones": {"g6e.xlarge": "a"},
        }
    }
    assert list(rows.merge({}, responses)["types"]) == ["g6e.xlarge"]


def test_a_region_that_offers_nothing_is_no_answer() -> None:
    responses = {
        "us-west-2": _build_region(_build_type("g6e.xlarge")),
        "mx-central-1": {**_build_region(), "zones": {}},
    }
    assert list(rows.merge({}, responses)["regions"]) == ["us-west-2"]


def test_regions_that_were_not_asked_stay_as_they_were() -> None:
    old = rows.merge(
        {},
        {"eu-west-1": _build_region(_build_type("g5.xlarge")), "us-west-2": _build_region(_build_type("g6e.xlarge"))},
    )
    responses = {"us-west-2": _build_region(_build_type("g6e.xlarge"), zones="abcd", date="2026-06-01")}
    new = rows.merge(old, responses)
    assert new["regions"]["eu-west-1"]["date"] == "2026-01-01"
    assert new["regions"]["us-west-2"]["date"] == "2026-06-01"
    assert new["types"]["g5.xlarge"] == old["types"]["g5.xlarge"]
    assert new["types"]["g6e.xlarge"]["zones"] == {"us-west-2": "abcd"}


def test_a_type_that_no_region_offers_is_removed() -> None:
    old = rows.merge({}, {"us-west-2": _build_region(_build_type("g5.xlarge"), _build_type("g6e.xlarge"))})
    new = rows.merge(old, {"us-west-2": _build_region(_build_type("g6e.xlarge"))})
    assert list(new["types"]) == ["g6e.xlarge"]
    assert rows.list_changes(old, new) == ["g5.xlarge: gone"]


def test_a_row_names_another_region_if_its_own_stops_offering_it() -> None:
    responses = {
        "eu-west-1": _build_region(_build_type("g5.xlarge")),
        "us-west-2": _build_region(_build_type("g5.xlarge")),
    }
    old = rows.merge({}, responses)
    assert old["types"]["g5.xlarge"]["from"] == "eu-west-1"
    new = rows.merge(old, {"eu-west-1": {**_build_region(), "zones": {}}})
    assert new["types"]["g5.xlarge"]["from"] == "us-west-2"
    assert list(new["regions"]) == ["us-west-2"]


def test_ways_to_buy_are_gathered_over_the_regions() -> None:
    block = _build_type("p5.48xlarge", SupportedUsageClasses=["capacity-block"])
    plain = _build_type("p5.48xlarge", SupportedUsageClasses=["on-demand"])
    old = rows.merge({}, {"eu-west-1": _build_region(plain), "us-west-2": _build_region(block)})
    assert old["types"]["p5.48xlarge"]["purchase"] == ["capacity-block", "on-demand"]
    assert rows.merge(old, {"eu-west-1": _build_region(plain)})["types"]["p5.48xlarge"]["purchase"] == [
        "capacity-block",
        "on-demand",
    ]


def test_prices_keep_the_day_they_were_read_when_a_refresh_does_not_read_them() -> None:
    priced = {"us-west-2": _build_region(_build_type("g6e.xlarge"), prices={"g6e.xlarge": 1.861})}
    old = rows.merge({}, priced)
    assert old["types"]["g6e.xlarge"]["prices"] == {"us-west-2": 1.861}
    new = rows.merge(old, {"us-west-2": _build_region(_build_type("g6e.xlarge"), date="2026-06-01")})
    assert new["types"]["g6e.xlarge"]["prices"] == {"us-west-2": 1.861}
    assert new["regions"]["us-west-2"] == {"source": "AWS EC2", "date": "2026-06-01", "prices": "2026-01-01"}


def test_a_price_that_the_list_has_no_more_is_dropped() -> None:
    old = rows.merge({}, {"us-west-2": _build_region(_build_type("g6e.xlarge"), prices={"g6e.xlarge": 1.861})})
    new = rows.merge(old, {"us-west-2": _build_region(_build_type("g6e.xlarge"), prices={})})
    assert "prices" not in new["types"]["g6e.xlarge"]
    assert rows.list_changes(old, new) == ["g6e.xlarge: USD/h in us-west-2 1.861 -> none"]


def test_changes_name_the_field_with_its_values_before_and_after() -> None:
    old = rows.merge({}, {"us-west-2": _build_region(_build_type("g6e.xlarge"))})
    changed_type = _build_type("g6e.xlarge", VCpuInfo={"DefaultVCpus": 8}, SupportedUsageClasses=["spot"])
    new = rows.merge(
        old,
        {"us-west-2": _build_region(changed_type, _build_type("g6e.2xlarge"), zones="abc", prices={"g6e.xlarge": 2.0})},
    )
    assert rows.list_changes(old, new) == [
        'g6e.xlarge: vcpus 4 -> 8; purchase ["on-demand", "spot"] -> ["spot"]; '
        "zones in us-west-2 ab -> abc; USD/h in us-west-2 none -> 2.0",
        "g6e.2xlarge: new",
    ]


def test_asking_again_changes_nothing() -> None:
    responses = {
        "us-west-2": _build_region(_build_type("g6e.xlarge"), _build_type("m8g.large")),
        "us-east-1": _build_region(_build_type("g5.xlarge")),
    }
    first = rows.merge({}, responses)
    second = rows.merge(copy.deepcopy(first), responses)
    assert rows.dump(second) == rows.dump(first)
    assert rows.list_changes(first, second) == []


def test_types_stand_in_the_order_of_families_and_sizes() -> None:
    names = ["m8g.large", "g6e.12xlarge", "g6e.2xlarge", "m8g.medium", "g5.xlarge", "m8g.xlarge", "g6e.xlarge"]
    assert sorted(names, key=rows.build_sort_key) == [
        *("g5.xlarge", "g6e.xlarge", "g6e.2xlarge", "g6e.12xlarge"),
        *("m8g.medium", "m8g.large", "m8g.xlarge"),
    ]


_scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=40)
_trees = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=12), inner, max_size=6),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=12), _trees, max_size=6))
def test_a_dump_reads_back_unchanged(tree: dict[str, Any]) -> None:
    assert json.loads(rows.dump(tree)) == tree


def test_one_card_changed_is_one_line_changed() -> None:
    cards = [{"index": index, "interfaces": 2, "efa": True} for index in range(32)]
    before = rows.dump({"cards": cards}).splitlines()
    cards[7] = {**cards[7], "efa": False}
    after = rows.dump({"cards": cards}).splitlines()
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new] == [
        ('  {"index": 7, "interfaces": 2, "efa": true},', '  {"index": 7, "interfaces": 2, "efa": false},')
    ]
