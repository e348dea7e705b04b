from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import botocore.session
import pytest

from infra.functions import gpu_repair
from llm_serving.catalog import instances
from llm_serving.fleet import checks, groups, loading
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError, Mistake

HEAD = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
"""
BLOCK = "{capacity-block: cr-0123456789abcdef0}"
ASK = "run `blueprint catalog refresh --region us-west-2` to read your own account's zones"


def _check(tmp_path: Path, text: str, catalog: Mapping[str, instances.Instance] | None = None) -> list[Mistake]:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with mock.patch.object(instances, "load", return_value=catalog or instances.load()):
        return checks.find_mistakes(load(file, Fleet))


def _get_only_mistake(mistakes: list[Mistake]) -> str:
    """The text of the one mistake, without the folder."""
    assert len(mistakes) == 1, [str(mistake) for mistake in mistakes]
    return str(mistakes[0]).removeprefix(f"{mistakes[0].file.parent}/")


def test_the_repositorys_own_fleet_can_be_rented() -> None:
    fleet_document = load(Path(__file__).parents[2] / "fleet.yaml", Fleet)
    assert checks.find_mistakes(fleet_document) == []


def test_loading_refuses_with_every_mistake(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{HEAD}pools:\n  aa:\n    types: [g6e.9xlarge, g6e.5xlarge]\n    size: 1\n")
    with pytest.raises(InputError) as error:
        loading.load_fleet(file)
    assert [mistake.field for mistake in error.value.mistakes] == ["pools.aa.types[0]", "pools.aa.types[1]"]


def test_spare_nodes_without_accelerators_are_refused_on_eks_alone(tmp_path: Path) -> None:
    pools = "pools:\n  routers: {types: m8g.2xlarge, size: 0..4, spare: 1}\n"
    assert _get_only_mistake(_check(tmp_path, HEAD + pools)) == (
        "fleet.yaml:5:52: pools.routers.spare: 1: on EKS pods hold spare nodes by their accelerators, and these types have "
        "none. Fix: remove spare, or set size: 1..4."
    )
    assert _check(tmp_path, f"{HEAD}orchestrator: ecs\n{pools}") == []


def test_an_unknown_type_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  general:\n    types: [g6e.xlarge, g6e.7xlarge]\n    size: 1\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:6:25: pools.general.types[1]: "g6e.7xlarge": the catalog has no such instance type. '
        "Fix: use g6e.xlarge or g6e.8xlarge or g6e.4xlarge."
    )


def test_a_type_that_the_region_does_not_offer_is_refused_with_the_regions_that_do(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  tiny:\n    types: trn2.48xlarge\n    size: 1\n"
    offering_regions = " and ".join(instances.find("trn2.48xlarge").zones)
    assert _get_only_mistake(_check(tmp_path, text)) == (
        f'fleet.yaml:6:12: pools.tiny.types: "trn2.48xlarge": us-west-2 does not offer it; {offering_regions} would. '
        f"Fix: use another type than trn2.48xlarge, or {ASK}."
    )


def test_a_type_that_none_of_the_pools_zones_offers_is_refused_with_the_zones_that_do(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  big:\n    types: [p5e.48xlarge]\n    zones: [us-west-2a, us-west-2b]\n    size: 1\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:6:13: pools.big.types[0]: "p5e.48xlarge": us-west-2 offers it in us-west-2c only, '
        f"and the pool takes us-west-2a and us-west-2b. Fix: set zones: [us-west-2c], or {ASK}."
    )


def test_a_zone_that_offers_none_of_the_pools_types_is_refused_at_its_line(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  big:\n    types: [p5e.48xlarge]\n    zones: [us-west-2c, us-west-2b]\n    size: 1\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:7:25: pools.big.zones[1]: "us-west-2b": us-west-2b offers none of the pool\'s types. '
        f"Fix: set zones: [us-west-2c] in the pool, or {ASK}."
    )


def test_zones_taken_from_the_fleet_that_offer_none_of_the_pools_types_are_refused_too(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  big:\n    types: [p5e.48xlarge]\n    size: 1\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        "fleet.yaml:6:12: pools.big.types: [p5e.48xlarge]: the pool takes all of the fleet's zones, "
        "and us-west-2a and us-west-2b offer none of the pool's types. "
        f"Fix: set zones: [us-west-2c] in the pool, or {ASK}."
    )


def test_a_zone_may_lack_some_of_the_types_as_long_as_it_offers_one(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  big:\n    types: [p5e.48xlarge, p5.48xlarge]\n    size: 1\n"
    assert _check(tmp_path, text) == []


def test_a_region_missing_from_the_catalog_is_not_checked(tmp_path: Path) -> None:
    text = "name: demo\nregion: eu-nowhere-9\norchestrator: ecs\nzones: eu-nowhere-9a\npools:\n  aa:\n    types: p5e.48xlarge\n    size: 1\n"
    assert _check(tmp_path, text) == []


def test_efa_on_a_type_without_it_is_refused_with_the_sizes_that_have_it(tmp_path: Path) -> None:
    text = (
        f"{HEAD}pools:\n  aa:\n    types: [g6e.xlarge, g6e.2xlarge]\n    zones: us-west-2a\n    efa: on\n    size: 2\n"
    )
    assert _get_only_mistake(_check(tmp_path, text)) == (
        "fleet.yaml:8:10: pools.aa.efa: true: g6e.xlarge and g6e.2xlarge have no EFA. Fix: use types with it "
        "(g6e.8xlarge, g6e.12xlarge, g6e.16xlarge, g6e.24xlarge, g6e.48xlarge), or set efa: false."
    )


def test_efa_on_a_family_without_it_can_only_be_switched_off(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: inf2.48xlarge\n    zones: us-west-2a\n    efa: on\n    size: 2\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        "fleet.yaml:8:10: pools.aa.efa: true: inf2.48xlarge has no EFA. Fix: set efa: false."
    )
    assert "inf2.48xlarge has no EFA" in _get_only_mistake(_check(tmp_path, f"{text}orchestrator: ecs\n"))


def test_gpus_and_neuron_devices_in_one_pool_are_refused(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: [g6e.xlarge, inf2.xlarge]\n    size: 1\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:6:25: pools.aa.types[1]: "inf2.xlarge": it carries Neuron devices, and g6e.xlarge carries GPUs'
        ": an image for one does not run on the other. Fix: add a second pool for inf2.xlarge."
    )


def test_x86_and_arm_in_one_pool_are_refused(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: [m8g.large, x8i.large]\n    size: 1\n"
    x86 = instances.find("m8g.large").model_copy(update={"name": "x8i.large", "arch": "x86_64"})
    assert _get_only_mistake(_check(tmp_path, text, {**instances.load(), "x8i.large": x86})) == (
        'fleet.yaml:6:24: pools.aa.types[1]: "x8i.large": it is x86_64, and m8g.large is arm64: an image for one does not run on the other. Fix: add a second pool for x8i.large.'
    )


def test_types_of_the_same_kind_can_share_a_pool(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: [g6e.48xlarge, p5.48xlarge, p6-b200.48xlarge]\n    size: 1\n"
    assert _check(tmp_path, text) == []


def test_a_capacity_block_of_a_type_without_capacity_blocks_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: g6e.48xlarge\n    zones: us-west-2a\n    buy: {BLOCK}\n    size: 2\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        "fleet.yaml:8:10: pools.aa.buy: {capacity-block: cr-0123456789abcdef0}: EC2 does not sell g6e.48xlarge by Capacity Block. Fix: set buy: [on-demand, spot], or use a type that is sold this way, such as trn1.32xlarge, trn2.3xlarge, trn2.48xlarge."
    )


def test_a_capacity_block_of_a_supported_type_is_accepted(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: p5.48xlarge\n    zones: us-west-2a\n    buy: {BLOCK}\n    size: 2\n"
    assert _check(tmp_path, text) == []


def test_spot_of_a_type_without_spot_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: p5.48xlarge\n    buy: [on-demand, spot]\n    size: 2\n"
    instance = instances.find("p5.48xlarge").model_copy(update={"purchase": ("on-demand",)})
    assert _get_only_mistake(_check(tmp_path, text, {"p5.48xlarge": instance})) == (
        'fleet.yaml:7:22: pools.aa.buy[1]: "spot": EC2 does not sell p5.48xlarge as spot. Fix: set buy: [on-demand].'
    )


def test_more_than_the_spend_limit_is_refused_with_the_sum_and_the_pools(tmp_path: Path) -> None:
    text = (
        f"{HEAD}spend_limit: 100 USD/h\npools:\n"
        "  aa:\n    types: [g6e.xlarge, g6e.48xlarge]\n    size: 0..4\n"
        "  bb:\n    types: g6e.2xlarge\n    size: 1\n"
    )
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:4:14: spend_limit: "100 USD/h": at full size the fleet costs 123.98 USD/h on demand '
        "(aa 120.52, bb 2.24, root volumes 0.09, without instances 1.12). Fix: set a limit of 123.98 USD/h or more, or use smaller pools."
    )


def test_a_sum_over_the_limit_names_the_missing_prices(tmp_path: Path) -> None:
    text = (
        f"{HEAD}spend_limit: 50 USD/h\npools:\n"
        "  aa:\n    types: [p5.48xlarge, p5e.48xlarge]\n    zones: us-west-2c\n    size: 1\n"
    )
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:4:14: spend_limit: "50 USD/h": at full size the fleet costs 56.21 USD/h on demand '
        "(aa 55.04, root volumes 0.04, without instances 1.12), and no price is known in us-west-2 of p5e.48xlarge in pool aa (AWS's price list has no on-demand "
        "price for it; it is sold by Capacity Block). Fix: set a limit of 56.21 USD/h or more, or use smaller pools."
    )


def test_a_limit_without_known_prices_is_refused(tmp_path: Path) -> None:
    text = "name: demo\nregion: eu-central-1\nzones: [eu-central-1a, eu-central-1b]\nspend_limit: 5 USD/h\n"
    text += "pools:\n  aa:\n    types: g6.xlarge\n    size: 0..90\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:4:14: spend_limit: "5 USD/h": the limit cannot be checked: no price is known in eu-central-1 of g6.xlarge in pool aa. Fix: remove spend_limit, or run `blueprint catalog refresh --region eu-central-1` first, for AWS\'s prices.'
    )


@pytest.mark.parametrize(
    ("limit", "pool"),
    [
        (
            "",
            "types: p5e.48xlarge\n    zones: us-west-2c\n    size: 9",
        ),  # no limit, so an unknown price is none's matter
        ("spend_limit: 1.16 USD/h\n", "types: p5.48xlarge\n    size: 0"),
        ("spend_limit: 1.26 USD/h\n", f"types: p5e.48xlarge\n    zones: us-west-2c\n    buy: {BLOCK}\n    size: 9"),
        ("spend_limit: 19.88 USD/h\n", "types: g6e.xlarge\n    size: 10"),
    ],
    ids=["no limit", "no machine", "prepaid", "just within"],
)
def test_a_fleet_within_its_spend_limit_passes(tmp_path: Path, limit: str, pool: str) -> None:
    assert _check(tmp_path, f"{HEAD}{limit}pools:\n  aa:\n    {pool}\n") == []


def test_all_mistakes_are_reported_together_in_file_order(tmp_path: Path) -> None:
    text = (
        f"{HEAD}spend_limit: 1 USD/h\npools:\n"
        "  aa:\n    types: [g6e.xlarge, inf2.xlarge, h100.large]\n    zones: us-west-2a\n    size: 1\n    efa: true\n"
        f"  bb:\n    types: g5.xlarge\n    zones: us-west-2a\n    buy: {BLOCK}\n    size: 1\n"
    )
    mistakes = _check(tmp_path, text)
    fields = ["spend_limit", "pools.aa.types[1]", "pools.aa.types[2]", "pools.aa.efa", "pools.bb.buy"]
    assert [mistake.field for mistake in mistakes] == fields
    assert [mistake.line for mistake in mistakes] == sorted(mistake.line for mistake in mistakes)


def test_efa_over_several_zones_is_refused_on_load(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: p5.48xlarge\n    size: 2\n    efa: true\n"
    with pytest.raises(InputError) as error:
        _check(tmp_path, text)
    assert "pools.aa.efa: true: EFA traffic does not cross an Availability Zone" in str(error.value)


def test_nvme_on_a_type_without_such_disks_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: [inf2.8xlarge, inf2.24xlarge]\n    size: 0..2\n    disk: nvme\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:8:11: pools.aa.disk: "nvme": inf2.8xlarge and inf2.24xlarge have no NVMe disks. Fix: set disk: gp3.'
    )


@pytest.mark.parametrize(("key", "value"), [("dedicated", '""'), (f"{'a' * 60}.example/k", "x")])
def test_a_label_that_aws_takes_of_no_instance_is_refused(tmp_path: Path, key: str, value: str) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: g6e.xlarge\n    size: 0..2\n    labels: {{{key}: {value}}}\n"
    assert _check(tmp_path, text) == [], "Karpenter's nodes may have it"
    labels = botocore.session.get_session().get_service_model("eks").shape_for("labelsMap")
    assert (labels.value.metadata["min"], labels.key.metadata["max"]) == (1, checks.MAX_LABEL_KEYS["node-group"])
    assert _get_only_mistake(_check(tmp_path, text.replace("0..2", "1..2"))).endswith(
        "AWS takes a label with a value, and a key of at most 63 characters here. Fix: use another label."
    )
    assert len(_check(tmp_path, f"{text}orchestrator: ecs\n")) == (value == '""')


def test_labels_leave_an_ecs_instance_room_for_the_fleets_own_attributes(tmp_path: Path) -> None:
    def write(count: int) -> str:
        labels = ", ".join(f"key{number}: value" for number in range(count))
        return f"{HEAD}pools:\n  aa:\n    types: g6e.xlarge\n    size: 0..2\n    labels: {{{labels}}}\n"

    assert _check(tmp_path, write(6)) == [], "nodes of EKS may have them"
    text = f"{write(checks.MAX_TASK_LABELS)}orchestrator: ecs\n"
    assert _check(tmp_path, text) == []
    (tmp_path / "fleet.yaml").write_text(text)
    [group, *_] = groups.resolve_all(load(tmp_path / "fleet.yaml", Fleet).value)
    attributes = {*group.labels, gpu_repair.DRAIN_ATTRIBUTE, gpu_repair.LOST_ATTRIBUTE}
    assert len(attributes) == 10, "as many as ECS takes"
    assert _get_only_mistake(_check(tmp_path, f"{write(6)}orchestrator: ecs\n")) == (
        "fleet.yaml:8:13: pools.aa.labels: 6: ECS takes ten attributes of an instance, and five are the fleet's own. "
        "Fix: keep 5 of them."
    )


def test_soci_on_a_volume_that_the_machine_reads_too_slowly_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD}pools:\n  aa:\n    types: g6e.xlarge\n    size: 0..2\n    images: soci\n    disk: gp3\n"
    assert _get_only_mistake(_check(tmp_path, text)) == (
        'fleet.yaml:8:13: pools.aa.images: "soci": g6e.xlarge reads 596 MiB/s from a volume, and below 600 '
        "SOCI makes starts slower. Fix: set disk: nvme."
    )


def test_a_range_too_small_for_the_fleet_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD}network: {{cidr: 10.1.0.0/20}}\npools:\n  aa: {{types: g6e.xlarge, size: 0..60}}\n"
    assert '"10.1.0.0/20": at full size the fleet takes' in _get_only_mistake(_check(tmp_path, text))
