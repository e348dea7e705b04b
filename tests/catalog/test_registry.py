"""Regional tables of our own against botocore's: a region that AWS adds is in them, or a fleet there is refused."""

from __future__ import annotations

import botocore.loaders
import pytest

from llm_serving.aws.preflight import zones
from llm_serving.catalog.registry import find_domain, format_endpoint_service
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import BlueprintError

PARTITIONS = botocore.loaders.Loader().load_data("partitions")["partitions"]
REGIONS = [
    (region, partition["outputs"])
    for partition in PARTITIONS
    for region in partition["regions"]
    if not region.endswith("-global")
]


def is_refused(region: str) -> bool:
    fleet = {"name": "demo", "region": region, "zones": [f"{region}a"], "orchestrator": "ecs"}
    try:
        settings = Fleet.model_validate({**fleet, "pools": {"general": {"types": "g6e.2xlarge", "size": "0..8"}}})
    except (BlueprintError, ValueError):
        return True
    return any(conflict.key_path == ("region",) for conflicts in settings.find_conflicts() for conflict in conflicts)


@pytest.mark.parametrize(("region", "outputs"), REGIONS, ids=[region for region, _ in REGIONS])
def test_a_region_has_the_domain_and_the_partition_of_botocore_or_is_refused(
    region: str, outputs: dict[str, str]
) -> None:
    is_known = (find_domain(region), names.find_partition(region)) == (outputs["dnsSuffix"], outputs["name"])
    assert is_known is not is_refused(region)


def test_endpoint_services_have_a_domain_of_china_where_aws_gives_them_one() -> None:
    assert format_endpoint_service("ecr.api", "us-gov-west-1") == "com.amazonaws.us-gov-west-1.ecr.api"
    assert format_endpoint_service("ecr.api", "cn-north-1") == "cn.com.amazonaws.cn-north-1.ecr.api"
    for service in ("s3", "logs", "ssm", "secretsmanager"):
        assert format_endpoint_service(service, "cn-north-1") == f"com.amazonaws.cn-north-1.{service}"


def test_zones_without_a_service_are_of_regions_that_exist() -> None:
    regions = {region for region, _ in REGIONS}
    assert set(zones.ZONES_WITH_FARGATE) <= regions
    for region, ids in zones.ZONES_WITH_FARGATE.items():
        area, direction, number = region.rsplit("-", 2)
        short = "".join(word[0] for word in (direction[:5], direction[5:]) if word)
        assert {zone.partition("-")[0] for zone in ids} == {f"{area.replace('-', '')}{short}{number}"}
