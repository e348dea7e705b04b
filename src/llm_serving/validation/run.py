"""Run one validation: Locust in a separate process with its progress, then the report in a new directory."""

from __future__ import annotations

import math
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_serving import console
from llm_serving.catalog import frameworks
from llm_serving.console import Command
from llm_serving.services.runs import compute_prompts_digest
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import InputError, Unavailable, quote_value
from llm_serving.settings.units import Bounds
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.drivers import job, registry
from llm_serving.validation.drivers.base import Driver
from llm_serving.validation.load import api_key, data_rows, driver_result, load_plan, prompts, trace
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load.load_plan import LoadPlan, PlannedLoad
from llm_serving.validation.load.prefix_overlap import PrefixOverlap
from llm_serving.validation.load.trace import TraceRow
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.pages import html_report
from llm_serving.validation.reports import report_builder, run_folder
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.reports.report import Report
from llm_serving.validation.reports.terminal_summary import render as render
from llm_serving.validation.statistics import scoring

LOCUSTFILE = Path(load_plan.__file__).with_name("locustfile.py")
FIRST_PROBES = 3
"""Requests to a model, one after the other, before those that count the tokens of words: two are for its dialect."""

_LEAST_REMOTE = 2
"""Processes of a load from elsewhere, so that it does not come from one node alone."""

_START_TIMEOUT_S = 60.0
"""Time limit of Locust's start and end together."""


def validate(target: LoadTarget, options: ValidationOptions) -> tuple[Report, Path]:
    """Send a target's traffic; return the report and its folder, RUNS/NAME/TIME.

    The folder has report.json, report.html, Locust's CSV and log, every request (requests.jsonl) and the plan.

    Raises:
        InputError: the driver cannot send this load, the user file or the prompts are invalid, or an API key would be
            sent without TLS.
        Unavailable: the target does not respond, the driver cannot run, another validation is running, or the
            report cannot be written.
    """
    folder, user_file = options.folder, options.user_file
    target = _override(target, options.url, options.requests)
    rows, notes = _read_trace(target.traffic, folder)
    notes += _check_data(target.traffic, folder)
    if target.traffic.replays_times:
        target = _override(target, None, len(rows))
    api_key.build_headers(target.url)  # refuse before the driver starts
    run_folder.require_writable(options.runs / target.name)
    if target.traffic.judge is not None:
        scoring.build_judge_headers(target.traffic.judge)
    drop_in = registry.load_driver(options.driver) if options.driver else None
    if drop_in and user_file:
        raise InputError(f"--user: {drop_in.title} has no Locust users. Fix: remove --user or --driver.")
    if user_file is not None and not user_file.is_file():
        raise InputError(
            f"--user: {quote_value(user_file)}: there is no such file. Fix: use the path of a Python file."
        )
    with run_folder.lock_work(options.logs, target.name) as work:
        result, samples = _send(_write_plan(target, options, work, rows), work, drop_in, options)
        unscored = _score(target.traffic, samples, work, drop_in)
        prompts_digest = compute_prompts_digest(target.traffic, folder)
        measured = Measured(target, result, samples, prompts_digest, notes, drop_in, options.load_source, unscored)
        run_report = report_builder.build(measured)
        page = html_report.render(run_report, samples)
        return run_report, run_folder.publish(run_report, page, work, options.runs / target.name)


def _send(
    driver_plan: LoadPlan, work: Path, drop_in: Driver | None, options: ValidationOptions
) -> tuple[DriverResult, list[Sample]]:
    if drop_in:
        job.check(drop_in, driver_plan)
        return job.run(drop_in, driver_plan, work, driver_plan.timeout_s)
    play = (options.load_source and options.load_source.play) or run_locust
    play(driver_plan, options.user_file or LOCUSTFILE)
    return collect(driver_plan)


def _override(target: LoadTarget, url: str | None, requests: int | None) -> LoadTarget:
    if requests is not None:
        traffic = target.traffic.model_copy(update={"requests": requests})
        target = target.model_copy(update={"traffic": traffic})
    if url is not None:
        target = target.model_copy(update={"url": url.rstrip("/").removesuffix("/v1")})
    return target


def _score(traffic: Traffic, samples: Sequence[Sample], work: Path, drop_in: Driver | None) -> str:
    """Score the answers that have an expected one; return why that was not possible, "" where it was.

    The load is measured by then, so that a judge without an answer ends nothing.
    """
    if drop_in and any(sample.expected is not None for sample in samples):
        for sample in samples:
            sample.expected = None
        return f"answers to {drop_in.title} are not compared"
    try:
        scoring.score(traffic, samples, work)
    except Unavailable as error:
        return str(error).rstrip(".")
    return ""


def _write_plan(target: LoadTarget, options: ValidationOptions, work: Path, rows: Sequence[TraceRow]) -> LoadPlan:
    traffic, load_source = target.traffic, options.load_source
    metrics_urls = {page.name: page.url for page in load_source.pages} if load_source else target.metrics_urls
    cores, least = os.cpu_count() or 1, 1
    if load_source and load_source.play:
        cores, least = load_source.max_processes, _LEAST_REMOTE
    driver_plan = LoadPlan(
        **{name: getattr(target, name) for name in PlannedLoad.model_fields},
        nonce=secrets.token_hex(8),
        data=str((options.folder / traffic.data).resolve()) if traffic.data else None,
        first_prompt=options.first_prompt,
        trace=tuple(rows),
        metrics_urls=metrics_urls,
        metrics_delay_s=frameworks.load_frameworks()[target.framework].metrics_delay_s,
        processes=load_plan.count_processes(traffic, cores, rows, least=least, pooled=bool(target.pooled)),
        timeout_s=_compute_timeout(target, rows),
        folder=str(work),
    )
    (work / driver_result.PLAN_FILE).write_text(
        driver_plan.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8"
    )
    return driver_plan


