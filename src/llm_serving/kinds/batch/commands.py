"""`blueprint batch`: jobs of a batch deployment: submit files of rows, watch them, get their results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from llm_serving import console
from llm_serving.kinds.batch import estimate
from llm_serving.kinds.batch import table as batch_table
from llm_serving.kinds.batch.blueprint import resolve_deadline
from llm_serving.kinds.batch.client import FINAL_STATES, BatchClient
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.worker_settings import PRIORITIES
from llm_serving.options import quantities
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Target
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable, quote_value, require_choice
from llm_serving.settings.units import Duration
from llm_serving.targets import registry
from llm_serving.validation.load import api_key

app = typer.Typer(help="Submit files of rows to a batch deployment.", no_args_is_help=True)

WATCH_INTERVAL_S = 1.0

OUTAGE_S = 300.0
"""How long a watch waits for an answer: a task or pod of the Batch API that ends has a successor within minutes."""

_RESUME = ". Fix: remove the cause, then blueprint batch resume"

_FIRST_STATES = ("validating", "cancelling")
"""States of a job that was just created or resumed."""

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `submit` prints it.")]
To = Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder for output.jsonl and errors.jsonl.")]
Again = Annotated[
    str | None, typer.Option(metavar="WORD", help="Run the same file again, under a word not yet used for it.")
]


@app.command()
def submit(
    folder: Folder,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Rows, plain, gzip, zstd or Parquet, or s3://BUCKET/KEY.")
    ],
    team: Annotated[str | None, typer.Option(metavar="TEAM", help="Team that submits it; default: the first.")] = None,
    priority: Annotated[
        str | None, typer.Option(metavar="PRIORITY", help="high, normal or low; default is the team's.")
    ] = None,
    deadline: Annotated[str | None, typer.Option(metavar="DEADLINE", help="Such as 8h; default is the team's.")] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Replaces `model` of every row.")] = None,
    again: Again = None,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For Parquet: a row with columns in braces, such as {title}.")
    ] = None,
    prompt_version: Annotated[
        str | None, typer.Option(metavar="WORD", help="Stored with each answer in the results cache.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count rows and tokens, and estimate time and cost; submit nothing.")
    ] = False,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    as_json: AsJson = False,
) -> None:
    """Submit a file of rows in OpenAI's batch format.

    The same file of the same team is the same job, however often it is submitted.
    """
    metadata = {
        "team": team,
        "priority": priority,
        "deadline": f"{quantities.parse('--deadline', deadline, Duration):g}" if deadline is not None else "",
        "model": model,
        "again": again,
        "prompt_version": prompt_version,
    }
    written = {name: value for name, value in metadata.items() if value}
    source = {"template": _read_template(template) if template else ""}
    with _open_deployment(folder, fleet, target) as (deployment, client):
        if team is not None:
            require_choice("--team", team, "team", deployment.teams, "choose")
        if priority is not None:
            require_choice("--priority", priority, "priority", PRIORITIES, "choose")
        source |= {"uri": file} if file.startswith("s3://") else {"file_id": _upload(client, Path(file))}
        if dry_run:
            _print_estimate(deployment, client, source, written, as_json)
            return
        job = client.create(**source, metadata=written)
    _print_submitted(job, folder, target, as_json)


@app.command()
def key(team: Annotated[str, typer.Argument(metavar="TEAM", help='The team; "*" for an operator of all.')]) -> None:
    """Make a key of the Batch API: the key for the team, shown once, and its hash for `api.keys`."""
    text = secrets.token_urlsafe(32)
    digest = hashlib.sha256(text.encode()).hexdigest()
    console.err.print(f"{api_key.VARIABLE} of {team}, and its entry in the document of keys:", markup=False)
    print(text)
    print(json.dumps({team: [f"sha256:{digest}"]}))


@app.command(name="list")
def list_(folder: Folder, fleet: Fleet = FLEET, target: Target = TARGET, as_json: AsJson = False) -> None:
    """List the jobs, the newest first."""
    with _open_deployment(folder, fleet, target) as (_, client):
        jobs = [_build_payload(job) for job in client.list_batches()]
    console.print_rows(jobs, batch_table.render_jobs(jobs), as_json=as_json)


@app.command()
def status(
    folder: Folder,
    job_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The job's id; without it, the usage of each team.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until the job ends.")] = False,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    as_json: AsJson = False,
) -> None:
    """Show a job, or the usage of each team.

    A job has its state, rows, failures by kind, tokens, rate, cost and remaining time. With --watch, exits 1 if the job
    failed, expired or was cancelled.
    """
    if watch and (as_json or job_id is None):
        raise InputError("--watch: it shows one job to a person. Fix: give an ID, and leave --json out.")
    if watch and job_id:
        _watch(folder, fleet, target, job_id)
        return
    with _open_deployment(folder, fleet, target) as (_, client):
        if job_id is None:
            teams = client.list_teams()
            console.print_rows(teams, batch_table.render_teams(teams), as_json=as_json)
            return
        payload, workers = _build_payload(client.read(job_id)), [] if as_json else client.list_workers()
    console.print_rows(payload, batch_table.render_job(payload, workers), as_json=as_json)


@app.command()
def cancel(
    folder: Folder, job_id: JobId, fleet: Fleet = FLEET, target: Target = TARGET, as_json: AsJson = False
) -> None:
    """Cancel a job: rows in flight finish, the errors file lists the others."""
    with _open_deployment(folder, fleet, target) as (_, client):
        payload = _build_payload(client.cancel(job_id))
    if as_json:
        console.print_json(payload)
    else:
        had_ended = ": it had ended before" if payload["state"] in FINAL_STATES else ""
        console.out.print(f"{payload['id']}: {payload['state']}{had_ended}", markup=False)


@app.command()
def results(folder: Folder, job_id: JobId, to: To = Path(), fleet: Fleet = FLEET, target: Target = TARGET) -> None:
    """Download the results of a finished job to output.jsonl and errors.jsonl."""
    with _open_deployment(folder, fleet, target) as (_, client):
        job = client.read(job_id)
        _download_results(client, job, to)
    counts = job["request_counts"]
    console.out.print(
        f"{console.shorten_path(to / 'output.jsonl')}: {counts['completed']} rows; "
        f"{console.shorten_path(to / 'errors.jsonl')}: {counts['failed']}",
        markup=False,
    )


@app.command(name="retry-errors")
def retry_errors(
    folder: Folder,
    job_id: JobId,
    again: Again = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    as_json: AsJson = False,
) -> None:
    """Submit the failed rows of a finished job as a new job, except those that can never run."""
    with _open_deployment(folder, fleet, target) as (_, client):
        job = client.retry(job_id, again or "")
    _print_submitted(job, folder, target, as_json)


@app.command()
def resume(
    folder: Folder, job_id: JobId, fleet: Fleet = FLEET, target: Target = TARGET, as_json: AsJson = False
) -> None:
    """Continue a failed job once its cause is gone. Finished rows keep their results, and its deadline stays."""
    with _open_deployment(folder, fleet, target) as (_, client):
        job = client.resume(job_id)
    _print_submitted(job, folder, target, as_json)


@contextlib.contextmanager
def _open_deployment(folder: Path, fleet: Path, target: str) -> Iterator[tuple[BatchDeployment, BatchClient]]:
    """Open a batch deployment's API: on AWS by a tunnel to one of its tasks, which closes after the block."""
    with registry.load_target(target).open_validation(folder, fleet, None) as inputs:
        deployment: Any = inputs.deployment
        if not isinstance(deployment, BatchDeployment):
            raise InputError(f"{folder}: kind: {deployment.kind}: it has no jobs. Fix: name a batch blueprint.")
        yield deployment, BatchClient(inputs.options.url or deployment.url)


