"""The benchmark of the hand-over reads the parts of a first token from reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.settings.errors import CheckFailed
from llm_serving.validation.engine_metrics import Agreement, KvTransfers
from scripts.benchmarks import hand_over

TRANSFERS = KvTransfers(
    count=8, failed=0, bytes=8, mean_ms=4.0, share_of_ttft=0.02, prefill_ms=100.0, decode_ms=60.0, router_ms=40.0
)


def build_report(transfers: KvTransfers | None, engine_ms: float | None = None) -> Any:
    row = Agreement(metric="ttft_ms", statistic="mean", client_ms=200.0, engine_ms=engine_ms, agrees=True)
    return SimpleNamespace(metrics={"ttft_ms": SimpleNamespace(mean=200.0)}, kv_transfers=transfers, agreement=[row])


def test_the_parts_of_a_pairs_first_token_add_up_to_it() -> None:
    parts = hand_over.read_parts(build_report(TRANSFERS))
    assert parts == (200.0, 100.0, 4.0, 56.0, 40.0)
    assert sum(parts[1:]) == parts.total


def test_a_baseline_has_the_engine_and_the_router() -> None:
    assert hand_over.read_parts(build_report(None, engine_ms=150.0)) == (200.0, 150.0, 0.0, 0.0, 50.0)


@pytest.mark.parametrize("report", [build_report(None), build_report(TRANSFERS.model_copy(update={"mean_ms": None}))])
def test_a_report_without_them_is_refused(report: Any) -> None:
    with pytest.raises(CheckFailed, match="the report has no"):
        hand_over.read_parts(report)
