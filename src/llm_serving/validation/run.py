"""Run one validation: Locust in a separate process with its progress, then the report in a new directory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from llm_serving import console, processes
from llm_serving.catalog import engines
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.validation import driver_result, load_plan, prompts, report, run_folder, weight_loading
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import DriverResult, Progress
from llm_serving.validation.load_plan import LoadPlan
from llm_serving.validation.report import Report, WeightLoading
from llm_serving.validation.terminal_summary import render as render
from llm_serving.workloads.serving import measured_prompts
from llm_serving.workloads.serving.deployment import Deployment

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
MAX_PROBES = 3 + math.ceil(len(prompts.VOCABULARY) / prompts.CONCURRENCY)
"""Longest chain of requests to a model before the warm-up: two for its dialect, then the tokens of words."""

_START_TIMEOUT_S = 60.0
"""Time limit of Locust's start and end together."""


def validate(
    deployment: Deployment,
    *,
    logs: Path,
    runs: Path,
    folder: Path | None = None,
    url: str | None = None,
    requests: int | None = None,
    user_file: Path | None = None,
) -> tuple[Report, Path]:
    """Send the deployment's traffic; return the report and its folder, RUNS/NAME/TIME.

    The folder has report.json, report.html, Locust's CSV and log, every request (requests.jsonl) and the plan.

    Args:
        logs: the deployment's logs, PROCESS.log each; the driver writes to logs/validation.
        runs: the directory of all runs.
        folder: the blueprint's folder, to which `traffic.data` is relative.
        url: another address of the deployment, such as a gateway's.
        requests: number of counted requests, instead of the blueprint's.
        user_file: a Python file with another Locust user than the default.

    Raises:
        InputError: the user file or the prompts are invalid.
        Unavailable: the deployment does not respond, the driver cannot run, or another validation is running.
    """
    deployment = _override(deployment, url, requests)
    if user_file is not None and not user_file.is_file():
        raise InputError(f"--user: now {str(user_file)!r}: there is no such file. Fix: the path of a Python file.")
    work = logs.resolve() / "validation"
    with _lock_driver(work, deployment.name):
        driver_plan = _write_plan(deployment, folder or Path.cwd(), work)
        result = _run_locust(driver_plan, user_file or _LOCUSTFILE, work)
        with (work / driver_result.SAMPLES_FILE).open(encoding="utf-8") as lines:
            samples = [Sample.from_json(line) for line in lines]
        loading = _read_weight_loading(deployment, logs)
        prompts_digest = measured_prompts.compute_digest(deployment.traffic, folder or Path.cwd())
        run_report = report.build(deployment, result, samples, loading, _collect_versions(deployment), prompts_digest)
        return run_report, run_folder.save(run_report, samples, work, runs / deployment.name)


def _override(deployment: Deployment, url: str | None, requests: int | None) -> Deployment:
    if requests is not None:
        traffic = deployment.traffic.model_copy(update={"requests": requests})
        deployment = deployment.model_copy(update={"traffic": traffic})
    if url is not None:
        deployment = deployment.model_copy(update={"url": url.rstrip("/").removesuffix("/v1")})
    return deployment


def _read_weight_loading(deployment: Deployment, logs: Path) -> WeightLoading:
    main_model = deployment.served_models[0]
    replicas = [
        process for role in deployment.engine_roles if role.served_model == main_model for process in role.instances
    ]
    return weight_loading.read(main_model.weights, [logs / f"{process.name}.log" for process in replicas])


def require_slo(run_report: Report) -> None:
    """Check the SLO.

    Raises:
        CheckFailed: with each missed metric, its value and its limit.
    """
    if run_report.missed:
        message = "\n".join(f"  {objective.metric}: {objective.why}" for objective in run_report.missed)
        raise CheckFailed(f"{run_report.name} misses its SLO:\n{message}")


@contextlib.contextmanager
def _lock_driver(work: Path, name: str) -> Iterator[None]:
    """Lock and empty the driver's output directory: two loads at once would measure each other."""
    work.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(work / ".lock", f"another validation of {name} is running"):
        for path in work.iterdir():
            if path.name != ".lock":
                path.unlink()
        yield


