"""Run a drop-in driver: our prompts, lengths and times in, samples out."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import gevent
from gevent.pool import Pool
from tokenizers import Tokenizer, models, pre_tokenizers

from llm_serving import console
from llm_serving.prediction.simulation import RAMP_ANSWERS
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.validation import on_demand
from llm_serving.validation.drivers.base import IS_USED, Driver, Job
from llm_serving.validation.load import api_key, driver_result, load_plan, metrics_pages, server
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load.load import SHOWN_ANSWERS
from llm_serving.validation.load.load_plan import WHOLE, LoadPlan
from llm_serving.validation.load.prefix_overlap import PrefixOverlap
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.load.server import Client
from llm_serving.validation.load.stream import HttpError

START_LIMIT_S = 300.0
"""Time for a driver to start and to write its results: GuideLLM imports for a minute on a busy machine."""


def check(driver: Driver, plan: LoadPlan) -> None:
    """Refuse a plan that the driver cannot send, with a line for each reason.

    Raises:
        InputError: what it cannot send, one line each.
    """
    traffic, title = plan.traffic, driver.title
    refusals = {
        "think_time": ("its users send their next request at once", "remove think_time or --driver"),
        "turns": ("each of its requests is a session", "remove turns or --driver"),
        **driver.refuses,
    }
    if not driver.sends_messages:
        refusals["images"] = ("its requests have text only", "remove images, use --driver aiperf, or remove --driver")
    used = {f"traffic.{key}": refusal for key, refusal in refusals.items() if IS_USED[key](traffic)}
    lines = [
        f"{place}: {title} cannot send it: {reason}. Fix: {fix}."
        for place, (reason, fix) in (*_list_refusals(plan), *used.items())
    ]
    if lines:
        raise InputError("\n".join(lines))


def _list_refusals(plan: LoadPlan) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what no drop-in driver sends of what is no key of the traffic: its place, the reason and what to do."""
    if plan.pooled:
        reason = f"it measures answers of text, and this deployment answers {plan.pooled.path}"
        yield "traffic.api", (reason, "remove --driver")
    if len(plan.models) > 1:
        reason = f"it sends to one model, and this deployment has {', '.join(plan.models)}"
        yield "--driver", (reason, "remove --driver")
    if api_key.build_headers(plan.url):
        reason = f"{api_key.VARIABLE} would be in its command line and in its files"
        yield "--driver", (reason, f"unset {api_key.VARIABLE}, or remove --driver")


