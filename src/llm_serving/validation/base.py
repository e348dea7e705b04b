"""The validation seam: what `blueprint validate` calls, by the kind of the deployment."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from rich.console import RenderableType

from llm_serving.services import kinds
from llm_serving.settings.errors import CheckFailed, InputError

if TYPE_CHECKING:  # targets import this module, and need no reports
    from llm_serving.validation.load_target import LoadTarget


class MetricsPage(NamedTuple):
    """The metrics of one replica, in the format of Prometheus."""

    name: str
    role: str
    url: str


@dataclass(frozen=True)
class LoadSource:
    """From where a load is sent, if not from the machine that runs the deployment."""

    described: str
    """A sentence of the report."""

    is_limit: bool = False
    """Whether the way to the deployment may limit the load, so that the sentence is a remark."""

    play: Callable[[Any, Path], None] | None = None
    """Sends the plan's load for a Python file with the user, and leaves its files in the plan's folder; None sends it
    from here.
    """

    pages: tuple[MetricsPage, ...] = ()
    """What the load's first process reads before the load and after."""

    max_processes: int = 1
    """Processes that can send the load, where `play` does."""


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """How a deployment is validated, whatever its kind."""

    logs: Path
    """Folder of the deployment's logs, PROCESS.log each; the load driver writes to logs/validation."""

    runs: Path
    """Folder of the reports: RUNS/NAME/TIME."""

    folder: Path = Path()
    """The blueprint's folder, to which `traffic.data` and `traffic.trace` are relative."""

    url: str | None = None
    """Another address of the deployment, such as a gateway's; None for its own."""

    requests: int | None = None
    """Counted requests, or rows that can run; None for the blueprint's."""

    first_prompt: int = 0
    """Place in `traffic.data` of the first counted prompt."""

    user_file: Path | None = None
    """A Python file with another Locust user than the default."""

    driver: str | None = None
    """Name of a drop-in driver to send the load instead of Locust."""

    load_source: LoadSource | None = None
    """From where the load is sent; None for this machine, which the deployment runs on or is reached from."""


class Validator(Protocol):
    """A module that a kind names in `VALIDATOR`. Its reports are pydantic models, the same as their report.json."""

    def validate(self, deployment: Any, options: ValidationOptions) -> tuple[Any, Path]:
        """Run one validation; return the report and its folder, RUNS/NAME/TIME."""

    def build_target(self, deployment: Any, logs: Path) -> LoadTarget:
        """Return what a load of the deployment is sent to; of kinds that can be swept and tuned."""

    def render(self, report: Any, folder: Path) -> RenderableType:
        """Render the report that was saved in `folder`, for the terminal."""

    def require_slo(self, run_report: Any) -> None:
        """Accept a report that misses no objective; raises `CheckFailed` with each that it misses."""


def require_slo(run_report: Any) -> None:
    """Accept a report of any kind that misses no objective.

    Raises:
        CheckFailed: with each missed objective, its value and its limit; or with what the load does not show.
    """
    missed = [f"{objective.metric}: {objective.why}" for objective in run_report.missed]
    if run_report.verdict == "fail":
        raise CheckFailed("\n  ".join([f"{run_report.name} misses its SLO:", *missed]))
    if run_report.verdict == "not shown":
        title = f"this load does not show that {run_report.name} meets its SLO:"
        raise CheckFailed("\n  ".join([title, *run_report.not_shown, *missed]))


def load_validator(kind: str) -> Validator:
    """Load the validator of a kind; refuses one whose deployments have nothing to validate.

    Raises:
        InputError: deployments of this kind have nothing to validate.
    """
    module = kinds.get(kind).VALIDATOR
    if not module:
        raise InputError(f"kind: {kind}: a deployment of this kind has nothing to validate. Fix: run blueprint status.")
    return cast(Validator, importlib.import_module(module))