def _write_plan(deployment: Deployment, folder: Path, work: Path) -> LoadPlan:
    """Write the driver's plan for Locust and return it."""
    traffic, data = deployment.traffic, None
    if traffic.data is not None:
        data = (folder / traffic.data).resolve()
        prompts.read_rows(data, traffic.api)  # report mistakes before anything starts
    metrics_urls = {}
    if deployment.environment.conventions.shared_host:
        path = engines.load_engines()[deployment.engine].metrics_path
        metrics_urls = {
            process.name: f"http://127.0.0.1:{process.port}{path}" for process in deployment.engine_processes
        }
    driver_plan = LoadPlan(
        url=deployment.url,
        models=deployment.model_names,
        traffic=traffic,
        data=str(data) if data else None,
        metrics_urls=metrics_urls,
        folder=str(work),
    )
    (work / driver_result.PLAN_FILE).write_text(
        driver_plan.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8"
    )
    return driver_plan


def build_command(driver_plan: LoadPlan, user_file: Path) -> list[str]:
    """Return Locust's command line for a plan."""
    user_count = str(load_plan.count_users(driver_plan.traffic))
    work = Path(driver_plan.folder)
    return [
        sys.executable, "-m", "locust", "--headless", "--only-summary", "--exit-code-on-error", "0",
        "--locustfile", console.shorten_path(user_file), "--users", user_count, "--spawn-rate", user_count,
        "--csv", console.shorten_path(work / driver_result.CSV_PREFIX),
        "--plan", console.shorten_path(work / driver_result.PLAN_FILE),
    ]  # fmt: skip


def _run_locust(driver_plan: LoadPlan, user_file: Path, work: Path) -> DriverResult:
    """Run Locust and show its progress.

    Raises:
        Unavailable: the deployment does not respond.
        CommandFailed: Locust failed or timed out.
    """
    with console.step("Run the load test") as step:

        def watch() -> None:
            if progress := _read_progress(work):
                step.note = format_progress(progress)

        console.run(
            build_command(driver_plan, user_file),
            log=work / driver_result.LOG_FILE,
            timeout_s=_compute_timeout(driver_plan),
            on_poll=watch,
        )
        watch()
        if not (work / driver_result.RESULT_FILE).is_file():
            raise Unavailable(
                f"Locust ended before the load. Log: {console.shorten_path(work / driver_result.LOG_FILE)}"
            )
        result = DriverResult.model_validate_json((work / driver_result.RESULT_FILE).read_text(encoding="utf-8"))
        if result.error:
            raise Unavailable(result.error)
        return result


def _compute_timeout(driver_plan: LoadPlan) -> float:
    """Return the time limit of the driver, in seconds, whatever the server does."""
    traffic = driver_plan.traffic
    probes = MAX_PROBES * len(driver_plan.models) + traffic.warm_up // load_plan.count_users(traffic) + 1
    return _START_TIMEOUT_S + probes * traffic.deadline + traffic.time_limit + traffic.deadline


def _read_progress(work: Path) -> Progress | None:
    try:
        return Progress.model_validate_json((work / driver_result.PROGRESS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def format_progress(progress: Progress) -> str:
    """Format the progress in one line."""
    if progress.phase != "load":
        return f"{progress.phase}: not counted"
    parts = [f"sent {progress.sent} of {progress.total}", f"answered {progress.answered}", f"failed {progress.failed}"]
    if progress.ttft_p95_ms is not None:
        parts.append(f"TTFT p95 so far {progress.ttft_p95_ms:.0f} ms")
    if progress.remaining_s:
        parts.append(f"about {progress.remaining_s:.0f} s left")
    return ", ".join(parts)


def _collect_versions(deployment: Deployment) -> dict[str, str]:
    """Return the versions of this program and of an engine that runs on this machine."""
    versions = {"blueprint": importlib.metadata.version("llm-serving-blueprints")}
    if not deployment.environment.conventions.shared_host:
        return versions
    version_url = f"http://127.0.0.1:{deployment.engine_processes[0].port}/version"
    with contextlib.suppress(OSError, ValueError, KeyError), urllib.request.urlopen(version_url, timeout=5) as response:
        versions[deployment.engine] = str(json.load(response)["version"])
    return versions
