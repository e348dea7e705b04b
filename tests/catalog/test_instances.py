from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pydantic
import pytest

from llm_serving.catalog import instances
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import InputError

CATALOG = instances.load()
OVERLAY = own_yaml.read(instances.OVERLAY)
GENERATED = json.loads(instances.GENERATED.read_text("utf-8"))

# Type, accelerators, EFA interfaces, Gbps of the machine, EFA for one accelerator where it divides, GPUDirect RDMA.
# Source: AWS's pages of the instance families and EC2's own EFA page, read up to November 2026.
FIELD = [
    ("g6e.8xlarge", 1, "L40S", 1, 25, None, False),
    ("g6e.16xlarge", 1, "L40S", 1, 35, None, False),
    ("g6e.12xlarge", 4, "L40S", 1, 100, None, False),
    ("g6e.24xlarge", 4, "L40S", 2, 200, None, False),
    ("g6e.48xlarge", 8, "L40S", 4, 400, None, False),
    ("p5.48xlarge", 8, "H100", 32, 3200, 4, True),
    ("p5e.48xlarge", 8, "H200", 32, 3200, 4, True),
    ("p5en.48xlarge", 8, "H200", 16, 3200, 2, True),
    ("p6-b200.48xlarge", 8, "B200", 8, 3200, 1, True),
    ("p6-b300.48xlarge", 8, "B300", 16, 6400, 2, True),
    ("trn1.32xlarge", 16, "Trainium", 8, 800, None, None),
    ("trn1n.32xlarge", 16, "Trainium", 16, 1600, 1, None),
    ("trn2.48xlarge", 16, "Trainium2", 16, 3200, 1, None),
]

# Memory of one accelerator in GB as AWS and NVIDIA name it, and NeuronCores of the whole machine.
MEMORY_GB = {"L40S": 48, "H100": 80, "H200": 141, "B200": 180, "B300": 270, "Trainium": 32, "Trainium2": 96}
CORES = {"trn1.32xlarge": 32, "trn2.48xlarge": 128, "inf2.48xlarge": 24}


@pytest.mark.parametrize(("name", "count", "accelerator", "efa", "gbps", "efa_each", "rdma"), FIELD)
def test_the_generated_data_agrees_with_the_field(
    name: str, count: int, accelerator: str, efa: int, gbps: float, efa_each: int | None, rdma: bool | None
) -> None:
    row = instances.find(name)
    assert row.accelerators is not None
    assert (row.accelerators.count, row.accelerators.name) == (count, accelerator)
    assert row.accelerators.memory_mib * 2**20 / 1e9 == pytest.approx(MEMORY_GB[accelerator], rel=0.08)
    assert (row.efa_interfaces, row.network_gbps) == (efa, gbps)
    assert efa_each is None or efa / count == efa_each
    assert row.gpudirect_rdma is rdma


@pytest.mark.parametrize(("name", "cores"), CORES.items())
def test_neuron_devices_carry_their_cores(name: str, cores: int) -> None:
    row = instances.find(name)
    assert row.accelerators is not None and row.accelerators.cores is not None
    assert row.accelerators.kind == "neuron"
    assert row.accelerators.count * row.accelerators.cores == cores


def test_a_trainium2_device_counts_as_four_cores_and_older_devices_as_their_own() -> None:
    accelerators = {
        name: instances.find(name).accelerators for name in ("trn2.48xlarge", "trn1.32xlarge", "g6e.12xlarge")
    }
    assert {name: device.ranks for name, device in accelerators.items() if device} == dict(
        zip(accelerators, (4, 2, 1), strict=True)
    )


def test_the_catalog_has_every_supported_family() -> None:
    families = {row.family for row in CATALOG.values()}
    assert families >= {"g5", "g6", "g6e", "g7e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300"}
    assert families >= {"trn1", "trn1n", "trn2", "inf2", "m8g", "g4dn", "gr6", "g7"}
    assert families >= {"m7i", "m8i", "c7i", "c8i"}
    assert {"p5.4xlarge", "trn2.3xlarge"} <= CATALOG.keys()


@pytest.mark.parametrize(
    ("names", "of_ec2", "usable"),
    [
        (("trn2.3xlarge", "trn2.48xlarge"), 524_288, 96 * 1024),
        (("g4dn.xlarge", "g4dn.12xlarge"), 16_384, 15_079),  # ECC takes a sixteenth, and the driver its part
    ],
)
def test_what_a_device_has_to_use_overrides_ec2s_number(names: tuple[str, ...], of_ec2: int, usable: int) -> None:
    for name in names:
        assert GENERATED["types"][name]["accelerators"]["memory_mib"] == of_ec2
        on_board = instances.find(name).accelerators
        assert on_board is not None and on_board.memory_mib == usable


