"""How teams share the endpoint: jobs of all of them at once, and an urgent one among these."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.kinds.batch.client import FINAL_STATES, BatchClient
from llm_serving.kinds.batch.validation.report import FairShare, ShareMoment, TeamShare, UrgentJob
from llm_serving.settings.errors import Unavailable
from llm_serving.validation.statistics import time_series

_POLL_S = 0.25

URGENT = "urgent job"

URGENT_AFTER = 1 / 3
"""Share of the rows that are done when the urgent job is submitted."""

EDGE = 0.2
"""Share of a team's rows at its beginning and at its end that is left out: the first come while rows of teams that
began earlier are still in flight, the last when some worker has no more of that team's to send."""

_INTERVALS = 24
"""Most intervals of the picture."""


def measure(
    client: BatchClient, weights: Mapping[str, int], files: Mapping[str, Path], urgent_file: Path, limit_s: float
) -> FairShare:
    """Run a job of each team's file, and the urgent one for the team of the least weight.

    Raises:
        Unavailable: the jobs did not end within `limit_s`.
    """
    urgent_team = min(weights, key=lambda team: weights[team])
    with console.step("Run jobs of all teams at once") as step:
        file_ids = {team: client.upload(file) for team, file in files.items()}
        urgent_file_id = client.upload(urgent_file)
        start = time.monotonic()
        ids = {team: _submit(client, file_id, team, "normal", limit_s) for team, file_id in file_ids.items()}
        urgent_id, submitted_s, first_row_s = "", 0.0, None
        moments: list[ShareMoment] = []
        while True:
            jobs = {team: client.read(job_id) for team, job_id in ids.items()}
            urgent = client.read(urgent_id) if urgent_id else None
            seconds = time.monotonic() - start
            moments.append(_build_moment(seconds, jobs, urgent))
            if urgent and first_row_s is None and urgent["request_counts"]["completed"]:
                first_row_s = seconds - submitted_s
            done, total = (sum(job["request_counts"][key] for job in jobs.values()) for key in ("completed", "total"))
            step.note = f"{done} of {total} rows"
            if urgent and all(job["status"] in FINAL_STATES for job in (*jobs.values(), urgent)):
                break
            if seconds > limit_s:
                raise Unavailable(
                    f"the jobs of all teams: {step.note} after {limit_s:.0f} s. Fix: look at blueprint logs."
                )
            if not urgent_id and total and done >= URGENT_AFTER * total:
                submitted_s = time.monotonic() - start
                urgent_id = _submit(client, urgent_file_id, urgent_team, "high", limit_s)
            time.sleep(_POLL_S)
    if first_row_s is None:
        status = urgent["status"]
        raise Unavailable(f"{urgent_id}: the urgent job ended as {status} without a row. Fix: look at blueprint logs.")
    rows = {team: int(job["request_counts"]["completed"]) for team, job in jobs.items()}
    return FairShare(
        teams=tuple(compute_shares(weights, rows, moments)),
        urgent=UrgentJob(
            team=urgent_team,
            rows=urgent["request_counts"]["completed"],
            submitted_s=round(submitted_s, 2),
            first_row_s=round(first_row_s, 2),
        ),
        moments=tuple(moments),
    )


def _submit(client: BatchClient, file_id: str, team: str, priority: str, limit_s: float) -> str:
    metadata = {"team": team, "priority": priority, "deadline": f"{limit_s:g}"}
    return str(client.create(file_id=file_id, metadata=metadata)["id"])


def _build_moment(
    seconds: float, jobs: Mapping[str, Mapping[str, Any]], urgent: Mapping[str, Any] | None
) -> ShareMoment:
    return ShareMoment(
        seconds=round(seconds, 2),
        output_tokens={team: job["tokens"]["output"] for team, job in jobs.items()},
        urgent_tokens=urgent["tokens"]["output"] if urgent else 0,
    )


def compute_shares(
    weights: Mapping[str, int], rows: Mapping[str, int], moments: Sequence[ShareMoment]
) -> Iterator[TeamShare]:
    """Compute each team's share of the output tokens while all teams had rows to send."""
    shared = select_shared(moments)
    got = {team: shared[-1].output_tokens[team] - shared[0].output_tokens[team] if shared else 0 for team in weights}
    total = sum(got.values()) or 1
    for team, weight in weights.items():
        expected = weight / sum(weights.values())
        yield TeamShare(
            team=team, expected=round(expected, 4), measured=round(got[team] / total, 4), rows=rows.get(team, 0)
        )


def select_shared(moments: Sequence[ShareMoment]) -> list[ShareMoment]:
    """Select the moments at which all teams had rows to send."""
    final = moments[-1].output_tokens if moments else {}
    return [
        moment
        for moment in moments
        if all(EDGE <= tokens / (final[team] or 1) <= 1 - EDGE for team, tokens in moment.output_tokens.items())
    ]


def compute_bands(fair_share: FairShare) -> tuple[float, dict[str, list[float]]]:
    """Compute the percentage of the output tokens in equal intervals, by team and of the urgent job.

    Returns:
        The intervals' width in seconds, and the percentages; all 0 in an interval without tokens.
    """
    moments = fair_share.moments
    end_s = moments[-1].seconds if moments else 0.0
    width_s = time_series.choose_width(end_s, _INTERVALS)
    borders = [min(end_s, index * width_s) for index in range(math.ceil(end_s / width_s) + 1)]
    tokens = {
        share.team: [(moment.seconds, moment.output_tokens[share.team]) for moment in moments]
        for share in fair_share.teams
    }
    tokens[URGENT] = [(moment.seconds, moment.urgent_tokens) for moment in moments]
    added = {
        name: [after - before for before, after in itertools.pairwise(_read_at(border, points) for border in borders)]
        for name, points in tokens.items()
    }
    totals = [sum(values) or 1 for values in zip(*added.values(), strict=True)]
    return width_s, {
        name: [100 * value / total for value, total in zip(values, totals, strict=True)]
        for name, values in added.items()
    }


def _read_at(seconds: float, points: Sequence[tuple[float, float]]) -> float:
    """Interpolate the value at a time between the two points around it; 0 before the first."""
    if not points or seconds < points[0][0]:
        return 0.0
    for (start, low), (end, high) in itertools.pairwise(points):
        if start <= seconds < end:
            return low + (high - low) * (seconds - start) / (end - start)
    return points[-1][1]
