from __future__ import annotations

import pytest

from llm_serving.validation.reports import terminal_summary
from llm_serving.validation.reports.report import PromptOverlap, Report
from llm_serving.validation.statistics.engine_metrics import KvTransfers


@pytest.mark.parametrize(
    ("prompts", "cached", "lines"),
    [
        (0.71, 0.54, ["71% of prompt text shared; 54% of prompt tokens found in engine caches"]),
        (0.71, 0.0, ["71% of prompt text shared; 0% of prompt tokens found in engine caches"]),
        (0.71, None, []),
        (0.0, 0.1, []),
        (None, None, []),
    ],
)
def test_a_result_shows_shared_prompt_text_and_cached_tokens(
    prompts: float | None, cached: float | None, lines: list[str]
) -> None:
    report = Report.model_construct(shared=PromptOverlap(prompts=prompts, of=300, cached=cached, traffic=""))
    assert list(terminal_summary._list_cache_lines(report)) == lines


TRANSFERS = KvTransfers(
    count=150, failed=0, bytes=150_000_000, mean_ms=12.0, share_of_ttft=0.06, prefill_ms=90.0, decode_ms=70.0, router_ms=40.0
)  # fmt: skip


@pytest.mark.parametrize(
    ("transfers", "lines"),
    [
        (None, []),
        (
            TRANSFERS,
            [
                "150 KV transfers: 1 MB in 12 ms each, 6% of the time to first token",
                "First token: prefill 90 ms + decode 70 ms + router 40 ms",
            ],
        ),
        (
            TRANSFERS.model_copy(update={"failed": 3, "share_of_ttft": None, "router_ms": None}),
            ["150 KV transfers, 3 failed: 1 MB in 12 ms each"],
        ),
        (
            TRANSFERS.model_copy(update={"count": 0, "failed": 3, "mean_ms": None}),
            ["No KV cache was handed over, 3 failed"],
        ),
    ],
)
def test_a_result_shows_the_hand_over_and_what_a_first_token_waits_for(
    transfers: KvTransfers | None, lines: list[str]
) -> None:
    report = Report.model_construct(kv_transfers=transfers)
    assert list(terminal_summary._list_transfer_lines(report)) == lines
