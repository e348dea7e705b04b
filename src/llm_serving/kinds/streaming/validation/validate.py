"""`blueprint validate` of a streaming deployment: sends events open loop, and follows each to its answer.

An event is due at its time whether or not earlier ones are answered. Each must have exactly one outcome in Kafka, for a
`read_committed` reader: an answer, or a dead letter where it is no valid event.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from rich.console import Group, RenderableType

from llm_serving import console
from llm_serving.kinds.streaming import programs
from llm_serving.kinds.streaming.blueprint import StreamSlo
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.resolve import list_kafka_properties, to_ms
from llm_serving.kinds.streaming.validation import outcomes as stream_outcomes
from llm_serving.kinds.streaming.validation.outcomes import Outcomes, Times
from llm_serving.kinds.streaming.validation.report import EventCounts, StreamMetrics, StreamReport
from llm_serving.settings.errors import InputError, Unavailable, quote_value
from llm_serving.validation.base import LoadSource, ValidationOptions
from llm_serving.validation.base import require_slo as require_slo
from llm_serving.validation.load.api_key import OPENER
from llm_serving.validation.pages import charts, html_report
from llm_serving.validation.remote.play import ProgramLoad
from llm_serving.validation.reports import run_folder
from llm_serving.validation.reports.kind_report import render_end
from llm_serving.validation.statistics import gate, sample_statistics
from llm_serving.validation.statistics.gate import Findings, MissedObjective
from llm_serving.validation.statistics.sample_statistics import Latency

_RUNNING_TIMEOUT_S = 120.0
_DRAIN_S = 60
"""How long after the last event the last answer may come before it counts as lost."""

_HEAP_MB = 128


def validate(deployment: StreamingDeployment, options: ValidationOptions) -> tuple[StreamReport, Path]:
    """Send the sample; return the report and its folder, RUNS/NAME/TIME.

    Raises:
        InputError: an option is for load tests only.
        Unavailable: the job does not run, the load failed, or the report cannot be written.
    """
    for option, value in {"--user": options.user_file, "--driver": options.driver, "--url": options.url}.items():
        if value is not None:
            raise InputError(f"{option}: {quote_value(value)}: a stream is sent through Kafka. Fix: leave it out.")
    runs = options.runs / deployment.name
    run_folder.require_writable(runs)
    with run_folder.lock_work(options.logs, deployment.name) as work:
        started = datetime.datetime.now(datetime.UTC)
        event_count, source = options.requests or deployment.sample.events, options.load_source
        if source:
            send_from_inside(deployment, event_count, work, source)
        else:
            wait_running(deployment.url)
            send(deployment, event_count, work)
        outcomes = stream_outcomes.read(work)
        sent_from = source.described if source else "The load came from this machine."
        report = build_report(deployment, outcomes, started, sent_from)
        page = html_report.render_page(
            "stream.html.j2", Path(__file__).parent, report=report, pictures=_render_pictures(report, outcomes)
        )
        return report, run_folder.publish(report, page, work, runs)


def wait_running(url: str) -> None:
    """Wait until every task of the job runs: after a deploy or a failure that takes seconds.

    Raises:
        Unavailable: they do not.
    """
    limit = time.monotonic() + _RUNNING_TIMEOUT_S
    while not _is_running(url):
        if time.monotonic() > limit:
            reason = f"the job does not run after {_RUNNING_TIMEOUT_S:.0f} s"
            raise Unavailable(f"{url}: {reason}. Fix: see `blueprint logs`, process taskmanager.")
        time.sleep(0.5)


def _is_running(url: str) -> bool:
    try:
        with OPENER.open(f"{url}/jobs/overview", timeout=10) as response:
            jobs = json.load(response)["jobs"]
    except OSError:
        return False
    return any(job["tasks"]["running"] == job["tasks"]["total"] > 0 for job in jobs)


def send(deployment: StreamingDeployment, event_count: int, work: Path, drain_s: int = _DRAIN_S) -> None:
    """Send events, and write what was sent and what became of it to `work`.

    Raises:
        Unavailable: they could not be sent.
    """
    plan = _build_plan(deployment, event_count, drain_s, folder=str(work))
    command = programs.build_command("stream.load.Driver", json.dumps(plan), heap_mb=_HEAP_MB)
    seconds = _count_seconds(deployment, event_count)
    with console.step(f"Send {event_count + deployment.sample.bad_events} events in {seconds:.0f} s"):
        try:
            console.run(command, log=work / "driver.log", timeout_s=3 * seconds + 2 * drain_s)
        except console.CommandFailed as error:
            raise Unavailable(f"the events could not be sent: {error}") from None


def send_from_inside(deployment: StreamingDeployment, event_count: int, work: Path, source: LoadSource) -> None:
    """Do the same with a container in the fleet's network.

    Raises:
        CheckFailed: the container did not start in time, or the driver failed.
        Unavailable: AWS or the cluster cannot be asked.
    """
    assert source.play
    load = ProgramLoad(
        plan=_build_plan(deployment, event_count, _DRAIN_S),
        results=stream_outcomes.FILES,
        timeout_s=3 * _count_seconds(deployment, event_count) + 2 * _DRAIN_S,
        timeout_fix="lower sample.events",
    )
    source.play(load, work)


def _build_plan(
    deployment: StreamingDeployment, event_count: int, drain_s: int, **further: object
) -> dict[str, object]:
    """Build what images/stream-job's Driver is told."""
    sample, topics, limits = deployment.sample, deployment.topics, deployment.limits
    return {
        "brokers": deployment.brokers,
        "properties": list_kafka_properties(deployment.environment),
        "events": topics.events,
        "results": topics.results,
        "dead_letters": topics.dead_letters,
        "rate": sample.rate,
        "count": event_count,
        "bad": sample.bad_events,
        "shoppers": sample.shoppers,
        "event_bytes": limits.event,
        "late_ms": to_ms(limits.late),
        "future_ms": to_ms(limits.future),
        "drain_s": drain_s,
        "tail_s": math.ceil(3 * deployment.checkpoint_s),
        **further,
    }


