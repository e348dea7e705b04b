from __future__ import annotations

import io

import pytest
from rich.console import Console

from llm_serving.validation.reports import terminal_summary
from llm_serving.validation.reports.report import (
    Goodput,
    ModelLoad,
    PromptOverlap,
    Report,
    Requests,
    ShownAnswer,
    Throughput,
    describe_error,
)
from llm_serving.validation.statistics.engine_metrics import KvTransfers
from llm_serving.validation.statistics.sample_statistics import Latency


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
    report = Report.model_construct(
        shared=PromptOverlap(prompts=prompts, of=300, cached=cached, traffic=""),
        settings={"slo": {}},
        goodput=Goodput(share=None, requests_per_s=0),
        expected=None,
        longest_stall_s=0.0,
        cost=None,
    )
    assert list(terminal_summary._list_lines(report)) == lines


def test_a_result_says_why_requests_failed() -> None:
    common = {"prompt": "", "actual": "", "expected": None, "same": None, "score": None}
    answers = [
        ShownAnswer(**common, error=None, detail=""),
        ShownAnswer(**common, error="http_400", detail="HTTP 400: too\nlong"),
    ]
    requests = Requests(total=5, failed=3, by_error={"http_400": 2, "connect": 1}, planned=5)
    lines = list(terminal_summary._list_failures(Report.model_construct(answers=answers, requests=requests)))
    assert lines == ["  2 http_400: HTTP 400: too long", f"  1 connect: {describe_error('connect')}"]


def _build_load(model: str) -> ModelLoad:
    metrics = {"ttft_ms": Latency(count=0), "e2e_ms": Latency(count=9, p50=300.0, p95=1234.5)}
    throughput = Throughput(requests_per_s=1, output_tokens_per_s=42.0)
    return ModelLoad(model=model, requests=1200, failed=3, metrics=metrics, throughput=throughput)


def test_a_result_shows_a_row_for_each_model_where_the_load_asked_several() -> None:
    def render(*models: str) -> list[str]:
        of_all, loads = _build_load(""), [_build_load(model) for model in models]
        report = Report.model_construct(by_model=loads, metrics=of_all.metrics, throughput=of_all.throughput)
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(*terminal_summary._list_model_tables(report))
        return console.export_text().splitlines()

    heads, units, *rows = render("org/chat", "code[b]")
    assert heads.split() == ["TTFT", "TTFT", "End-to-end", "Output"]
    assert units.split() == ["Model", "Requests", "Failed", "p50", "ms", "p95", "ms", "p95", "ms", "tokens/s"]
    values = ["1,200", "3", "–", "–", "1,234", "42"]
    assert [row.split() for row in rows] == [["org/chat", *values], ["code[b]", *values]]
    name = "acme/a-name-of-more-than-its-column"
    assert name in "".join(line.split(" ")[0] for line in render("a", name)), "no name is cut"
    assert render() == [""]


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
