"""Send a load from inside the deployment's network, and bring home what a load from here would have left."""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llm_serving import console
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import CheckFailed
from llm_serving.validation.load import driver_result
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.remote import mailbox as mailboxes
from llm_serving.validation.remote.mailbox import Mailbox
from llm_serving.validation.remote.messages import DATA_FILE, USER_FILE, DriverState

POLL_S = 2.0
RENEW_S = 120.0
"""How often containers get new URLs."""

LEAD_S = 5.0
"""Time from the first process's word to the start: the others hear it through two polls of a relay."""

_END_S = 120.0
"""Time for the containers to send their results after the longest load."""


class Containers(Protocol):
    """The containers of one load, which run."""

    def describe(self) -> str:
        """Say how far they are, in the orchestrator's words."""
        ...

    def find_failure(self) -> str | None:
        """Return why one of them ended without a result; None if none did."""
        ...


Launch = Callable[[Sequence[str]], AbstractContextManager[Containers]]
"""Starts one container for each input's URL, and removes all of them after the block, whatever happens."""


@dataclass(frozen=True)
class ProgramLoad:
    """A load that one container sends with another program than this package."""

    plan: Mapping[str, Any]
    results: tuple[str, ...]
    """Names of the files that it leaves."""

    timeout_s: float
    timeout_fix: str
    """What to do about a load that takes longer."""


@dataclass(frozen=True)
class RemoteDrivers:
    """What sends a load from inside the deployment's network."""

    aws: AwsSession
    bucket: str
    """The fleet's results bucket."""

    launch: Launch
    start_limit_s: float
    """Longest time until all containers run, with the start of machines."""

    def play(self, plan: LoadPlan, user_file: Path) -> None:
        """Send a plan's load; leaves the files of its processes in the plan's folder.

        Raises:
            CheckFailed: the containers did not start in time, or one of them failed.
            Unavailable: AWS or the cluster cannot be asked.
        """
        files = {USER_FILE: user_file.read_text(encoding="utf-8")}
        if plan.data:
            files[DATA_FILE] = Path(plan.data).read_text(encoding="utf-8")
        plan = plan.model_copy(update={"lead_s": LEAD_S, "data": DATA_FILE if plan.data else None})
        with self._open_mailbox(plan.nonce) as mailbox:
            load = _Load(
                mailbox,
                post_inputs=lambda: mailbox.post_inputs(plan, files),
                count=plan.processes,
                timeout_s=plan.timeout_s,
                start_fix="increase the size of their pool, or use --load-from here",
                timeout_fix="lower traffic.time_limit",
            )
            self._run(load, mailbox, total=plan.traffic.requests)
            for shard in range(plan.processes):
                _unpack(mailbox.read_archive(shard), Path(plan.folder))

    def send(self, program_load: ProgramLoad, folder: Path) -> None:
        """Send a program's load; leaves its files in `folder`.

        Raises:
            CheckFailed: the container did not start in time, or the program failed.
            Unavailable: AWS or the cluster cannot be asked.
        """
        with self._open_mailbox(secrets.token_hex(8)) as mailbox:
            load = _Load(
                mailbox,
                post_inputs=lambda: mailbox.post_program(program_load.plan, program_load.results),
                count=1,
                timeout_s=program_load.timeout_s,
                start_fix="remove what it waits for, and run it again",
                timeout_fix=program_load.timeout_fix,
            )
            self._run(load, mailbox)
            for name in program_load.results:
                mailbox.fetch(name, folder)

    def _open_mailbox(self, nonce: str) -> AbstractContextManager[Mailbox]:
        return mailboxes.open_mailbox(self.aws, self.bucket, f"load-tests/{nonce}/")

    def _run(self, load: _Load, mailbox: Mailbox, total: int | None = None) -> None:
        load.post_inputs()
        # Containers read their input when they start, which may be after machines have.
        life_s = int(self.start_limit_s) + mailboxes.URL_LIFE_S
        with self.launch([mailbox.sign_input(shard, life_s) for shard in range(load.count)]) as containers:
            load.wait_for_start(containers, self.start_limit_s)
            load.wait_for_end(containers, total)


@dataclass
class _Load:
    mailbox: Mailbox
    post_inputs: Callable[[], None]
    count: int
    timeout_s: float
    start_fix: str
    timeout_fix: str
    renewed_at: float = field(default_factory=time.monotonic)
    states: dict[int, DriverState] = field(default_factory=dict)

    def wait_for_start(self, containers: Containers, limit_s: float) -> None:
        """Wait until every container runs."""
        deadline = time.monotonic() + limit_s
        plural = "s" if self.count > 1 else ""
        with console.step(f"Start {self.count} load driver{plural} beside the deployment") as step:
            while self._look(containers) < self.count:
                if time.monotonic() > deadline:
                    raise CheckFailed(
                        f"the load drivers did not start within {limit_s / 60:.0f} min: {step.note}. "
                        f"Fix: {self.start_fix}."
                    )
                step.note = containers.describe()
                time.sleep(POLL_S)
            step.note = containers.describe()

    def wait_for_end(self, containers: Containers, total: int | None) -> None:
        """Wait until every container has sent its result, and show the progress, of `total` requests if it is known."""
        limit_s = self.timeout_s + _END_S
        deadline = time.monotonic() + limit_s
        with console.step("Run the load test") as step:
            while any(self.states[shard].exit_code is None for shard in range(self.count)):
                if time.monotonic() > deadline:
                    raise CheckFailed(
                        f"the load did not end within {limit_s:.0f} s: {step.note}. Fix: {self.timeout_fix}."
                    )
                parts = [state.progress for state in self.states.values() if state.progress]
                if parts:
                    whole = driver_result.merge_progress(parts, parts[0].total if total is None else total)
                    step.note = driver_result.format_progress(whole)
                time.sleep(POLL_S)
                self._look(containers)

    def _look(self, containers: Containers) -> int:
        """Read all states and renew the URLs in time; return how many containers have said something."""
        # Asked first: what a container said before it ended is then among the states.
        failure = containers.find_failure()
        for shard in range(self.count):
            if (state := self.mailbox.read_state(shard)) is not None:
                self.states[shard] = state
        for shard, state in self.states.items():
            if state.exit_code:
                raise CheckFailed(
                    f"load driver {shard} failed with exit code {state.exit_code}. Fix: correct what its log names:\n"
                    f"{state.log}"
                )
        if failure:
            raise CheckFailed(f"a load driver ended without a result: {failure}. Fix: run it again.")
        if time.monotonic() - self.renewed_at > RENEW_S:
            self.post_inputs()
            self.renewed_at = time.monotonic()
        return len(self.states)


def _unpack(body: bytes, work: Path) -> None:
    """Unpack a container's folder: plain files only, none of which replaces another's."""
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name == member.name and not (work / name).exists():
                content = archive.extractfile(member)
                assert content is not None
                (work / name).write_bytes(content.read())
