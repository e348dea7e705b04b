"""Applies stacks to the embedded AWS with the real Terraform and the real AWS provider, and destroys them again.

What is applied is the synthesized stack, byte for byte what AWS would get. An override file beside it, in the run's own
folder, leads the provider and the state to the embedded AWS.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.console import Step
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator, inventory, override
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.terraform import events, runner, stack_folder, state, synthesis
from llm_serving.terraform.events import Event

# The embedded AWS answers at once, and the provider waits 5 to 10 s for many a resource all the same: 40 at a time.
_APPLY = ("apply", "-auto-approve", "-input=false", "-parallelism=40")
_DESTROY = ("destroy", "-auto-approve", "-input=false", "-parallelism=40")

_POLL_S = 0.5


def apply(
    document: Document[Fleet], folders: Mapping[str, Path], program: runner.Terraform, endpoint: str
) -> dict[str, dict[str, Any]]:
    """Apply stacks that `prepare` synthesized to a new embedded AWS, and return each stack's outputs.

    Args:
        endpoint: URL of the embedded AWS.

    Raises:
        Unavailable: the embedded AWS stopped answering.
        CommandFailed: Terraform failed.
    """
    _prepare_apply(document, folders, endpoint)
    with console.step(f"Apply {join_words(folders)} to the embedded AWS with {program}") as step:
        step.note = _apply_waves(program, folders, endpoint, lambda note: setattr(step, "note", note))
    return {name: state.read_outputs(folder) for name, folder in folders.items()}


def _prepare_apply(document: Document[Fleet], folders: Mapping[str, Path], endpoint: str) -> None:
    _require_emulator(endpoint)
    for folder in folders.values():
        state.delete(folder)  # of an embedded AWS that has ended, with its resources
        override.write_override(folder, document.value, endpoint)


def _apply_waves(
    program: runner.Terraform, folders: Mapping[str, Path], endpoint: str, on_progress: Callable[[str], None]
) -> str:
    with _explain_failure(endpoint):
        stack_folder.initialize(program, folders)
        results: dict[str, runner.Result] = {}
        for wave in synthesis.split_waves(folders):
            results |= runner.run(program, wave, _APPLY, on_progress=on_progress)
    return ", ".join(f"{name} {_format_counts(result.events)}" for name, result in results.items())


class _Cancelled(Exception):
    """Nobody needs the apply any more."""


class BackgroundApply:
    """An apply that goes on in a thread while the caller uses what it has created already."""

    def __init__(self, program: runner.Terraform, folders: Mapping[str, Path], endpoint: str) -> None:
        self._step = Step(f"Apply {join_words(folders)} with {program}", in_background=True)
        self._cancelled = threading.Event()
        self._threads = ThreadPoolExecutor(1, "terraform-apply")
        self._end = self._threads.submit(self._run, program, folders, endpoint)

    def wait_until(self, is_ready: Callable[[], bool], on_progress: Callable[[str], None]) -> None:
        """Wait until `is_ready`, or until the apply ends; raise what it failed with.

        Raises:
            BlueprintError: the apply failed.
        """
        while not self._end.done() and not is_ready():
            futures.wait([self._end], _POLL_S)
            on_progress(self._step.note)
        if self._end.done():
            self._end.result()

    def wait(self, on_progress: Callable[[str], None]) -> None:
        """Wait until it ends; see `wait_until`."""
        self.wait_until(lambda: False, on_progress)
        on_progress(self._step.note)  # it may have ended before
        console.record(self._step)

    def stop(self) -> None:
        """End Terraform if it still runs; it may take a while to record what it has created."""
        self._cancelled.set()
        self._threads.shutdown()

    def _run(self, program: runner.Terraform, folders: Mapping[str, Path], endpoint: str) -> None:
        start = time.monotonic()
        self._step.note = _apply_waves(program, folders, endpoint, self._report)
        self._step.seconds = time.monotonic() - start

    def _report(self, note: str) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
        self._step.note = note


@contextmanager
def apply_in_background(
    document: Document[Fleet], folders: Mapping[str, Path], program: runner.Terraform, endpoint: str
) -> Iterator[BackgroundApply]:
    """Apply stacks that `prepare` synthesized beside the block, and stop Terraform if the block ends before.

    Raises:
        Unavailable: the embedded AWS stopped answering.
        CommandFailed: Terraform could not be initialized.
    """
    _prepare_apply(document, folders, endpoint)
    stack_folder.initialize(program, folders)  # it may download the provider: here an interruption ends it at once
    background_apply = BackgroundApply(program, folders, endpoint)
    try:
        yield background_apply
    finally:
        background_apply.stop()


def check_unchanged(
    document: Document[Fleet], folders: Mapping[str, Path], program: runner.Terraform, endpoint: str
) -> None:
    """Plan applied stacks once more; a CheckFailed lists what would change."""
    with console.step(f"Check for drift: {', '.join(folders)}") as step, _explain_failure(endpoint):
        results = runner.run(program, folders, ("plan", "-detailed-exitcode", "-input=false"), success_codes=(0, 2))
        changes = {name: events.list_changes(result.events) for name, result in results.items() if result.code == 2}
        if changes:
            listing = "\n".join(f"  {name}: {line}" for name, lines in changes.items() for line in lines)
            logs = ", ".join(console.shorten_path(folders[name] / "plan.log") for name in changes)
            raise CheckFailed(
                f"{document.path}: after the apply a plan must be empty, and Terraform would change "
                f"{join_words(changes)} (full log: {logs}):\n{listing}"
            )
        step.note = "no changes"


def destroy(folders: Mapping[str, Path], program: runner.Terraform, endpoint: str) -> None:
    """Destroy the applied stacks, and whatever their buckets hold.

    Raises:
        Unavailable: the embedded AWS stopped answering.
        CommandFailed: Terraform failed.
    """
    with console.step(f"Destroy {join_words(folders)} in the embedded AWS") as step, _explain_failure(endpoint):
        for wave in reversed(synthesis.split_waves(folders)):
            runner.run(program, wave, _DESTROY, on_progress=lambda note: setattr(step, "note", note))
        for folder in folders.values():
            state.delete(folder)
        step.note = "done"


def check_nothing_left(document: Document[Fleet], *, endpoint: str) -> None:
    """Ask the embedded AWS itself whether any resource of the fleet is left; a CheckFailed lists them."""
    fleet = document.value
    if leftovers := inventory.list_resources(endpoint, fleet.region, fleet.name):
        listing = "\n".join(f"  {resource}" for resource in leftovers)
        raise CheckFailed(f"{document.path}: the destroy left {len(leftovers)} of the fleet's resources:\n{listing}")


def prepare(document: Document[Fleet], *, out: Path, data: Path, stacks: Sequence[str] | None) -> dict[str, Path]:
    """Synthesize to `out`, and fill each stack's working folder in `data`; return those by the stack's name."""
    with console.step(f"Synthesize the stacks of {console.shorten_path(document.path)}") as step:
        synthesized = synthesis.synthesize(document, out, stack_names=stacks or ())
        step.note = ", ".join(console.shorten_path(folder / stack_folder.FILE) for folder in synthesized.values())
    folders = {name: data / "stacks" / name for name in stacks or synthesized}
    for name, folder in folders.items():
        shutil.copytree(synthesized[name], folder, dirs_exist_ok=True)
    return folders


@contextmanager
def _explain_failure(endpoint: str) -> Iterator[None]:
    """Report an embedded AWS that has ended: it is then the cause of any failure of Terraform."""
    try:
        yield
    except console.CommandFailed:
        _require_emulator(endpoint)
        raise


def _require_emulator(endpoint: str) -> None:
    if not emulator.is_reachable(endpoint):
        raise Unavailable(f"the embedded AWS at {endpoint} does not answer. Fix: run the command again.")


def _format_counts(stream: Sequence[Event]) -> str:
    counts = events.find_summary(stream, "apply")
    return f"+{counts['add']} ~{counts['change']} -{counts['remove']}" if counts else "done"