def _read_trace(traffic: Traffic, folder: Path) -> tuple[tuple[TraceRow, ...], tuple[str, ...]]:
    """Read as many requests of the blueprint's trace as are counted, moved into its bounds; return notes too."""
    if traffic.trace is None:
        return (), ()
    rows = trace.read((folder / traffic.trace).resolve(), traffic.requests)
    inputs, outputs = (Bounds(lengths.min, lengths.max) for lengths in (traffic.input_tokens, traffic.output_tokens))
    played = tuple(trace.cut(row, inputs, outputs) for row in rows)
    changed = sum(row != other_row for row, other_row in zip(rows, played, strict=True))
    note = (
        f"{changed} of the {len(rows)} requests of {traffic.trace} had lengths outside input_tokens {inputs} or "
        f"output_tokens {outputs}, and were moved to the bounds."
    )
    return played, (note,) if changed else ()


def _check_data(traffic: Traffic, folder: Path) -> tuple[str, ...]:
    """Report mistakes of the user's prompts before anything starts; return a note on keys that are not sent."""
    if traffic.data is None:
        return ()
    rows = data_rows.read_rows((folder / traffic.data).resolve(), traffic)
    ignored_keys = sorted(frozenset[str]().union(*(row.ignored_keys for row in rows)))
    return (f"These keys of {traffic.data} were not sent: {', '.join(ignored_keys)}.",) if ignored_keys else ()


def build_commands(driver_plan: LoadPlan, user_file: Path) -> list[Command]:
    shown_plan = driver_plan.model_copy(update={"folder": console.shorten_path(Path(driver_plan.folder))})
    # A few of Locust's variables change even its library.
    stray = {name: "" for name in os.environ if name.startswith("LOCUST_")}
    return [
        Command(
            load_plan.build_command(shown_plan, console.shorten_path(user_file), index),
            log=driver_plan.locate(driver_result.LOG_FILE, index),
            hidden_environment=stray,
        )
        for index in range(driver_plan.processes)
    ]


def run_locust(driver_plan: LoadPlan, user_file: Path) -> None:
    """Run Locust's processes here and show their progress; leaves their files in the plan's folder.

    Raises:
        CommandFailed: Locust failed or timed out.
    """
    with console.step("Run the load test") as step:

        def watch() -> None:
            indexes = range(driver_plan.processes)
            readings = (driver_result.read_progress(Path(driver_plan.folder), index) for index in indexes)
            if parts := [part for part in readings if part]:
                progress = driver_result.merge_progress(parts, driver_plan.traffic.requests)
                step.note = driver_result.format_progress(progress)

        console.run_together(build_commands(driver_plan, user_file), timeout_s=driver_plan.timeout_s, on_poll=watch)
        watch()


def collect(driver_plan: LoadPlan) -> tuple[DriverResult, list[Sample]]:
    """Return what the load's processes found, and every request; raises `Unavailable` where one ended early."""
    work = Path(driver_plan.folder)
    results = [driver_result.read_result(work, index) for index in range(driver_plan.processes)]
    finished = [result for result in results if result]
    if errors := [result.error for result in finished if result.error]:
        raise Unavailable(errors[0])
    if len(finished) < driver_plan.processes:
        log = console.shorten_path(work / driver_result.LOG_FILE)
        raise Unavailable(f"Locust ended before the load. Fix: correct what its log names, {log}.")
    return merge_results(driver_plan, finished), _merge_samples(driver_plan)


def merge_results(driver_plan: LoadPlan, results: Sequence[DriverResult]) -> DriverResult:
    """Return one result of all processes; the first prepared the load and read the engine's metrics."""
    overlap = PrefixOverlap()
    for index in range(driver_plan.processes):
        overlap.merge(PrefixOverlap.load(driver_plan.locate(driver_result.OVERLAP_FILE, index)))
    return results[0].model_copy(
        update={
            "duration_s": max(result.duration_s for result in results),
            "processes": [process for result in results for process in result.processes],
            "shared_prompts": overlap.share,
            "shared_prompt_count": overlap.prompts,
        }
    )


def _merge_samples(driver_plan: LoadPlan) -> list[Sample]:
    """Return the samples of all processes, and leave one file of them."""
    file, *parts = (driver_plan.locate(driver_result.SAMPLES_FILE, index) for index in range(driver_plan.processes))
    with file.open("ab") as merged:
        for part in parts:
            merged.write(part.read_bytes())
            part.unlink()
    with file.open(encoding="utf-8") as lines:
        return [Sample.from_json(line) for line in lines]


def _compute_timeout(target: LoadTarget, rows: Sequence[TraceRow]) -> float:
    traffic, most = target.traffic, target.admitted or sys.maxsize
    in_turn = traffic.warm_up // min(most, load_plan.count_users(traffic, rows))
    chain = FIRST_PROBES + math.ceil(len(prompts.VOCABULARY) / min(most, prompts.CONCURRENCY))
    probes = chain * len(target.models) + in_turn + 1
    return _START_TIMEOUT_S + probes * traffic.deadline + traffic.time_limit + traffic.deadline
