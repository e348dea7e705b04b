from __future__ import annotations

import datetime
from typing import Any
from unittest import mock

from llm_serving.aws.preflight import price
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.catalog import instances
from llm_serving.catalog.instances import Price, Source
from llm_serving.fleet import checks

HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\n"
POOL = "  general:\n    types: g6e.xlarge\n    size: 1..4\n"
PRICE_SOURCE = Source(name="AWS Price List", date="2026-11-01")


def _collect_lines(document: Any, today: str = "2026-11-21", **prices: float) -> list[CheckResult]:
    catalog = dict(instances.load())
    row = catalog["g6e.xlarge"]
    region_prices = {
        region: Price(usd_h=usd, source=PRICE_SOURCE) for region, usd in (prices or {"us-west-2": 2.0}).items()
    }
    if "unknown" in prices:
        region_prices = {}
    catalog["g6e.xlarge"] = row.model_copy(update={"prices": region_prices, "unpriced": {}})
    with mock.patch.object(instances, "load", return_value=catalog):
        limit = [mistake for mistake in checks.find_mistakes(document) if mistake.field == "spend_limit"]
        return price.check_price(document.value, limit, datetime.date.fromisoformat(today))


def test_the_cost_range_is_shown_with_the_prices_date(read_fleet: Any) -> None:
    (line,) = _collect_lines(read_fleet(POOL, HEAD))
    assert (line.status, line.message) == ("pass", "2.66 to 8.69 USD/h on demand (AWS Price List, 2026-11-01)")


def test_more_than_the_spend_limit_fails(read_fleet: Any) -> None:
    span, limit = _collect_lines(read_fleet(POOL, f"{HEAD}spend_limit: 5 USD/h\n"))
    assert span.status == "pass"
    assert (limit.name, limit.status) == ("spend limit", "fail")
    parts = "general 8.00, root volumes 0.07, without instances 0.62"
    assert limit.message == f"at full size the fleet costs 8.69 USD/h on demand ({parts})"
    assert limit.fix == "set a limit of 8.69 USD/h or more, or use smaller pools"


def test_the_volumes_of_warm_instances_cost_while_these_are_stopped(read_fleet: Any) -> None:
    warm = f"{HEAD}orchestrator: ecs\n"
    (line,) = _collect_lines(read_fleet(f"{POOL}    warm: 2\n", warm))
    # Three and six volumes of 140 USD a month beside one and four instances of 2 USD an hour.
    assert line.message == "2.72 to 9.29 USD/h on demand (AWS Price List, 2026-11-01)"


def test_within_the_spend_limit_says_so(read_fleet: Any) -> None:
    (line,) = _collect_lines(read_fleet(POOL, f"{HEAD}spend_limit: 10 USD/h\n"))
    assert (line.status, line.message.endswith(", within the limit of 10")) == ("pass", True)


def test_old_prices_are_doubted_with_the_command_that_reads_them_anew(read_fleet: Any) -> None:
    (line,) = _collect_lines(read_fleet(POOL, HEAD), today="2027-03-01")
    assert line.status == "warn"
    assert line.message.endswith("older than 90 days")
    assert " ".join(line.command) == "blueprint catalog refresh --region us-west-2"


def test_a_price_that_nobody_knows_is_a_warning_and_no_sum(read_fleet: Any) -> None:
    (line,) = _collect_lines(read_fleet(POOL, HEAD), unknown=1.0)
    assert line.status == "warn"
    assert line.message == "0.66 to at least 0.69 USD/h on demand; unknown for g6e.xlarge"


def test_a_capacity_block_is_paid_already(read_fleet: Any) -> None:
    block = "  big:\n    types: p5.48xlarge\n    buy: {capacity-block: cr-0123456789abcdef0}\n    size: 1\n"
    (line,) = _collect_lines(read_fleet(block, HEAD))
    assert line.message == "0.66 to 0.66 USD/h on demand; big is paid already"
