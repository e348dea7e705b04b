"""The containers of a role's replicas on AWS, in which a command can be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RunCommand(Protocol):
    """Runs a command in a container."""

    def __call__(self, command: list[str], line: str = "", *, limit_s: float) -> str:
        """Return what it printed.

        Args:
            line: what it reads from its input, or its last argument on ECS, whose input is a terminal.

        Raises:
            Unavailable: it did not start, or did not end in time.
        """
        ...


@dataclass(frozen=True)
class ReplicaContainer:
    """The container of a service in one pod or task."""

    name: str
    """Of the pod or task."""

    answers: bool
    """Whether it answers requests: of a replica over several nodes the first one does, for which the others compute."""

    run: RunCommand
