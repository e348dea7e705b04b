"""`blueprint validate` of a batch deployment: runs its sample job, and counts every row.

The job has rows that can run and rows that cannot. Each must be in the results exactly once, the first with an answer,
the second in the errors file. With `slo.endpoint_use`, the same rows go to the endpoint at several fixed concurrencies
afterwards, in the same run: the job is compared with the best of them. With several teams, jobs of all teams run at
once after that (shares.py).
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType

from llm_serving import console
from llm_serving.kinds.batch.client import FINAL_STATES, BatchClient
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.validation import page as batch_page
from llm_serving.kinds.batch.validation import sample as batch_sample
from llm_serving.kinds.batch.validation import shares as batch_shares
from llm_serving.kinds.batch.validation.report import BatchReport, FairShare, Moment, Reference, RowCounts, TeamUse
from llm_serving.kinds.batch.validation.sample import SampleRows
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError, Unavailable, quote_value
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.base import require_slo as require_slo
from llm_serving.validation.reports import run_folder
from llm_serving.validation.reports.kind_report import render_end
from llm_serving.validation.statistics.gate import MissedObjective

CONCURRENCIES = (8, 32, 128)
"""Fixed numbers of requests in flight that the job is measured against."""

_REFERENCE_S = 15.0
"""How long each sends requests; its rate is over the time to the last answer."""

SHARED_S = 60.0
"""How long the jobs of all teams take together, at the sample's rate."""

_POLL_S = 0.5
_GRACE_S = 120.0
"""How long after its deadline the job may end before the validation gives up."""


def validate(deployment: BatchDeployment, options: ValidationOptions) -> tuple[BatchReport, Path]:
    """Run the sample job; return the report and its folder, RUNS/NAME/TIME.

    The sample is generated, and the workers send its rows: the options' folder and load source have no effect.

    Raises:
        InputError: an option is for load tests only.
        Unavailable: the Batch API does not answer, the job did not end, another validation is running, or the report
            cannot be written.
    """
    _check_options(deployment, {"--user": options.user_file, "--driver": options.driver})
    runs = options.runs / deployment.name
    run_folder.require_writable(runs)
    with run_folder.lock_work(options.logs, deployment.name) as work:
        client = BatchClient((options.url or deployment.url).removesuffix("/v1"))
        measured = _measure(deployment, client, work, options.requests or deployment.sample.rows)
        report = build_report(deployment, measured)
        return report, run_folder.publish(report, batch_page.render(report), work, runs)


class Measurement(NamedTuple):
    """Measurements of a validation."""

    started: datetime.datetime
    job: Mapping[str, Any]
    """The sample job at its end."""

    rows: Sequence[tuple[str | None, bytes]]
    """Id and line of each row of the job; None for each that cannot run."""

    output: Sequence[Any]
    """Lines of the results file."""

    errors: Sequence[Any]
    """Lines of the errors file."""

    moments: Sequence[Moment]
    seconds: float
    """From the upload to the end of the job."""

    references: Sequence[Reference]
    """Rates of the endpoint only; none without `slo.endpoint_use`."""

    fair_share: FairShare | None
    teams: Sequence[Mapping[str, Any]]


def _measure(deployment: BatchDeployment, client: BatchClient, work: Path, row_count: int) -> Measurement:
    started = datetime.datetime.now(datetime.UTC)
    sample = SampleRows.measure(deployment)
    rows = sample.build(row_count, secrets.token_hex(4))
    (work / "input.jsonl").write_bytes(b"".join(line for _, line in rows))
    job, moments, seconds = run_job(deployment, client, work)
    output, errors = _download(client, job, work)
    references = _measure_references(deployment, rows) if deployment.slo.endpoint_use else ()
    fair_share = None
    if len(deployment.teams) > 1:
        fair_share = _measure_shares(deployment, sample, client, work, job, moments)
    teams = client.list_teams()
    return Measurement(started, job, rows, output, errors, moments, seconds, references, fair_share, teams)


