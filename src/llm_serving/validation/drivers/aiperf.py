"""AIPerf (0.13.0: aiperf/dataset/loader/models.py, `MooncakeTrace`, and its profile_export.jsonl).

Each request is a payload of ours, sent as it is at the time that we drew.
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from llm_serving.validation.drivers.base import Job, build_failure, build_sample
from llm_serving.validation.load.answer import Sample


def build_command(job: Job, executables: Path) -> list[str]:
    traffic = job.plan.traffic
    times = [{}] * len(job.prompts) if job.due is None else [{"timestamp": time * 1000} for time in job.due]
    rows = [
        {
            **time,
            "session_id": str(number),
            "payload": prompt.build_body(job.plan.models[0], traffic.api, engine_dialect=job.engine_dialect),
        }
        for number, (prompt, time) in enumerate(zip(job.prompts, times, strict=True))
    ]
    file = job.write_rows("requests.jsonl", rows)
    loop = (
        ["--fixed-schedule"]
        if job.due is not None
        else ["--no-fixed-schedule", "--concurrency", str(traffic.users), "--request-count", str(len(job.prompts))]
    )
    ramp = ["--concurrency-ramp-duration", f"{job.ramp_s:.3f}"] if job.ramp_s else []
    return [
        str(executables / "aiperf"), "profile", "--model", job.plan.models[0], "--url", job.plan.url,
        "--endpoint-type", "chat" if traffic.api == "chat" else "completions", "--streaming",
        "--input-file", str(file), "--custom-dataset-type", "mooncake_trace", *loop, *ramp,
        "--tokenizer", str(job.tokenizer), "--use-server-token-count", "--random-seed", str(traffic.seed),
        "--request-timeout-seconds", f"{traffic.deadline:g}", "--ui", "none", "--export-level", "records",
        # The report reads the engines' pages itself; a collector that misses a heartbeat ends AIPerf with an error.
        "--no-server-metrics",
        "--artifact-dir", str(job.folder), "--profile-export-prefix", job.result.stem,
    ]  # fmt: skip


def read_samples(job: Job) -> list[Sample]:
    with job.result.with_suffix(".jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if row["metadata"]["benchmark_phase"] == "profiling"]
    numbers = [int(row["metadata"]["conversation_id"].rpartition("_")[2]) for row in rows]
    issued = [row["metadata"]["credit_issued_ns"] / 1e9 for row in rows]
    starts = [row["metadata"]["request_start_ns"] / 1e9 for row in rows]
    if job.due is None:
        return [_read_row(row, number, start, 0.0) for row, number, start in zip(rows, numbers, starts, strict=True)]
    # The schedule's zero: no request is issued before it is due.
    zero = min(time - job.due[number] for time, number in zip(issued, numbers, strict=True))
    return [
        _read_row(row, number, zero + job.due[number], start - zero - job.due[number])
        for row, number, start in zip(rows, numbers, starts, strict=True)
    ]


def _read_row(row: dict[str, Any], number: int, due: float, late_s: float) -> Sample:
    if row.get("error"):
        error = row["error"]
        status = error.get("code")
        return build_failure(number, due, str(error.get("message")), status if status and status >= 400 else None)
    metrics = {name: metric["value"] for name, metric in row["metrics"].items()}
    gaps = metrics.get("inter_chunk_latency") or []
    times = accumulate([late_s + metrics["time_to_first_token"] / 1000, *(gap / 1000 for gap in gaps)])
    sample = build_sample(
        number,
        due,
        times=list(times),
        end=late_s + metrics["request_latency"] / 1000,
        input_tokens=metrics.get("usage_prompt_tokens") or metrics.get("input_sequence_length"),
        output_tokens=metrics.get("usage_completion_tokens") or metrics.get("output_sequence_length"),
    )
    sample.late_ms = late_s * 1000
    return sample
