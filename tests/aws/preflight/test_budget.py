"""Cost allocation tags are not in the embedded AWS: Cost Explorer's answers are recorded here."""

from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws.preflight import price
from llm_serving.settings.errors import InputError

POOL = "  general:\n    types: g6e.xlarge\n    size: 1\n"
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\nbudget_to: platform@example.com\n"


@pytest.mark.parametrize(
    ("tags", "status"), [([{"TagKey": "fleet", "Type": "UserDefined", "Status": "Active"}], "pass"), ([], "warn")]
)
def test_a_budget_counts_only_by_a_tag_that_the_payer_activated(
    stubbed_aws: Any, read_fleet: Any, tags: list[dict[str, str]], status: str
) -> None:
    fleet = read_fleet(POOL, head=f"{HEAD}spend_limit: 10 USD/h\n").value
    stubbed_aws.stub("ce").add_response(
        "list_cost_allocation_tags", {"CostAllocationTags": tags}, {"TagKeys": ["fleet"], "Status": "Active"}
    )
    (check,) = price.list_budget_checks(stubbed_aws, fleet)
    (line,) = check.list_results()
    assert line.status == status
    assert bool(line.command) == (status == "warn")


def test_a_fleet_without_a_budget_asks_for_no_tag(stubbed_aws: Any, read_fleet: Any) -> None:
    assert price.list_budget_checks(stubbed_aws, read_fleet(POOL).value) == []


def test_a_budget_without_a_spend_limit_is_refused(read_fleet: Any) -> None:
    with pytest.raises(InputError, match=r"budget_to: .*a budget is the spend limit's month, and there is none"):
        read_fleet(POOL, head=HEAD)