def _check_options(deployment: BatchDeployment, load_test_options: Mapping[str, object]) -> None:
    for option, value in load_test_options.items():
        if value is not None:
            raise InputError(f"{option}: {quote_value(value)}: a batch has no load driver. Fix: leave it out.")
    if deployment.slo.endpoint_use and deployment.stack:
        title = deployment.environment.conventions.title
        raise InputError(
            f"slo.endpoint_use: {deployment.slo.endpoint_use:g}: this machine does not reach the endpoint on "
            f"{title} to measure its best. Fix: leave it out."
        )


def render(report: BatchReport, folder: Path) -> RenderableType:
    """Render the report that was saved in `folder`."""
    rows = report.rows
    use = f", {report.endpoint_use:.0%} of the endpoint's best" if report.endpoint_use is not None else ""
    return Group(
        f"{rows.total} rows: {rows.completed} completed, {rows.failed} failed, {rows.lost} lost, "
        f"{rows.duplicated} duplicated",
        f"{report.seconds:.1f} s from submission to results; {report.output_tokens_per_s:.0f} output tokens/s{use}",
        *render_end(report, folder),
    )


def run_job(deployment: BatchDeployment, client: BatchClient, work: Path) -> tuple[dict[str, Any], list[Moment], float]:
    """Submit the sample, and watch it to its end."""
    limit_s = deployment.slo.deadline + _GRACE_S
    team = deployment.sample.team or next(iter(deployment.teams))
    with console.step("Run the sample job") as step:
        start = time.monotonic()
        file_id = client.upload(work / "input.jsonl")
        job = client.create(file_id=file_id, metadata={"team": team, "deadline": f"{limit_s:g}"})
        moments: list[Moment] = []
        while True:
            job = client.read(job["id"])
            moments.append(_build_moment(job, client.list_workers(), time.monotonic() - start))
            counts = job["request_counts"]
            step.note = f"{job['status']}, {counts['completed'] + counts['failed']} of {counts['total']} rows"
            if job["status"] in FINAL_STATES:
                return job, moments, time.monotonic() - start
            if time.monotonic() - start > limit_s:
                raise Unavailable(f"{job['id']}: {step.note} after {limit_s:.0f} s. Fix: look at blueprint logs.")
            time.sleep(_POLL_S)


def _build_moment(job: Mapping[str, Any], workers: Sequence[Mapping[str, Any]], seconds: float) -> Moment:
    counts = job["request_counts"]
    return Moment(
        seconds=round(seconds, 2),
        is_running=job["status"] != "validating",
        completed=counts["completed"],
        failed=counts["failed"],
        output_tokens=job["tokens"]["output"],
        in_flight=sum(worker["in_flight"] for worker in workers),
    )


def _download(client: BatchClient, job: Mapping[str, Any], work: Path) -> tuple[list[Any], list[Any]]:
    """Read the lines of both results files; none if the job has none."""
    if not job["output_file_id"]:
        return [], []
    lines = []
    for name, file_id in (("output.jsonl", job["output_file_id"]), ("errors.jsonl", job["error_file_id"])):
        client.download(file_id, work / name)
        with (work / name).open(encoding="utf-8") as content:
            lines.append([untrusted_json.parse(line) for line in content])
    return lines[0], lines[1]


