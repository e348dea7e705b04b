"""GuideLLM (0.8.1: guidellm/schemas/base/request_stats.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_serving.settings.errors import CheckFailed
from llm_serving.validation.drivers.base import Job, build_failure
from llm_serving.validation.load.answer import Gap, Sample


def build_command(job: Job, executables: Path) -> list[str]:
    rows = job.write_rows(
        "prompts.jsonl", [{"prompt": prompt.text, "output_tokens_count": prompt.max_tokens} for prompt in job.prompts]
    )
    traffic = job.plan.traffic
    if traffic.users:
        profile = {"kind": "concurrent", "streams": traffic.users, "rampup_duration": job.ramp_s}
    else:
        profile = {"kind": traffic.process, "rate": traffic.arrivals}
        if traffic.max_concurrency:
            profile["max_concurrency"] = traffic.max_concurrency
    backend = {
        "kind": "openai_http", "target": job.plan.url, "model": job.plan.models[0], "request_format": job.plan.path,
        "timeout": traffic.deadline,
    }  # fmt: skip
    return [
        str(executables / "guidellm"), "run", "--backend", json.dumps(backend), "--profile", json.dumps(profile),
        "--constraint", json.dumps({"kind": "max_requests", "count": len(job.prompts)}),
        "--constraint", json.dumps({"kind": "max_duration", "seconds": traffic.time_limit}),
        "--data", json.dumps({"kind": "json_file", "path": str(rows)}),
        "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": str(job.tokenizer)}),
        "--seed", json.dumps({"kind": "static", "value": traffic.seed}),
        "--output", json.dumps({"kind": "json", "path": str(job.result)}), "--disable-console",
    ]  # fmt: skip


_CLOCK_S = 1e9
"""A time of the clock, in seconds, is above this (2001-09-09)."""


def read_samples(job: Job) -> list[Sample]:
    requests = json.loads(job.result.read_text(encoding="utf-8"))["benchmarks"][0]["requests"]
    _require_schedule(row["info"]["timings"] for rows in requests.values() for row in rows or ())
    answered = [_read_answered(job, row) for row in requests["successful"] or ()]
    failed = [
        build_failure(0, _read_start(row["info"]), str(row["info"].get("error") or "cut off by the end of the load"))
        for row in [*(requests["errored"] or ()), *(requests["incomplete"] or ())]
        if row["info"]["timings"]["request_start"] is not None
    ]
    samples = sorted([*answered, *failed], key=lambda sample: sample.start_s)
    for number, sample in enumerate(samples):
        sample.number = number
    return samples


def _require_schedule(timings: Iterable[dict[str, Any]]) -> None:
    """Refuse a run whose times to send at count from 0 instead of from its start, as seen of 0.8.1 on 2026-11-23.

    All of them are past by then, so that every request was sent at once: another load than the blueprint's.
    """
    if any((row["targeted_start"] or _CLOCK_S) < _CLOCK_S for row in timings):
        raise CheckFailed(
            "GuideLLM sent all requests at once: its schedule had no start. Fix: run it again, or --driver aiperf."
        )


def _read_start(process: dict[str, Any]) -> float:
    """When a request was due by GuideLLM's schedule, or sent where it has none."""
    timings = process["timings"]
    start: float = timings["request_start"]
    return min(timings["targeted_start"] or start, start)


def _read_answered(job: Job, row: dict[str, Any]) -> Sample:
    due, sent = _read_start(row["info"]), row["request_start_time"]
    late_ms = (sent - due) * 1000
    first, gap, tokens = row["time_to_first_token_ms"], row["inter_token_latency_ms"], row["output_tokens"]
    sample = Sample(
        number=0,
        start_s=due,
        ttft_ms=None if first is None else first + late_ms,
        e2e_ms=(row["request_end_time"] - due) * 1000,
        # The mean of the answer, once for each token after its first.
        gaps=[Gap(gap, tokens - 1)] if gap is not None and tokens and tokens > 1 else [],
        input_tokens=row["prompt_tokens"],
        output_tokens=tokens,
        text=row["output"] or "",
    )
    return job.add_delay(sample, sent - due)