def test_the_two_a100s_differ_in_memory_bandwidth() -> None:
    small, large = instances.find("p4d.24xlarge").accelerators, instances.find("p4de.24xlarge").accelerators
    assert small is not None and large is not None
    assert (small.name, small.bandwidth_gb_s) == ("A100", 1555)
    assert (large.name, large.bandwidth_gb_s) == ("A100", 2039)


def test_card_0_of_p6_b300_has_no_efa_and_every_other_card_has() -> None:
    cards = instances.find("p6-b300.48xlarge").cards
    assert [card.index for card in cards] == list(range(17))
    assert [card.index for card in cards if not card.efa] == [0]


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.name)
def test_the_cards_with_efa_match_the_machines_interfaces(row: instances.Instance) -> None:
    assert sum(card.efa for card in row.cards) == row.efa_interfaces
    assert [card.index for card in row.cards] == list(range(len(row.cards)))


def test_the_machines_bandwidth_is_not_the_sum_of_its_cards() -> None:
    row = instances.find("g6e.48xlarge")
    assert (row.network_gbps, sum(card.peak_gbps for card in row.cards)) == (400, 1600)


def test_routers_get_arm_machines_without_accelerators() -> None:
    row = instances.find("m8g.xlarge")
    assert (row.arch, row.accelerators, row.gpudirect_rdma) == ("arm64", None, None)
    assert row.memory_mib == row.vcpus * 4096


def test_capacity_blocks_are_sold_for_the_large_types_only() -> None:
    assert "capacity-block" in instances.find("p5.48xlarge").purchase
    assert "capacity-block" not in instances.find("g6e.48xlarge").purchase


def test_data_from_moto_names_moto_as_its_source() -> None:
    source = instances.load_regions()["us-west-2"]
    assert re.fullmatch(r"the copy of EC2's answers that moto \S+ carries|AWS EC2", source.name)
    assert instances.find("p5.48xlarge").sources["ec2"].name in {
        region.name for region in instances.load_regions().values()
    }


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.name)
def test_every_accelerator_has_its_bandwidth_and_its_flops_from_a_source(row: instances.Instance) -> None:
    if row.accelerators:
        assert row.accelerators.bandwidth_gb_s and row.accelerators.dense_tflops
        assert "bf16" in row.accelerators.dense_tflops or row.accelerators.name == "T4"  # which lacks it
        assert row.sources["accelerators"].date
    has_gpu = row.accelerators is not None and row.accelerators.kind == "gpu"
    assert (row.gpudirect_rdma is not None) == has_gpu == ("gpudirect_rdma" in row.sources)


LARGEST_REGIONS = ("us-west-2", "us-east-1", "us-east-2", "eu-west-1", "ap-northeast-1")


@pytest.mark.parametrize("region", LARGEST_REGIONS)
def test_every_type_has_a_price_or_the_reason_for_its_absence(region: str) -> None:
    offered_rows = [row for row in CATALOG.values() if region in row.zones]
    assert offered_rows
    assert [row.name for row in offered_rows if (region in row.prices) == (region in row.unpriced)] == []


@pytest.mark.parametrize("region", LARGEST_REGIONS)
def test_the_accelerators_that_the_largest_regions_sell_on_demand_have_a_price(region: str) -> None:
    offered_rows = [row for row in CATALOG.values() if row.accelerators and region in row.zones]
    unpriced = {row.name for row in offered_rows if region not in row.prices}
    # Sold by Capacity Block alone, and G7, whose prices outside us-east-1 no source had.
    assert {name.split(".")[0] for name in unpriced} <= {"p5e", "trn2", "g7"}


def test_no_region_gives_a_type_two_prices() -> None:
    priced = [
        (name, region) for block in OVERLAY["prices"] for name, row in block["usd_per_hour"].items() for region in row
    ]
    assert len(priced) == len(set(priced))