def _watch(folder: Path, fleet: Path, target: str, job_id: str) -> None:
    """Show a job in place until it ends; only its end if the output is no terminal.

    Raises:
        CheckFailed: it did not complete.
        Unavailable: as of `_read_until_end`.
    """
    payload: dict[str, Any] = {}
    try:
        with Live(console=console.out, auto_refresh=False, transient=True) as live:
            for read, shown in _read_until_end(folder, fleet, target, job_id):
                payload = read
                live.update(shown, refresh=True)
    finally:  # after Ctrl-C too, and whole: a live display is cut to the terminal's width
        if payload:
            console.out.print(batch_table.render_job(payload, ()))
    if payload["state"] == "failed":
        raise CheckFailed(f"{job_id}: failed: {payload['errors'][0]['message']}{_RESUME}")
    if payload["state"] != "completed":
        raise CheckFailed(f"{job_id}: {payload['state']}")


def _read_until_end(
    folder: Path, fleet: Path, target: str, job_id: str
) -> Iterator[tuple[dict[str, Any], RenderableType]]:
    """Yield a job each second and what is shown of it; during an outage the job as it was, and the reason.

    Raises:
        Unavailable: the API never answered, or not again for `OUTAGE_S`.
    """
    answered_at, payload = -math.inf, dict[str, Any]()
    while True:
        try:
            with _open_deployment(folder, fleet, target) as (_, client):
                while (payload := _build_payload(client.read(job_id)))["state"] not in FINAL_STATES:
                    answered_at = time.monotonic()
                    yield payload, batch_table.render_job(payload, client.list_workers())
                    time.sleep(WATCH_INTERVAL_S)
            yield payload, ""
            return
        except Unavailable as error:
            if time.monotonic() - answered_at > OUTAGE_S:
                raise
            yield payload, Text(str(error))
        time.sleep(WATCH_INTERVAL_S)