def _count_seconds(deployment: StreamingDeployment, event_count: int) -> float:
    return (event_count + deployment.sample.bad_events) / deployment.sample.rate


def build_report(
    deployment: StreamingDeployment, outcomes: Outcomes, started: datetime.datetime, sent_from: str
) -> StreamReport:
    """Count the events, and hold their times against the SLO."""
    counts, times = stream_outcomes.count(outcomes), stream_outcomes.measure_times(outcomes)
    missed, not_shown = gate.sort_findings(_judge(deployment.slo, outcomes, counts, times))
    due = [event["due_at"] for event in outcomes.sent]
    return StreamReport(
        name=deployment.name,
        verdict="fail" if missed else "not shown" if not_shown else "pass",
        missed=tuple(missed),
        not_shown=tuple(not_shown),
        started_at=started.isoformat(),
        events=counts,
        metrics=StreamMetrics(**{f"{name}_ms": _summarize(values) for name, values in times._asdict().items()}),
        events_per_s=round(len(due) / max(0.001, due[-1] - due[0]), 2),
        dead_reasons=stream_outcomes.count_reasons(outcomes),
        settings={
            "endpoint": deployment.endpoint_url,
            "model": deployment.model,
            "target": deployment.target,
            "sent_from": sent_from,
            "checkpoint_s": deployment.checkpoint_s,
            "sample": deployment.sample.model_dump(mode="json"),
            "slo": deployment.slo.model_dump(mode="json"),
        },
        versions={"blueprint": importlib.metadata.version("llm-serving-blueprints")},
        emulated=(*deployment.notes, *deployment.emulated),
    )


def _summarize(values: Sequence[float]) -> Latency:
    """Summarize the times that there are: JSON has no infinite ones, and they are counted as lost or dead."""
    return sample_statistics.summarize_latency([value for value in values if math.isfinite(value)])


def _judge(slo: StreamSlo, outcomes: Outcomes, counts: EventCounts, times: Times) -> Findings:
    for name in ("lost", "duplicated"):
        value = getattr(counts, name)
        if value:
            yield MissedObjective(metric=f"events.{name}", value=value, limit=0, why=f"{value} events are {name}")
    share = counts.misjudged / max(1, sum(not event["bad"] for event in outcomes.sent))
    if share > slo.dead_events:
        reason = f"{counts.misjudged} events have a dead letter and are valid, or an answer and are not"
        yield MissedObjective(metric="dead_events", value=share, limit=slo.dead_events, why=reason)
    limits: Mapping[str, tuple[float | None, Sequence[float], float]] = {
        "answer_p50": (slo.answer_p50, times.answer, 0.5),
        "answer_p99": (slo.answer_p99, times.answer, 0.99),
        "pipeline_p99": (slo.pipeline_p99, times.pipeline, 0.99),
    }
    for metric, (limit, values, percentile) in limits.items():
        if limit is not None:
            yield from gate.judge_seconds(metric, limit, values, percentile, "events")


def render(report: StreamReport, folder: Path) -> RenderableType:
    """Render the report that was saved in `folder`."""
    counts, answer, pipeline = report.events, report.metrics.answer_ms, report.metrics.pipeline_ms
    lines = [
        f"{counts.sent} events: {counts.answered} answered, {counts.dead} dead, {counts.lost} lost, "
        f"{counts.duplicated} duplicated"
    ]
    if report.dead_reasons:
        reasons = sorted(report.dead_reasons.items(), key=lambda entry: -entry[1])
        lines.append(f"dead letters: {', '.join(f'{count} {reason}' for reason, count in reasons)}")
    if answer.p50 is not None and answer.p99 is not None and pipeline.p99 is not None:
        lines.append(
            f"answer in the cache after {answer.p50:.0f} ms (p50), {answer.p99:.0f} ms (p99); "
            f"without the endpoint {pipeline.p99:.0f} ms (p99)"
        )
    return Group(*lines, *render_end(report, folder))


def _render_pictures(report: StreamReport, outcomes: Outcomes) -> dict[str, Markup]:
    times = stream_outcomes.measure_times(outcomes)
    limit = {"p99": 1000 * report.settings["slo"]["answer_p99"]}
    pictures = {
        "Event to answer in the cache": (times.answer, report.metrics.answer_ms, limit),
        "Pipeline alone": (times.pipeline, report.metrics.pipeline_ms, {}),
    }
    return {
        title: Markup(charts.render_distribution(title, list(filter(math.isfinite, values)), latency, limits))
        for title, (values, latency, limits) in pictures.items()
    }
