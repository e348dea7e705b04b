from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws.preflight import zones
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import system_group

pytestmark = pytest.mark.terraform


def _collect_lines(aws: AwsSession, document: Any) -> dict[str, CheckResult]:
    return {line.name: line for check in zones.list_checks(aws, document.value) for line in check.list_results()}


def test_a_type_that_no_zone_of_its_pool_offers_fails_with_the_zones_that_do(
    shared_account: AwsSession, read_fleet: Any
) -> None:
    lines = _collect_lines(
        shared_account,
        read_fleet("  big:\n    types: p5e.48xlarge\n    zones: [us-west-2a, us-west-2b]\n    size: 1\n"),
    )
    line = lines["p5e.48xlarge for big"]
    assert (line.status, line.message) == ("fail", "offered in us-west-2c, and not in us-west-2a and us-west-2b")
    assert line.fix == "set zones: [us-west-2c] in the pool (and in the fleet)"


def test_a_type_that_the_region_lacks_fails(shared_account: AwsSession, read_fleet: Any) -> None:
    line = _collect_lines(shared_account, read_fleet("  big:\n    types: p9.48xlarge\n    size: 1\n"))[
        "p9.48xlarge for big"
    ]
    assert (line.status, line.message) == ("fail", "us-west-2 does not offer it to this account")


def test_a_zone_that_offers_none_of_the_pools_types_fails(shared_account: AwsSession, read_fleet: Any) -> None:
    pool = "  big:\n    types: p5e.48xlarge\n    zones: [us-west-2b, us-west-2c]\n    size: 1\n"
    line = _collect_lines(shared_account, read_fleet(pool))["p5e.48xlarge for big"]
    assert line.status == "fail"
    assert line.message == ("offered in us-west-2c, not in us-west-2b, and us-west-2b offers none of the pool's types")
    assert line.fix == "set zones: [us-west-2c] in the pool"


def test_a_zone_with_another_of_the_pools_types_is_a_warning(shared_account: AwsSession, read_fleet: Any) -> None:
    pool = "  big:\n    types: [p5e.48xlarge, p5.48xlarge]\n    zones: [us-west-2b, us-west-2c]\n    size: 1\n"
    lines = _collect_lines(shared_account, read_fleet(pool))
    assert lines["p5e.48xlarge for big"].status == "warn"
    assert lines["p5.48xlarge for big"].status == "pass"


def test_zones_are_shown_with_the_ids_that_are_the_same_in_every_account(
    shared_account: AwsSession, read_fleet: Any
) -> None:
    line = _collect_lines(shared_account, read_fleet("  general:\n    types: g6e.xlarge\n    size: 1\n"))["zones"]
    assert line.status == "pass"
    assert line.message == "us-west-2a (usw2-az2), us-west-2b (usw2-az1), us-west-2c (usw2-az3)"


def test_a_zone_that_the_account_does_not_have_fails(shared_account: AwsSession, read_fleet: Any) -> None:
    head = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2f]\n"
    line = _collect_lines(shared_account, read_fleet("  general:\n    types: g6e.xlarge\n    size: 1\n", head))["zones"]
    assert line.status == "fail"
    assert line.message.startswith("this account has no us-west-2f; it has us-west-2a, us-west-2b")


@pytest.mark.parametrize(("orchestrator", "status"), [("eks", "fail"), ("ecs", "pass")])
def test_a_zone_in_which_eks_takes_no_subnet_fails_for_eks_alone(
    shared_account: AwsSession, read_fleet: Any, orchestrator: str, status: str
) -> None:
    from llm_serving.fleet.model import Fleet, Pool
    from llm_serving.settings.units import Bounds

    # The embedded AWS gives us-east-1 the zone ids that AWS itself uses; which name has use1-az3 is its choice.
    aws = AwsSession("us-east-1")
    names_by_id = {
        item["ZoneId"]: item["ZoneName"]
        for item in aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    }
    pool = Pool(types=("g6e.xlarge",), size=Bounds(0, 1))
    zone_fleet = Fleet(
        name="demo",
        region="us-east-1",
        zones=(names_by_id["use1-az3"],),
        orchestrator=orchestrator,
        pools={"general": pool},
    )
    (line,) = zones.list_checks(aws, zone_fleet)[0].list_results()
    assert line.status == status
    if status == "fail":
        assert line.message == f"{names_by_id['use1-az3']} (use1-az3) takes no subnet of an EKS cluster"


def test_the_clusters_own_nodes_need_their_type_in_the_zones(
    shared_account: AwsSession, read_fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = "  general:\n    types: g6e.xlarge\n    size: 1\n"
    line = _collect_lines(shared_account, read_fleet(pool))["m8g.xlarge for the cluster's own nodes"]
    assert line.status == "pass"
    monkeypatch.setattr(system_group, "_SYSTEM_TYPES", (("p5e.48xlarge", "arm64"), ("p5e.48xlarge", "x86_64")))
    line = _collect_lines(shared_account, read_fleet(pool))["p5e.48xlarge for the cluster's own nodes"]
    assert line.status in ("pass", "fail") and "us-west-2c" in line.message, "its zones are asked of AWS"


@pytest.mark.parametrize(
    ("region", "zone_id", "orchestrator", "reason"),
    [
        ("us-west-1", "usw1-az2", "ecs", "runs no Fargate tasks, which routers and load drivers are"),
        ("ap-northeast-1", "apne1-az3", "both", "runs no Fargate tasks, which routers and load drivers are"),
        ("us-west-1", "usw1-az1", "ecs", ""),
        ("us-west-2", "usw2-az4", "ecs", ""),
        ("us-west-1", "usw1-az2", "eks", "takes no subnet of an EKS cluster"),
    ],
)
def test_zones_without_fargate_are_known_by_their_ids(
    read_fleet: Any, region: str, zone_id: str, orchestrator: str, reason: str
) -> None:
    fleet = read_fleet("  general:\n    types: g6e.xlarge\n    size: 1\n").value
    fleet = fleet.model_copy(update={"region": region, "orchestrator": orchestrator})
    assert zones._find_missing_service(zone_id, fleet) == reason


def test_a_zone_without_an_interface_endpoint_is_named(
    shared_account: AwsSession, read_fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = read_fleet("  general:\n    types: g6e.xlarge\n    size: 1\n")
    assert _collect_lines(shared_account, document)["endpoints"].status == "pass"
    client = shared_account.client("ec2")
    original = client.describe_vpc_endpoint_services

    def answer(**request: Any) -> Any:
        response = original(**request)
        response["ServiceDetails"][0]["AvailabilityZones"].remove("us-west-2b")
        return response

    monkeypatch.setattr(client, "describe_vpc_endpoint_services", answer)
    line = _collect_lines(shared_account, document)["endpoints"]
    assert (line.status, line.message) == ("fail", "AWS has no interface endpoint of autoscaling in us-west-2b")
