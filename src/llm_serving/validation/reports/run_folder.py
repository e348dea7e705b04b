"""The folder of one validation run, RUNS/NAME/TIME: complete or absent.

Locust writes beside the deployment's logs, the report is assembled in a hidden folder, and that folder is renamed when
it is complete.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_serving import console, processes
from llm_serving.services.runs import REPORT_FILE as REPORT_FILE
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.validation.load import driver_result

PAGE_FILE = "report.html"

LATEST = "latest"
"""Link to the newest run of all deployments."""

_LOCK = ".lock"


@contextlib.contextmanager
def lock_work(logs: Path, name: str) -> Iterator[Path]:
    """Lock and empty the folder of a validation's files below `logs`: two loads at once would measure each other.

    Raises:
        Unavailable: another validation of the deployment `name` is running; its files stay. Or the block failed after
            the deployment was destroyed.
    """
    work = logs.resolve() / "validation"
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o700)  # prompts and answers
    with processes.lock_file(work / _LOCK, f"another validation of {name} is running"):
        for path in work.iterdir():
            if path.name != _LOCK:
                path.unlink()
        try:
            yield work
        except OSError:
            if work.is_dir():
                raise
            raise Unavailable(f"{name}: it was destroyed during its validation. Fix: deploy it again.") from None


def require_writable(runs: Path) -> None:
    """Refuse, before a load is sent for nothing, a folder of reports that cannot be written to or made.

    Raises:
        InputError: the deployment's name is that of the link to the newest run.
        Unavailable: they cannot.
    """
    if runs.name == LATEST:
        raise InputError(f"name: {LATEST}: {runs} is the link to the newest validation. Fix: use another name.")
    existing = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "it is read-only, or another user's" if existing.is_dir() else "it is a file"
        raise Unavailable(
            f"{console.shorten_path(existing)}: no report can be written there: {reason}. "
            "Fix: use a directory that you may write to."
        )


def publish(run_report: Any, page: str, work: Path, runs: Path) -> Path:
    """Write the folder of a run, with what `work` holds, for this user only; point `latest` to it; return its path.

    Args:
        run_report: of any kind, a pydantic model with `started_at` (UTC, ISO 8601).

    Raises:
        Unavailable: it cannot be written.
    """
    name = datetime.datetime.fromisoformat(run_report.started_at).strftime("%Y-%m-%dT%H-%M-%SZ")
    temp_folder = runs / f".{name}.{os.getpid()}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        temp_folder.mkdir(mode=0o700)
        (temp_folder / REPORT_FILE).write_text(run_report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (temp_folder / PAGE_FILE).write_text(page, encoding="utf-8")
        for path in sorted(work.iterdir()):
            if not path.name.startswith((".", Path(driver_result.PROGRESS_FILE).stem)):
                shutil.copy(path, temp_folder)
        for path in temp_folder.iterdir():
            path.chmod(0o600)
        run_folder = find_free_path(runs / name)
        temp_folder.rename(run_folder)
    except OSError as error:
        raise Unavailable(
            f"the report cannot be written to {console.shorten_path(runs)}: {error.strerror}. The files of the load "
            f"are in {console.shorten_path(work)} until the next one. Fix: make room there, then validate again."
        ) from None
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)
    _update_link(runs.parent / LATEST, run_folder)
    return run_folder


def find_free_path(path: Path) -> Path:
    """Return `path`, or with a run of the same second the next free name."""
    count = 2
    candidate = path
    while candidate.exists():
        candidate, count = path.with_name(f"{path.name}-{count}"), count + 1
    return candidate


def _update_link(link: Path, destination: Path) -> None:
    """Replace a symbolic link in one step."""
    temp_link = link.with_name(f".{link.name}.{os.getpid()}")
    temp_link.unlink(missing_ok=True)
    temp_link.symlink_to(os.path.relpath(destination, link.parent))
    temp_link.replace(link)
