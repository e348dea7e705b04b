"""The page with the cost of a large batch has what its command computes from the catalog."""

from __future__ import annotations

import pytest

from llm_serving import paths
from llm_serving.catalog import instances
from scripts import batch_cost

ROWS, INPUT_TOKENS, OUTPUT_TOKENS = 100_000_000, 2000, 200


def test_the_page_has_the_table_that_the_command_prints() -> None:
    page = (paths.PATTERNS / "offline-batch" / "README.md").read_text(encoding="utf-8")
    table = "\n".join(batch_cost.build_table(batch_cost.MODEL, ROWS, INPUT_TOKENS, OUTPUT_TOKENS))
    assert table in page, "python -m scripts.batch_cost"


def test_cost_follows_from_rate_and_price() -> None:
    fleet, pool = batch_cost.POOLS[1]
    cost = batch_cost.estimate(fleet, pool, batch_cost.MODEL, ROWS, INPUT_TOKENS, OUTPUT_TOKENS)
    assert cost.hours == pytest.approx(ROWS / cost.requests_per_s / 3600)
    assert cost.usd_h == instances.find("p5.48xlarge").prices["us-east-1"].usd_h
    half = batch_cost.estimate(fleet, pool, batch_cost.MODEL, ROWS // 2, INPUT_TOKENS, OUTPUT_TOKENS)
    assert half.hours == pytest.approx(cost.hours / 2)
