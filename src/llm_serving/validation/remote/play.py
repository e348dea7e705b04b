"""Send a load from inside the deployment's network, and bring home what a load from here would have left."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llm_serving import console
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import CheckFailed
from llm_serving.validation.load import driver_result
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.remote import mailbox as mailboxes
from llm_serving.validation.remote.mailbox import Mailbox
from llm_serving.validation.remote.messages import USER_FILE, DriverState

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
        data = Path(plan.data) if plan.data else None
        if data:
            files[data.name] = data.read_text(encoding="utf-8")
        plan = plan.model_copy(update={"lead_s": LEAD_S, "data": data.name if data else None})
        prefix = f"load-tests/{plan.nonce}/"
        with mailboxes.open_mailbox(self.aws, self.bucket, prefix) as mailbox:
            mailbox.post_inputs(plan, files)
            # Containers read their input when they start, which may be after machines have.
            life_s = int(self.start_limit_s) + mailboxes.URL_LIFE_S
            urls = [mailbox.sign_input(shard, life_s) for shard in range(plan.processes)]
            load = _Load(plan, files, mailbox)
            with self.launch(urls) as containers:
                load.wait_for_start(containers, self.start_limit_s)
                load.wait_for_end(containers)
            for shard in range(plan.processes):
                _unpack(mailbox.read_archive(shard), Path(plan.folder))


class _Load:
    """One load and the state of its containers."""

    def __init__(self, plan: LoadPlan, files: dict[str, str], mailbox: Mailbox) -> None:
        self._plan, self._files, self._mailbox = plan, files, mailbox
        self._renewed_at = time.monotonic()
        self._states: dict[int, DriverState] = {}

    def wait_for_start(self, containers: Containers, limit_s: float) -> None:
        """Wait until every container runs."""
        count = self._plan.processes
        deadline = time.monotonic() + limit_s
        with console.step(f"Start {count} load driver{'s' if count > 1 else ''} beside the deployment") as step:
            while self._look(containers) < count:
                if time.monotonic() > deadline:
                    raise CheckFailed(
                        f"the load drivers did not start within {limit_s / 60:.0f} min: {step.note}. "
                        "Fix: increase the size of their pool, or use --load-from here."
                    )
                step.note = containers.describe()
                time.sleep(POLL_S)
            step.note = containers.describe()

    def wait_for_end(self, containers: Containers) -> None:
        """Wait until every container has sent its result, and show the progress."""
        deadline = time.monotonic() + self._plan.timeout_s + _END_S
        with console.step("Run the load test") as step:
            while any(self._states[shard].exit_code is None for shard in range(self._plan.processes)):
                if time.monotonic() > deadline:
                    limit_s = self._plan.timeout_s + _END_S
                    raise CheckFailed(
                        f"the load did not end within {limit_s:.0f} s: {step.note}. Fix: lower traffic.time_limit."
                    )
                parts = [state.progress for state in self._states.values() if state.progress]
                if parts:
                    whole = driver_result.merge_progress(parts, self._plan.traffic.requests)
                    step.note = driver_result.format_progress(whole)
                time.sleep(POLL_S)
                self._look(containers)

    def _look(self, containers: Containers) -> int:
        """Read all states and renew the URLs in time; return how many containers have said something.

        Raises:
            CheckFailed: a process failed, or a container ended without a word.
        """
        # Asked first: what a container said before it ended is then among the states.
        failure = containers.find_failure()
        for shard in range(self._plan.processes):
            if (state := self._mailbox.read_state(shard)) is not None:
                self._states[shard] = state
        for shard, state in self._states.items():
            if state.exit_code:
                raise CheckFailed(
                    f"load driver {shard} failed with exit code {state.exit_code}. Fix: correct what its log names:\n"
                    f"{state.log}"
                )
        if failure:
            raise CheckFailed(f"a load driver ended without a result: {failure}. Fix: run it again.")
        if time.monotonic() - self._renewed_at > RENEW_S:
            self._mailbox.post_inputs(self._plan, self._files)
            self._renewed_at = time.monotonic()
        return len(self._states)


def _unpack(body: bytes, work: Path) -> None:
    """Unpack a container's folder: plain files alone, none of which replaces another's."""
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name == member.name and not (work / name).exists():
                content = archive.extractfile(member)
                assert content is not None
                (work / name).write_bytes(content.read())