@pytest.mark.parametrize(
    ("name", "region", "usd_h", "date"),
    [
        ("g6e.xlarge", "us-east-2", 1.861, "2026-01-21"),
        ("g6e.xlarge", "eu-central-1", 2.327, "2026-01-21"),
        ("g5.12xlarge", "eu-west-1", 6.33167, "2026-01-21"),
        ("g7e.48xlarge", "ap-northeast-1", 48.06908, "2026-07"),
        ("p5en.48xlarge", "eu-north-1", 67.72672, "2026-07"),
        ("m8g.48xlarge", "ap-northeast-1", 11.13024, "2026-07"),
        ("p5.48xlarge", "us-east-1", 55.04, "2026-07-20"),
    ],
)
def test_a_price_has_the_source_and_date_of_its_list(name: str, region: str, usd_h: float, date: str) -> None:
    price = instances.find(name).prices[region]
    assert (price.usd_h, price.source.date) == (usd_h, date)
    assert price.source.name.startswith("AWS Price List, as ")


def test_an_unknown_price_is_none() -> None:
    assert instances.find("g6e.xlarge").get_price_usd_h("us-west-2") == 1.861
    assert instances.find("p5e.48xlarge").get_price_usd_h("us-west-2") is None
    assert instances.find("g6e.xlarge").get_price_usd_h("eu-west-3") is None


def _find_rows(node: Any) -> list[dict[str, Any]]:
    return [row for rows in node.values() for row in rows]


@pytest.mark.parametrize("row", _find_rows(OVERLAY), ids=lambda row: str(row.get("name") or row.get("types", [""])[0]))
def test_every_row_of_the_overlay_names_its_source_and_date(row: dict[str, Any]) -> None:
    assert len(row["source"]) > 5
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-[0-3]\d)?", str(row["date"]))


def test_the_overlay_names_only_types_of_the_catalog() -> None:
    type_names = {name for row in _find_rows(OVERLAY) for name in (*row.get("types", ()), *row.get("usd_per_hour", ()))}
    assert type_names <= CATALOG.keys()
    keys = {
        (row.accelerators.name, raw["accelerators"]["memory_mib"]) for row, raw in _pair_with_raw() if row.accelerators
    }
    assert {(entry["name"], entry["ec2_memory_mib"]) for entry in OVERLAY["accelerators"]} == keys


def _pair_with_raw() -> list[tuple[instances.Instance, dict[str, Any]]]:
    return [(CATALOG[name], raw) for name, raw in GENERATED["types"].items()]


def test_awss_price_overrides_the_overlays() -> None:
    row = {**GENERATED["types"]["g6e.xlarge"], "from": "us-west-2", "prices": {"us-west-2": 9.99}}
    regions = {"us-west-2": {"source": "AWS EC2", "date": "2027-01-02", "prices": "2027-01-01"}}
    instance = instances.build({"regions": regions, "types": {"g6e.xlarge": row}}, OVERLAY)["g6e.xlarge"]
    assert instance.get_price_usd_h("us-west-2") == 9.99
    assert instance.prices["us-west-2"].source == instances.Source(name="AWS Price List", date="2027-01-01")
    assert instance.get_price_usd_h("us-east-1") == 1.861


def test_an_accelerator_missing_from_the_overlay_has_ec2s_data() -> None:
    row = json.loads(json.dumps(GENERATED["types"]["g6e.xlarge"]))
    row["accelerators"]["name"] = "L50"
    instance = instances.build({"regions": GENERATED["regions"], "types": {"g6e.xlarge": row}}, OVERLAY)["g6e.xlarge"]
    assert instance.accelerators is not None
    assert (instance.accelerators.memory_mib, instance.accelerators.bandwidth_gb_s) == (45_776, None)
    assert instance.accelerators.dense_tflops == {} and "accelerators" not in instance.sources


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("g6e.12xlrge", "g6e.12xlarge or g6e.2xlarge or g6.12xlarge"),
        ("p6-b200.48xl", "p6-b200.48xlarge or p6-b300.48xlarge"),
        (
            "h100",
            "a type of the families g4dn, g5, g6, gr6, g6e, g7, g7e, p4d, p4de, p5, p5e, p5en, p6-b200, p6-b300, ",
        ),
    ],
)
def test_an_unknown_type_is_refused_with_the_nearest_names(name: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        instances.find(name)
    assert str(error.value).startswith(f"{name}: the catalog has no such instance type. Fix: use {fix}")


def test_rows_are_frozen_and_the_catalog_cannot_be_changed() -> None:
    row = instances.find("g6e.xlarge")
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        row.vcpus = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        CATALOG["g6e.xlarge"] = row  # type: ignore[index]


def test_loading_imports_no_heavy_module() -> None:
    code = (
        "import sys; from llm_serving.catalog import instances; instances.load(); "
        "print({'boto3', 'cdktf', 'moto', 'rich'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=240) == "set()\n"
