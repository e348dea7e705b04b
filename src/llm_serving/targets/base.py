"""The seam between the commands and where a deployment runs.

A target is a package next to this module: its module `target` holds `TARGET`, a `Target`. Patterns
render for it with a template TARGET.*.j2 in their folder. Nothing outside the package compares a target's name.
"""

# ruff: noqa: ARG002 - a target takes what others need

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.services import kinds
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.deployment import Deployment
from llm_serving.services.environment import Conventions, Environment
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.starts import Start
from llm_serving.validation.base import ValidationOptions

READY = "ready"
"""State of a replica that answers. Others are starting, stopped or failed here, and on AWS have their own reason."""

Confirm = Callable[[str], None]
"""Shows what will change, and raises where the user does not want it."""


@dataclass(frozen=True)
class DeploymentStatus:
    """What runs of a deployment."""

    name: str
    url: str | None
    """None where nothing is deployed yet."""

    rows_key: str
    """Name of the rows in JSON: `processes` on this machine, `members` on AWS."""

    rows: Sequence[Mapping[str, Any]]
    """One replica or process each, with at least `name` and `state`."""

    missing: str
    """What to say where there are no rows."""

    notes: Sequence[str] = ()
    """What the rows do not say, such as scaling that does not work."""

    @property
    def unready(self) -> list[str]:
        """The roles, or processes where a row has no role, that are not ready."""
        return sorted({str(row.get("role") or row["name"]) for row in self.rows if row["state"] != READY})

    def build_payload(self) -> dict[str, Any]:
        """Return what `status --json` prints."""
        return {
            "name": self.name,
            "url": self.url,
            self.rows_key: [dict(row) for row in self.rows],
            "notes": list(self.notes),
        }


class LoadOrigin(StrEnum):
    """From where a validation sends its load."""

    CLUSTER = "cluster"
    HERE = "here"


@dataclass(frozen=True)
class ValidationInputs:
    """A deployment that can be reached, and the options that reach it."""

    deployment: Deployment
    options: ValidationOptions


class Target(ABC):
    """Where a deployment runs."""

    name: str
    """Name of the package and of `--target`, and prefix of the patterns' templates."""

    conventions: Conventions
    """Discovery, addresses and variables of its processes, which every kind is resolved with."""

    needs_aws: bool
    """Whether it runs in the fleet's AWS account; otherwise on this machine."""

    def check_kind(self, kind: str) -> None:
        """Refuse a kind of work that does not work with the target's conventions.

        Raises:
            InputError: with the kind's reason.
        """
        if reason := kinds.get(kind).find_refusal(self.conventions):
            raise InputError(f"kind: {kind}: {reason}. Fix: choose another --target.")

    @abstractmethod
    def resolve_environment(
        self, directory: DeploymentDir, blueprint: BaseBlueprint, fleet: Fleet, *, account: str | None, port: int | None
    ) -> Environment:
        """Find out the facts of a deployment's surroundings: ports, bucket, account.

        Args:
            account: the AWS account's number; None without credentials.
            port: the router's port on this machine; a free one is chosen if None.

        Raises:
            Unavailable: `port` is taken.
        """

    @abstractmethod
    def assume_environment(self, blueprint: BaseBlueprint, fleet: Fleet, *, cores: int) -> Environment:
        """Return an environment for a deployment that is only checked: asks nothing, claims nothing.

        Args:
            cores: of the machine that a deployment on this machine would have.
        """

    def render_companions(self, deployment: Deployment) -> Mapping[str, str]:
        """Return further files that are rendered beside the template's, by name."""
        return {}

    def find_mistakes(self, deployment: Deployment, text: str) -> Iterable[Mistake]:
        """Find what cannot work in what a user's own template rendered, each at its line of `text`.

        Raises:
            InputError: it cannot be read at all; at its line.
        """
        return ()

    @abstractmethod
    def diff(self, plan: DeploymentPlan) -> str:
        """Return what a deploy would change, one line each; empty where nothing."""

    @abstractmethod
    def deploy(self, plan: DeploymentPlan, confirm: Confirm, *, force: bool = False) -> DeploymentPlan | None:
        """Bring up the plan and wait until it is ready; returns what is deployed, None where nothing changed.

        Args:
            force: overwrite a rendered file that was edited by hand.

        Raises:
            CheckFailed: it did not become ready; what ran before runs again.
            Unavailable: a program is missing, or AWS, the cluster or this machine cannot do it.
        """

    @abstractmethod
    def read_status(self, folder: Path, fleet_file: Path) -> DeploymentStatus:
        """Ask what runs of the blueprint in `folder`."""

    @abstractmethod
    def read_starts(self, folder: Path, fleet_file: Path) -> list[Start]:
        """Read how long the replicas that run took to start; none where nothing is deployed."""

    @abstractmethod
    def show_logs(self, folder: Path, fleet_file: Path, process: str | None, *, lines: int, follow: bool) -> None:
        """Print the log output of one process or role, or of all."""

    @abstractmethod
    def open_validation(
        self,
        folder: Path,
        fleet_file: Path,
        url: str | None,
        *,
        aws: AwsSession | None = None,
        origin: LoadOrigin | None = None,
    ) -> AbstractContextManager[ValidationInputs]:
        """Open a way to the deployment's endpoint for a load test.

        Args:
            url: another endpoint to use, such as a gateway's.
            aws: the session to use on AWS; the user's own environment if None.
            origin: from where the load is sent; the target chooses if None.

        Raises:
            CheckFailed: the image of load drivers is not in the fleet's registry.
            InputError: the target has no such origin.
            Unavailable: the blueprint is not deployed, or its endpoint cannot be reached.
        """

    @abstractmethod
    def destroy(self, folder: Path, fleet_file: Path, confirm: Confirm, *, aws: AwsSession | None = None) -> bool:
        """Remove the deployment of the blueprint in `folder`; returns whether there was one.

        Args:
            aws: the session to use on AWS; the user's own environment if None.
        """