def run(driver: Driver, plan: LoadPlan, work: Path, timeout_s: float) -> tuple[DriverResult, list[Sample]]:
    """Send the plan's load by the driver, whose results are copied to `work`; return its result and requests.

    Raises:
        InputError: the driver cannot send this load.
        Unavailable: the driver cannot be installed, or the deployment does not respond.
        CommandFailed: the driver failed.
    """
    executables = (
        on_demand.ensure(driver) if driver.download_mib else on_demand.find_engine(driver.title, driver.executable)
    )
    if driver.api:
        plan = plan.model_copy(update={"traffic": plan.traffic.model_copy(update={"api": driver.api})})
    folder = work.with_name(f"{work.name}-{driver.name}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    client = Client(plan)
    gevent.get_hub().NOT_ERROR += (KeyboardInterrupt,)  # which it would print besides
    job, warm_up = _build_job(driver, client, folder)
    _write_tokenizer(job.tokenizer)
    result = DriverResult(planned=len(job.prompts), engine_dialect=job.engine_dialect)
    result.warm_up_sent = len(warm_up)
    result.warm_up_failed, answer_s = send_warm_up(client, warm_up)
    if job.due is None:
        job = dataclasses.replace(job, ramp_s=RAMP_ANSWERS * answer_s)
        result.ramp_s = job.ramp_s if driver.ramps else 0.0
    overlap = PrefixOverlap()
    for prompt in job.prompts:
        overlap.add(prompt)
    result.shared_prompts, result.shared_prompt_count = overlap.share, overlap.prompts
    result.versions = {driver.name: on_demand.read_version(driver.package, executables)}
    time.sleep(plan.metrics_delay_s)
    result.metrics_before = metrics_pages.fetch(plan.metrics_urls)
    result.started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with console.step(f"Run {driver.title} {result.versions[driver.name]}") as step:
        samples = _send(driver, job, executables, work / f"{driver.name}.log", START_LIMIT_S + timeout_s)
        step.note = f"{len(samples)} requests"
    time.sleep(metrics_pages.SETTLE_S + plan.metrics_delay_s)
    result.metrics_after = metrics_pages.fetch(plan.metrics_urls)
    ends = [sample.start_s + (sample.e2e_ms or 0.0) / 1000 for sample in samples]
    result.duration_s = max(ends, default=0.0)
    shutil.copy(job.result, work / f"{driver.name}{job.result.suffix}")
    return result, _save(samples, work / driver_result.SAMPLES_FILE)


def _save(samples: Sequence[Sample], file: Path) -> list[Sample]:
    """Write the requests for comparisons, as our own driver does; return them as they are in the file."""
    lines = [sample.to_json() for sample in samples]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [Sample.from_json(line) for line in lines]


def _send(driver: Driver, job: Job, executables: Path, log: Path, timeout_s: float) -> list[Sample]:
    console.run(
        driver.build_command(job, executables),
        log=log,
        cwd=job.folder,
        environment={"DO_NOT_TRACK": "1", **driver.environment},
        timeout_s=timeout_s,
    )
    if not job.result.is_file():
        fix = f"correct what its log names, {console.shorten_path(log)}"
        raise Unavailable(f"{driver.title} wrote no results. Fix: {fix}.")
    return _complete(job, driver.read(job))


def _complete(job: Job, samples: Sequence[Sample]) -> list[Sample]:
    """Add what was asked for, and start the clock at the first request."""
    start = min((sample.start_s for sample in samples), default=0.0)
    for sample in samples:
        sample.start_s -= start
        if sample.number < len(job.prompts):
            prompt = job.prompts[sample.number]
            sample.asked_input, sample.asked_output = prompt.asked_input, prompt.max_tokens if prompt.exact else None
            if sample.input_tokens is None and sample.error is None:
                sample.input_tokens = prompt.asked_input
            if sample.number < SHOWN_ANSWERS or prompt.expected is not None or sample.error:
                sample.prompt, sample.expected = prompt.text, prompt.expected
    return sorted(samples, key=lambda sample: sample.number)


def _build_job(driver: Driver, client: Client, folder: Path) -> tuple[Job, list[Prompt]]:
    plan, traffic = client.plan, client.plan.traffic
    due = load_plan.draw_arrivals(traffic, plan.trace)
    count = traffic.requests if due is None else len(due)
    with console.step("Make the prompts"):
        setup = server.measure(client, client)
        warm_up, created = (
            list(itertools.islice(server.create_prompts(plan, WHOLE, phase, setup)[0], number))
            for phase, number in (("warm-up", traffic.warm_up), ("load", count))
        )
    if not driver.sends_messages:
        special = next((prompt for prompt in created if not prompt.is_plain), None)
        if special is not None:
            count = len(special.messages)
            raise InputError(
                f"{plan.data}: {driver.title} sends one message of text a request, and a row has "
                f"{f'{count} messages' if count > 1 else 'other parts, or fields of its own'}. "
                "Fix: use rows with a prompt, or remove --driver."
            )
    return Job(plan, created, due, setup.engine_dialect, folder), warm_up


def send_warm_up(client: Client, warm_up: Sequence[Prompt]) -> tuple[int, float]:
    """Send prompts that are not counted, as many at once as load and server allow.

    Returns:
        How many failed, and the mean time of an answer in seconds.
    """

    def time_answer(prompt: Prompt) -> float | None:
        start = time.monotonic()
        try:
            server.send(client, client.body(prompt))
        except (HttpError, Unavailable):
            return None
        return time.monotonic() - start

    users = client.plan.bound(load_plan.count_users(client.plan.traffic, client.plan.trace))
    with console.step("Warm up") as step:
        step.note = f"{len(warm_up)} requests"
        times_s = Pool(users).map(time_answer, warm_up)
    answers_s = [time_s for time_s in times_s if time_s is not None]
    return len(warm_up) - len(answers_s), fmean(answers_s or [0.0])


def _write_tokenizer(folder: Path) -> None:
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 10**9}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
