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
from llm_serving.settings.errors import AnswerIsNo, InputError, Unavailable
from llm_serving.validation import driver_result, html_report, load_plan, prompts, report, weight_loading
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import Outcome, Progress
from llm_serving.validation.load_plan import Plan
from llm_serving.validation.report import Report
from llm_serving.workloads.serving import measured_prompts
from llm_serving.workloads.serving.deployment import Deployment

REPORT, PAGE = measured_prompts.REPORT, "report.html"

LATEST = "latest"

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
ASKED = 3 + math.ceil(len(prompts.VOCABULARY) / prompts.AT_ONCE)
"""Longest chain of questions to a model before the warm-up: two for what it understands, then what words cost."""

_START_S = 60.0
"""Longest that Locust may take to start and to end."""


def validate(
    deployment: Deployment,
    *,
    logs: Path,
    runs: Path,
    folder: Path | None = None,
    url: str | None = None,
    requests: int | None = None,
    user: Path | None = None,
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
    if user is not None and not user.is_file():
        raise InputError(f"--user: now {str(user)!r}: there is no such file. Write the path of a Python file.")
    work = logs.resolve() / "validation"
    with _alone(work, deployment.name):
        told = _plan(deployment, folder or Path.cwd(), work)
        found = _play(told, user or _LOCUSTFILE, work)
        with (work / driver_result.SAMPLES).open(encoding="utf-8") as lines:
            samples = [Sample.from_json(line) for line in lines]
        first = deployment.models[0]
        readers = [one for role in deployment.engines if role.serves == first for one in role.processes]
        read = weight_loading.read(first.weights, [logs / f"{one.name}.log" for one in readers])
        sent = measured_prompts.prompts(deployment.traffic, folder or Path.cwd())
        made = report.build(deployment, found, samples, read, _versions(deployment), sent)
        return made, _keep(made, samples, work, runs / deployment.name)


def gate(made: Report) -> None:
    """Raises:
    AnswerIsNo: naming each metric of the SLO that was missed, its value and its limit.
    """
    if made.missed:
        misses = "\n".join(f"  {miss.metric}: {miss.why}" for miss in made.missed)
        raise AnswerIsNo(f"{made.name} misses its SLO:\n{misses}")


@contextlib.contextmanager
def _alone(work: Path, name: str) -> Iterator[None]:
    """Holds the deployment's driver folder, emptied: two loads at once would measure each other."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnswerIsNo(f"another validation of {name} is running; wait for its end, or end it") from None
        for old in work.iterdir():
            if old.name != ".lock":
                old.unlink()
        yield


def _plan(deployment: Deployment, folder: Path, work: Path) -> Plan:
    """The driver's plan, written where Locust finds it."""
    traffic, data = deployment.traffic, None
    if traffic.data is not None:
        data = (folder / traffic.data).resolve()
        prompts.read_rows(data, traffic.api)  # a mistake in it is said before anything starts
    pages = {}
    if deployment.target == "local":
        pages = {one.name: f"http://127.0.0.1:{one.port}/metrics" for one in deployment.replicas}
    told = Plan(
        url=deployment.url,
        models=deployment.names,
        traffic=traffic,
        data=str(data) if data else None,
        engine_pages=pages,
        folder=str(work),
    )
    (work / driver_result.PLAN).write_text(told.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")
    return told


def command(told: Plan, user_file: Path) -> list[str]:
    """Locust's command line for a plan."""
    users = str(load_plan.users(told.traffic))
    work = Path(told.folder)
    return [
        sys.executable, "-m", "locust", "--headless", "--only-summary", "--exit-code-on-error", "0",
        "--locustfile", console.near(user_file), "--users", users, "--spawn-rate", users,
        "--csv", console.near(work / driver_result.CSV), "--plan", console.near(work / driver_result.PLAN),
    ]  # fmt: skip


def _play(told: Plan, user_file: Path, work: Path) -> Outcome:
    """Runs Locust to its end, showing how far it is.

    Raises:
        Unavailable: the deployment does not answer.
        CommandFailed: Locust failed, or did not end in time.
    """
    with console.step("Play the load") as step:

        def watch() -> None:
            if now := _progress(work):
                step.note = line(now)

        console.run(command(told, user_file), log=work / driver_result.LOG, timeout_s=_longest(told), watch=watch)
        watch()
        if not (work / driver_result.OUTCOME).is_file():
            raise Unavailable(f"Locust ended before the load; {console.near(work / driver_result.LOG)} tells more")
        found = Outcome.model_validate_json((work / driver_result.OUTCOME).read_text(encoding="utf-8"))
        if found.refused:
            raise Unavailable(found.refused)
        return found


def _longest(told: Plan) -> float:
    """Seconds after which the driver must have ended, whatever the server does."""
    traffic = told.traffic
    asked = ASKED * len(told.models) + traffic.warm_up // load_plan.users(traffic) + 1
    return _START_S + asked * traffic.deadline + traffic.time_limit + traffic.deadline


def _progress(work: Path) -> Progress | None:
    try:
        return Progress.model_validate_json((work / driver_result.PROGRESS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def line(now: Progress) -> str:
    """Progress in one line."""
    if now.phase != "load":
        return f"{now.phase}: not counted"
    parts = [f"sent {now.sent} of {now.total}", f"answered {now.answered}", f"failed {now.failed}"]
    if now.ttft_p95_ms is not None:
        parts.append(f"TTFT p95 so far {now.ttft_p95_ms:.0f} ms")
    if now.left_s:
        parts.append(f"about {now.left_s:.0f} s left")
    return ", ".join(parts)


def _versions(deployment: Deployment) -> dict[str, str]:
    """What ran, besides the driver: this program, and the engine by its own word where it can be asked."""
    found = {"blueprint": importlib.metadata.version("llm-serving-blueprints")}
    if deployment.target != "local":
        return found
    page_url = f"http://127.0.0.1:{deployment.replicas[0].port}/version"
    with contextlib.suppress(OSError, ValueError, KeyError), urllib.request.urlopen(page_url, timeout=5) as answer:
        found[deployment.engine] = str(json.load(answer)["version"])
    return found


def _keep(made: Report, samples: list[Sample], work: Path, runs: Path) -> Path:
    """Puts the run's folder together and leads `latest` to it."""
    started = datetime.datetime.fromisoformat(made.started_at)
    name = started.strftime("%Y-%m-%dT%H-%M-%SZ")
    fresh = runs / f".{name}.{os.getpid()}"
    try:
        fresh.mkdir(parents=True)
        (fresh / REPORT).write_text(made.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (fresh / PAGE).write_text(html_report.render(made, samples), encoding="utf-8")
        for path in sorted(work.iterdir()):
            if path.name not in (".lock", driver_result.PROGRESS, driver_result.OUTCOME):
                shutil.copy(path, fresh)
        kept = _free(runs / name)
        fresh.rename(kept)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    _lead(runs.parent / LATEST, kept)
    return kept


def _free(path: Path) -> Path:
    """`path`, or where another run of the same second has it, the next name free."""
    count = 2
    free = path
    while free.exists():
        free, count = path.with_name(f"{path.name}-{count}"), count + 1
    return free


def _lead(link: Path, to: Path) -> None:
    """Points a symbolic link at a folder in one step."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(to, link.parent))
    fresh.replace(link)