def _measure_shares(
    deployment: BatchDeployment,
    sample: SampleRows,
    client: BatchClient,
    work: Path,
    job: Mapping[str, Any],
    moments: Sequence[Moment],
) -> FairShare:
    """Run jobs of all teams at once, of rows as the sample's, as many of each team as its weight."""
    weights = {name: team.weight for name, team in deployment.teams.items()}
    row_tokens = job["tokens"]["output"] / max(1, job["request_counts"]["completed"])
    shared_rows = max(deployment.sample.rows, int(SHARED_S * compute_rate(moments) / max(1.0, row_tokens)))
    counts = {team: max(1, shared_rows * weight // sum(weights.values())) for team, weight in weights.items()}
    files = {name: sample.write(count, work / f"team-{name}.jsonl") for name, count in counts.items()}
    urgent = sample.write(max(1, shared_rows // 100), work / "urgent.jsonl")
    return batch_shares.measure(client, weights, files, urgent, deployment.slo.deadline + _GRACE_S)


def _measure_references(deployment: BatchDeployment, rows: Sequence[tuple[str | None, bytes]]) -> tuple[Reference, ...]:
    bodies = [json.dumps(json.loads(line)["body"]).encode() for custom_id, line in rows if custom_id]
    with console.step("Measure the endpoint at fixed concurrencies") as step:
        references = []
        for concurrency in CONCURRENCIES:
            rate = _measure_rate(deployment.endpoint_url, bodies, concurrency)
            references.append(Reference(concurrency=concurrency, output_tokens_per_s=round(rate, 2)))
            step.note = f"{concurrency} in flight: {rate:.0f} output tokens/s"
        return tuple(references)


def _measure_rate(url: str, bodies: Sequence[bytes], concurrency: int) -> float:
    """Measure output tokens per second with so many requests in flight, until the last answer."""
    start = time.monotonic()

    def send_until_end(number: int) -> int:
        tokens = 0
        while time.monotonic() - start < _REFERENCE_S:
            body = bodies[number % len(bodies)]
            number += concurrency
            with contextlib.suppress(Unavailable):
                tokens += batch_sample.send(url, body)["completion_tokens"]
        return tokens

    with ThreadPoolExecutor(concurrency) as pool:
        return sum(pool.map(send_until_end, range(concurrency))) / (time.monotonic() - start)


def build_report(deployment: BatchDeployment, measured: Measurement) -> BatchReport:
    """Count the rows, and hold the job against its SLO."""
    job = measured.job
    counts = count_rows([custom_id for custom_id, _ in measured.rows], measured.output, measured.errors)
    rate = compute_rate(measured.moments)
    best = max((reference.output_tokens_per_s for reference in measured.references), default=0.0)
    use = rate / best if best else None
    missed = tuple(_judge(deployment, measured, counts, use))
    return BatchReport(
        name=deployment.name,
        verdict="fail" if missed else "pass",
        missed=missed,
        started_at=measured.started.isoformat(),
        job=job["id"],
        state=job["status"],
        rows=counts,
        seconds=round(measured.seconds, 3),
        input_tokens=job["tokens"]["input"],
        output_tokens=job["tokens"]["output"],
        output_tokens_per_s=round(rate, 2),
        endpoint_s=job["endpoint_s"],
        cost_usd=job["cost_usd"],
        teams=tuple(_build_team_use(team) for team in measured.teams),
        endpoint_use=None if use is None else round(use, 4),
        references=tuple(measured.references),
        fair_share=measured.fair_share,
        moments=tuple(measured.moments),
        error_kinds=dict(Counter(line["error"]["code"] for line in measured.errors)),
        settings=_build_settings(deployment),
        versions={"blueprint": importlib.metadata.version("llm-serving-blueprints")},
        emulated=deployment.emulated,
    )


def _build_settings(deployment: BatchDeployment) -> dict[str, Any]:
    return {
        "endpoint": deployment.endpoint_url,
        "model": deployment.sample.model or deployment.model,
        "workers": deployment.worker_count,
        "target": deployment.target,
        "sample": deployment.sample.model_dump(mode="json"),
        "slo": deployment.slo.model_dump(mode="json"),
    }


def _build_team_use(team: Mapping[str, Any]) -> TeamUse:
    tokens = {f"{name}_tokens": count for name, count in team["tokens"].items()}
    return TeamUse(**{name: team[name] for name in ("team", "jobs", "endpoint_s", "cost_usd")}, **tokens)


def count_rows(expected: Sequence[str | None], output: Sequence[Any], errors: Sequence[Any]) -> RowCounts:
    """Count rows in both files against what was submitted.

    Args:
        expected: the id of each row that can run; None for each that cannot.
    """
    runnable = {custom_id for custom_id in expected if custom_id}
    bad_count = len(expected) - len(runnable)
    answered = Counter(line["custom_id"] for line in output)
    # The doubled id is in the errors too: its line says which one it is.
    failed = Counter(line["custom_id"] for line in errors if line["error"]["code"] != "duplicate_custom_id")
    rejected = [
        line for line in errors if line["custom_id"] not in runnable or line["error"]["code"] == "duplicate_custom_id"
    ]
    results = {custom_id: answered[custom_id] + failed[custom_id] for custom_id in runnable}
    lost_bad, extra_bad = max(0, bad_count - len(rejected)), max(0, len(rejected) - bad_count)
    strangers = sum(count for custom_id, count in answered.items() if custom_id not in runnable)
    return RowCounts(
        total=len(expected),
        completed=len(output),
        failed=len(errors),
        lost=sum(count == 0 for count in results.values()) + lost_bad,
        duplicated=sum(max(0, count - 1) for count in results.values()) + extra_bad,
        misplaced=strangers + sum(failed[custom_id] > 0 for custom_id in runnable),
    )


def compute_rate(moments: Sequence[Moment]) -> float:
    """Compute output tokens per second from the first moment at which rows run to the first with all tokens.

    Rows are saved a second after they run at the earliest: a clock that started with the first result would run late.
    """
    if not moments or not moments[-1].output_tokens:
        return 0.0
    final = moments[-1].output_tokens
    end = next(number for number, moment in enumerate(moments) if moment.output_tokens == final)
    start = next(number for number, moment in enumerate(moments) if moment.is_running)
    start = min(start, max(0, end - 1))  # a short job ends before it is seen to run
    seconds = moments[end].seconds - moments[start].seconds
    return final / seconds if seconds > 0 else 0.0


def _judge(
    deployment: BatchDeployment, measured: Measurement, counts: RowCounts, use: float | None
) -> Iterator[MissedObjective]:
    slo, job, seconds, fair_share = deployment.slo, measured.job, measured.seconds, measured.fair_share
    if job["status"] != "completed":
        yield MissedObjective(metric="state", value=None, limit=0, why=f"the job is {job['status']}, not completed")
    for name in ("lost", "duplicated"):
        value = getattr(counts, name)
        if value:
            yield MissedObjective(metric=f"rows.{name}", value=value, limit=0, why=f"{value} rows are {name}")
    runnable = sum(custom_id is not None for custom_id, _ in measured.rows)
    share = counts.misplaced / max(1, runnable)
    if share > slo.failed_rows:
        reason = f"{counts.misplaced} of {runnable} rows that could run failed; the limit is {slo.failed_rows:.1%}"
        yield MissedObjective(metric="failed_rows", value=share, limit=slo.failed_rows, why=reason)
    if seconds > slo.deadline:
        reason = f"{seconds:.1f} s from submission to results; the limit is {slo.deadline:g} s"
        yield MissedObjective(metric="deadline", value=round(seconds, 3), limit=slo.deadline, why=reason)
    if slo.endpoint_use is not None and (use is None or use < slo.endpoint_use):
        shown = "nothing was measured" if use is None else f"{use:.0%} of the endpoint's best rate"
        reason = f"{shown}; the least is {slo.endpoint_use:.0%}"
        yield MissedObjective(metric="endpoint_use", value=use, limit=slo.endpoint_use, why=reason)
    if fair_share and slo.urgent_row is not None and fair_share.urgent.first_row_s > slo.urgent_row:
        first_row_s = fair_share.urgent.first_row_s
        reason = f"{first_row_s:.1f} s to the first row of the urgent job; the limit is {slo.urgent_row:g} s"
        yield MissedObjective(metric="urgent_row", value=first_row_s, limit=slo.urgent_row, why=reason)
