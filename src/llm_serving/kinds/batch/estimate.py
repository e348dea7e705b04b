"""Estimates time and cost of a job from its counted tokens. Pure functions.

A rate is the time that some tokens took: in a finished job, or by arithmetic. Input and output tokens each take time,
and one rate does not say how much each took. If a job has i times its input and o times its
output tokens, it takes between min(i, o) and max(i, o) times its seconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from llm_serving.kinds.batch.client import FINAL_STATES
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.worker_settings import PRIORITIES
from llm_serving.kinds.serving import predicted_load
from llm_serving.kinds.serving.deployment import ServingDeployment

MIN_MEASURED_S = 2.0
"""Minimum seconds of a job for a useful rate."""

MAX_JOBS = 50
"""Number of finished jobs to consider, the newest first."""

_HOUR_S = 3600


@dataclass(frozen=True)
class Rate:
    """The endpoint's time for some tokens."""

    source: Literal["measured", "planned"]
    basis: str
    input_tokens: float
    output_tokens: float
    seconds: float


def find_rate(
    jobs: Iterable[Mapping[str, Any]], serving: ServingDeployment | None, lengths: tuple[float, float]
) -> Rate | None:
    """Find the rate of the finished job with the most similar rows; else the accelerators' by arithmetic; else None.

    Args:
        lengths: mean input and output tokens of the rows.
    """
    measured = [rate for rate in (_read_rate(job) for job in list(jobs)[:MAX_JOBS]) if rate]
    if measured:
        return min(measured, key=lambda rate: _compute_distance(rate, lengths))
    requests_per_s = predicted_load.predict_most_per_s(serving, *lengths) if serving else None
    if not requests_per_s:
        return None
    basis = "the fastest that is predicted of the accelerators; what runs is slower"
    return Rate("planned", basis, *lengths, 1 / requests_per_s)


def _read_rate(job: Mapping[str, Any]) -> Rate | None:
    tokens, seconds = job["tokens"], float(job.get("endpoint_s") or 0.0)
    if job["status"] not in FINAL_STATES or seconds < MIN_MEASURED_S or not tokens["input"]:
        return None
    date = datetime.datetime.fromtimestamp(job["created_at"], datetime.UTC).strftime("%Y-%m-%d")
    return Rate("measured", f"{job['id']}, {date}", tokens["input"], tokens["output"], seconds)


def _compute_distance(rate: Rate, lengths: tuple[float, float]) -> float:
    return abs(rate.output_tokens / (rate.input_tokens + rate.output_tokens) - lengths[1] / max(1.0, sum(lengths)))


def estimate_seconds(rate: Rate, input_tokens: float, output_tokens: float) -> tuple[float, float | None]:
    """Estimate minimum and maximum seconds; by arithmetic no maximum, since no engine reaches that rate."""
    ratios = [
        tokens / per_s
        for tokens, per_s in ((input_tokens, rate.input_tokens), (output_tokens, rate.output_tokens))
        if per_s
    ]
    least, most = min(ratios) * rate.seconds, max(ratios) * rate.seconds
    return (most, None) if rate.source == "planned" else (least, most)


def build(
    deployment: BatchDeployment,
    counts: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    *,
    team: str,
    priority: str,
    deadline_s: float,
) -> dict[str, Any]:
    """Build the output of `submit --dry-run`.

    Args:
        counts: from the Batch API.
        jobs: all, the newest first.
    """
    rows = counts["rows"]["value"]
    good_rows = max(1, rows - counts["bad_rows"]["value"])
    output = _complete_output(counts, jobs, good_rows)
    payload: dict[str, Any] = {
        "team": team,
        "priority": priority,
        **{name: counts[name] for name in ("rows", "bad_rows", "input_tokens", "is_whole", "bytes_read")},
        "output_tokens": output,
        "rate": None,
        "seconds": None,
        "waiting_s": None,
        "usd": None,
        "deadline_s": deadline_s,
        "deadline_holds": None,
    }
    if counts["input_tokens"] is None or output is None:
        return payload
    counted = counts["input_tokens"], output
    mean_input, mean_output = (number["value"] / good_rows for number in counted)
    rate = find_rate(jobs, deployment.serving, (mean_input, mean_output))
    if rate is None:
        return payload
    # A sampled file may have as many tokens more or fewer as the error of the count says.
    least, _ = estimate_seconds(rate, *(max(0, number["value"] - number["error"]) for number in counted))
    _, most = estimate_seconds(rate, *(number["value"] + number["error"] for number in counted))
    waiting_s = _sum_waiting(jobs, priority, (most or least) / good_rows)
    return {
        **payload,
        "rate": asdict(rate),
        "seconds": {"least": round(least, 1), "most": most and round(most, 1)},
        "waiting_s": round(waiting_s, 1),
        "usd": _price(deployment.usd_h, least, most),
        "deadline_holds": _judge(least, most, waiting_s, deadline_s),
    }


def _complete_output(
    counts: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], good_rows: int
) -> dict[str, Any] | None:
    """Estimate the output tokens: at most the rows' `max_tokens`; rows without it count as the mean earlier answer."""
    bound, open_rows = counts["output_tokens"], counts["open_rows"]["value"]
    if not open_rows:
        return {**bound, "by": "max_tokens of the rows"}
    # A job that completed no row has tokens of rows that failed after some of their pieces were answered.
    answered = [job for job in jobs if job["status"] in FINAL_STATES and job["request_counts"]["completed"]][:MAX_JOBS]
    if not answered:
        return None
    mean = sum(job["tokens"]["output"] for job in answered) / sum(
        job["request_counts"]["completed"] for job in answered
    )
    by = f"max_tokens, and {mean:.0f} for each of {min(open_rows, good_rows)} rows without, the mean of earlier answers"
    return {"value": round(bound["value"] + mean * open_rows), "error": bound["error"], "by": by}


def _sum_waiting(jobs: Iterable[Mapping[str, Any]], priority: str, row_s: float) -> float:
    """Sum the seconds of unfinished rows of other jobs with the same or a higher priority, which run first."""
    seconds = 0.0
    for job in jobs:
        if job["status"] in FINAL_STATES or PRIORITIES.index(job["priority"]) > PRIORITIES.index(priority):
            continue
        counts = job["request_counts"]
        done = counts["completed"] + counts["failed"]
        own_row_s = job["endpoint_s"] / counts["completed"] if counts["completed"] and job["endpoint_s"] else row_s
        seconds += max(0, counts["total"] - done) * own_row_s
    return seconds


def _price(usd_h: float | None, least: float, most: float | None) -> dict[str, float | None] | None:
    if usd_h is None:
        return None
    return {
        "least": round(usd_h * least / _HOUR_S, 2),
        "most": None if most is None else round(usd_h * most / _HOUR_S, 2),
    }


def _judge(least: float, most: float | None, waiting_s: float, deadline_s: float) -> bool | None:
    if least > deadline_s:
        return False
    if most is not None and waiting_s + most <= deadline_s:
        return True
    return None
