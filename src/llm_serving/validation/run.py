"""Runs one validation: Locust in a process of its own, progress while it plays, then the report in a folder of its own.

Nothing half appears under runs/: Locust writes beside the deployment's logs, the report is put together in a hidden
folder, and that folder is renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import math
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from llm_serving import console
from llm_serving.catalog import engines
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.validation import driver_result, html_report, load_plan, prompts, report, weight_loading
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import DriverResult, Progress
from llm_serving.validation.load_plan import LoadPlan
from llm_serving.validation.report import Report
from llm_serving.workloads.serving import measured_prompts
from llm_serving.workloads.serving.deployment import Deployment

REPORT_FILE, PAGE_FILE = measured_prompts.REPORT, "report.html"

LATEST = "latest"

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
MAX_PROBES = 3 + math.ceil(len(prompts.VOCABULARY) / prompts.CONCURRENCY)
"""Longest chain of questions to a model before the warm-up: two for what it understands, then what words cost."""

_START_TIMEOUT_S = 60.0
"""Longest that Locust may take to start and to end."""


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
    """Plays the deployment's traffic and returns the report with the folder that holds it, RUNS/NAME/TIME.

    The folder holds report.json, report.html, Locust's CSV and log, every request (requests.jsonl) and the plan.

    Args:
        logs: the deployment's logs, PROCESS.log each; what the driver writes while it runs lies in logs/validation.
        runs: where reports go.
        folder: the blueprint's folder, which `traffic.data` is relative to.
        url: another address of the deployment than its own, such as a gateway's.
        requests: how many requests are counted, in place of the blueprint's number.
        user: a Python file with the Locust user to play in place of the default one.

    Raises:
        InputError: the user file or the prompts cannot be used.
        Unavailable: the deployment does not answer, or the driver cannot run.
        AnswerIsNo: another validation of the deployment is running.
    """
    if requests is not None:
        deployment = deployment.model_copy(
            update={"traffic": deployment.traffic.model_copy(update={"requests": requests})}
        )
    if url is not None:
        deployment = deployment.model_copy(update={"url": url.rstrip("/").removesuffix("/v1")})
    if user_file is not None and not user_file.is_file():
        raise InputError(f"--user: now {str(user_file)!r}: there is no such file. Fix: the path of a Python file.")
    work = logs.resolve() / "validation"
    with _lock_driver(work, deployment.name):
        driver_plan = _write_plan(deployment, folder or Path.cwd(), work)
        result = _run_locust(driver_plan, user_file or _LOCUSTFILE, work)
        with (work / driver_result.SAMPLES_FILE).open(encoding="utf-8") as lines:
            samples = [Sample.from_json(line) for line in lines]
        main_model = deployment.served_models[0]
        replicas = [
            process for role in deployment.engine_roles if role.served_model == main_model for process in role.instances
        ]
        loading = weight_loading.read(main_model.weights, [logs / f"{process.name}.log" for process in replicas])
        prompts_digest = measured_prompts.compute_digest(deployment.traffic, folder or Path.cwd())
        run_report = report.build(deployment, result, samples, loading, _collect_versions(deployment), prompts_digest)
        return run_report, _save_run(run_report, samples, work, runs / deployment.name)


def require_slo(run_report: Report) -> None:
    """Raises:
    AnswerIsNo: naming each metric of the SLO that was missed, its value and its limit.
    """
    if run_report.missed:
        message = "\n".join(f"  {objective.metric}: {objective.why}" for objective in run_report.missed)
        raise CheckFailed(f"{run_report.name} misses its SLO:\n{message}")


@contextlib.contextmanager
def _lock_driver(work: Path, name: str) -> Iterator[None]:
    """Holds the deployment's driver folder, emptied: two loads at once would measure each other."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckFailed(f"another validation of {name} is running; wait for its end, or end it") from None
        for path in work.iterdir():
            if path.name != ".lock":
                path.unlink()
        yield