def _print_estimate(
    deployment: BatchDeployment, client: BatchClient, source: dict[str, str], metadata: dict[str, str], as_json: bool
) -> None:
    team_name = metadata.get("team") or next(iter(deployment.teams))
    team = deployment.teams[team_name]
    with console.step("Count rows and tokens"):
        counts = client.count(**source, model=metadata.get("model", ""))
    payload = estimate.build(
        deployment,
        counts,
        list(client.list_batches()),
        team=team_name,
        priority=metadata.get("priority") or team.priority,
        deadline_s=float(metadata.get("deadline") or resolve_deadline(team, deployment.limits)),
    )
    console.print_rows(payload, batch_table.render_estimate(payload), as_json=as_json)


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--template: {quote_value(file)}: {error}. Fix: name a file with a row.") from None


def _upload(client: BatchClient, file: Path) -> str:
    with console.step(f"Upload {console.shorten_path(file)}") as step:
        return client.upload(file, step.note_bytes)


def _print_submitted(job: dict[str, Any], folder: Path, target: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"id": job["id"], "state": job["status"]}))
        return
    console.out.print(f"{job['id']}: {job['status']}", markup=False)
    if job["status"] not in _FIRST_STATES:
        note = "The same rows were submitted before, and that job stays as it is. --again WORD runs them once more."
        console.out.print(note, markup=False)
    option = "" if target == TARGET else f" --target {target}"
    console.out.print(f"Next: blueprint batch status {console.shorten_path(folder)} {job['id']}{option}", markup=False)


def _download_results(client: BatchClient, job: dict[str, Any], folder: Path) -> None:
    if job["status"] not in FINAL_STATES:
        counts = job["request_counts"]
        done = counts["completed"] + counts["failed"]
        raise CheckFailed(f"{job['id']}: {job['status']}, {done} of {counts['total']} rows. Fix: wait for its end.")
    if not job["output_file_id"]:
        reason = job["errors"]["data"][0]["message"] if job["errors"] else "it ended before its rows ran"
        fix = _RESUME if job["status"] == "failed" else ""
        raise CheckFailed(f"{job['id']}: {job['status']}, without results: {reason}{fix}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, file_id in (("output.jsonl", job["output_file_id"]), ("errors.jsonl", job["error_file_id"])):
        with console.step(f"Download {name}") as step:
            client.download(file_id, folder / name, step.note_bytes)


def _build_payload(job: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "team", "priority", "request_counts", "failures", "tokens", "endpoint_s", "cost_usd", "created_at",
             "in_progress_at", "expires_at")  # fmt: skip
    ended = next((job[f"{state}_at"] for state in FINAL_STATES if job.get(f"{state}_at")), None)
    errors = job["errors"]["data"] if job["errors"] else []
    return {"state": job["status"], **{name: job[name] for name in names}, "ended_at": ended, "errors": errors}