def _write_plan(deployment: Deployment, folder: Path, work: Path) -> LoadPlan:
    """The driver's plan, written where Locust finds it."""
    traffic, data = deployment.traffic, None
    if traffic.data is not None:
        data = (folder / traffic.data).resolve()
        prompts.read_rows(data, traffic.api)  # a mistake in it is said before anything starts
    metrics_urls = {}
    if deployment.target == "local":
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
    """Locust's command line for a plan."""
    user_count = str(load_plan.count_users(driver_plan.traffic))
    work = Path(driver_plan.folder)
    return [
        sys.executable, "-m", "locust", "--headless", "--only-summary", "--exit-code-on-error", "0",
        "--locustfile", console.shorten_path(user_file), "--users", user_count, "--spawn-rate", user_count,
        "--csv", console.shorten_path(work / driver_result.CSV_PREFIX), "--plan", console.shorten_path(work / driver_result.PLAN_FILE),
    ]  # fmt: skip


def _run_locust(driver_plan: LoadPlan, user_file: Path, work: Path) -> DriverResult:
    """Runs Locust to its end, showing how far it is.

    Raises:
        Unavailable: the deployment does not answer.
        CommandFailed: Locust failed, or did not end in time.
    """
    with console.step("Play the load") as step:

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
                f"Locust ended before the load; {console.shorten_path(work / driver_result.LOG_FILE)} tells more"
            )
        result = DriverResult.model_validate_json((work / driver_result.RESULT_FILE).read_text(encoding="utf-8"))
        if result.error:
            raise Unavailable(result.error)
        return result


def _compute_timeout(driver_plan: LoadPlan) -> float:
    """Seconds after which the driver must have ended, whatever the server does."""
    traffic = driver_plan.traffic
    probes = MAX_PROBES * len(driver_plan.models) + traffic.warm_up // load_plan.count_users(traffic) + 1
    return _START_TIMEOUT_S + probes * traffic.deadline + traffic.time_limit + traffic.deadline


def _read_progress(work: Path) -> Progress | None:
    try:
        return Progress.model_validate_json((work / driver_result.PROGRESS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def format_progress(progress: Progress) -> str:
    """Progress in one line."""
    if progress.phase != "load":
        return f"{progress.phase}: not counted"
    parts = [f"sent {progress.sent} of {progress.total}", f"answered {progress.answered}", f"failed {progress.failed}"]
    if progress.ttft_p95_ms is not None:
        parts.append(f"TTFT p95 so far {progress.ttft_p95_ms:.0f} ms")
    if progress.remaining_s:
        parts.append(f"about {progress.remaining_s:.0f} s left")
    return ", ".join(parts)


def _collect_versions(deployment: Deployment) -> dict[str, str]:
    """What ran, besides the driver: this program, and the engine by its own word where it can be asked."""
    versions = {"blueprint": importlib.metadata.version("llm-serving-blueprints")}
    if deployment.target != "local":
        return versions
    version_url = f"http://127.0.0.1:{deployment.engine_processes[0].port}/version"
    with contextlib.suppress(OSError, ValueError, KeyError), urllib.request.urlopen(version_url, timeout=5) as response:
        versions[deployment.engine] = str(json.load(response)["version"])
    return versions


def _save_run(run_report: Report, samples: list[Sample], work: Path, runs: Path) -> Path:
    """Puts the run's folder together and leads `latest` to it."""
    started = datetime.datetime.fromisoformat(run_report.started_at)
    name = started.strftime("%Y-%m-%dT%H-%M-%SZ")
    temp_folder = runs / f".{name}.{os.getpid()}"
    try:
        temp_folder.mkdir(parents=True)
        (temp_folder / REPORT_FILE).write_text(run_report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (temp_folder / PAGE_FILE).write_text(html_report.render(run_report, samples), encoding="utf-8")
        for path in sorted(work.iterdir()):
            if path.name not in (".lock", driver_result.PROGRESS_FILE, driver_result.RESULT_FILE):
                shutil.copy(path, temp_folder)
        run_folder = _find_free_path(runs / name)
        temp_folder.rename(run_folder)
    except BaseException:
        shutil.rmtree(temp_folder, ignore_errors=True)
        raise
    _update_link(runs.parent / LATEST, run_folder)
    return run_folder


def _find_free_path(path: Path) -> Path:
    """`path`, or where another run of the same second has it, the next name free."""
    count = 2
    candidate = path
    while candidate.exists():
        candidate, count = path.with_name(f"{path.name}-{count}"), count + 1
    return candidate


def _update_link(link: Path, destination: Path) -> None:
    """Points a symbolic link at a folder in one step."""
    temp_link = link.with_name(f".{link.name}.{os.getpid()}")
    temp_link.unlink(missing_ok=True)
    temp_link.symlink_to(os.path.relpath(destination, link.parent))
    temp_link.replace(link)
