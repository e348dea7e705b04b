"""The seam between kinds of work and all that stands below them, which calls them through `Kind`.

`kind:` at the top of blueprint.yaml names a package of `llm_serving.kinds`; `serving` where left out. Its module `kind`
has one object, KIND. To add a kind, add such a package and a pattern folder with its templates.
"""

# ruff: noqa: ARG002 - the defaults take what a kind that overrides them needs
from __future__ import annotations

import functools
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.services import rendered
from llm_serving.services.blueprint import DEFAULT_KIND, FILE_NAME, BaseBlueprint
from llm_serving.services.deployment import Deployment, FoundDeployment
from llm_serving.services.environment import Conventions, Environment
from llm_serving.services.load_program import LoadProgram
from llm_serving.services.local_server import LocalServer
from llm_serving.settings.document import Conflict, Document, load
from llm_serving.settings.errors import require_choice

_MODULE = "kind"

PACKAGE = "llm_serving.kinds"
"""Where the kinds are. They stand above this package, so it finds them by name."""


class Capability(StrEnum):
    """A command that only some kinds can do, and why the others cannot."""

    SWEEP = "sweep", "its SLO has no limit that a higher load could miss"
    TUNE = "tune", "its configurations cannot be compared by the load that each of them carries"
    BASELINE = "baseline", "it has no prefill and decode that could run together"
    SWITCH = "switch", "its blueprint names no engine and no framework"
    SHIFT = "shift", "no route splits its requests"
    ALERTS = "alerts", "its alarms are CloudWatch's"
    DASHBOARDS = "dashboards", "its metrics are CloudWatch's"
    ADAPTER = "adapter", "it runs no engines that could load an adapter"

    reason: str

    def __new__(cls, command: str, reason: str) -> Capability:
        member = str.__new__(cls, command)
        member._value_ = command
        member.reason = reason
        return member


B = TypeVar("B", bound=BaseBlueprint)
D = TypeVar("D", bound=Deployment)


ReadRemoteFiles = Callable[[str, str], tuple[Container[str], str] | None]
"""Returns the names below s3://BUCKET/PREFIX and the text of one of them; None where access is denied."""

Connect = Callable[[str], Any]
"""Returns a client of a service of AWS."""


class Kind(ABC, Generic[B, D]):
    """One kind of work. A target renders, deploys, watches and removes what `resolve` returns.

    A kind overrides what differs from these defaults; `SETTINGS`, `DEPLOYMENT` and `resolve` it must have.
    """

    NAME: ClassVar[str]
    SETTINGS: type[B]
    DEPLOYMENT: type[D]

    VALIDATOR: ClassVar[str] = ""
    """Module that `blueprint validate` runs, with the functions of `validation.base.Validator`; empty for none."""

    CAPABILITIES: ClassVar[frozenset[Capability]] = frozenset()
    """Commands that it can do beside those that all kinds can."""

    def find_refusal(self, conventions: Conventions) -> str:
        """Return the reason why a target with these conventions cannot carry this kind; empty where it can."""
        return ""

    def read(self, folder: Path) -> Document[B]:
        """Read the blueprint in `folder`.

        Raises:
            InputError: with every mistake of its file.
        """
        return load(folder / FILE_NAME, self.SETTINGS)

    def list_port_names(self, blueprint: B) -> list[str]:
        """Return the names of the ports that a target must choose where processes share one machine."""
        return []

    def list_local_servers(self, blueprint: B) -> tuple[LocalServer, ...]:
        """Return the servers that its processes need on this machine, in the order of starting."""
        return ()

    def get_engine(self, blueprint: B) -> str:
        """Return the engine whose environment on this machine the services need; empty for the default one's."""
        return ""

    def get_framework(self, blueprint: B) -> str:
        """Return the framework that runs this engine; empty for a kind without frameworks."""
        return ""

    def can_fork(self, blueprint: B) -> bool:
        """Return whether an engine on this machine may fork when it starts further processes, all imports done.

        One that has threads by then would hang, and forks before it has them.
        """
        return True

    def read_measurements(self, blueprint: Document[B], environment: Environment, root: Path) -> Environment:
        """Return the environment with what earlier reports below `root` measured of this blueprint."""
        return environment

    @abstractmethod
    def resolve(self, blueprint: Document[B], fleet: Document[Fleet], environment: Environment) -> D:
        """Decide every number of the deployment.

        Raises:
            InputError: it cannot work; with every reason at its line of the blueprint.
        """

    def check_remote_files(self, blueprint: B, read_files: ReadRemoteFiles) -> Iterable[Conflict]:
        """Yield files in S3 that the blueprint names and that do not do, before a deploy on AWS changes anything."""
        return ()

    def prepare(self, deployment: D) -> None:
        """Make what its stack uploads from this machine, before a deploy on AWS changes anything."""
        return

    def list_managed(self, deployment: D, connect: Connect) -> list[dict[str, Any]]:
        """Return a row of `status` for each service of AWS that does the deployment's work instead of replicas.

        Args:
            connect: returns a client of a service.
        """
        return []

    def stop_work(self, deployment: D, connect: Connect, remove_services: Callable[[], None]) -> None:
        """Stop what keeps AWS from deleting the deployment's stack.

        Args:
            remove_services: removes the stack's ECS services, which would start again what is stopped.
        """
        return

    def build_load_program(self, deployment: D) -> LoadProgram | None:
        """Return what sends the load of a deployment on AWS that answers no requests; None where no load is sent."""
        return None

    def find_addresses(self, deployment: D, connect: Connect) -> D:
        """Return the deployment with those addresses that AWS chose.

        Args:
            connect: returns a client of a service.
        """
        return deployment

    REFRESHED: ClassVar[tuple[str, ...]] = ()
    """Settings that need no new deploy: fields of the blueprint, and of the deployment."""

    def refresh(self, deployment: D, blueprint: B) -> D:
        """Return the deployment with those settings of the blueprint as it is now that need no new deploy."""
        return deployment.model_copy(update={name: getattr(blueprint, name) for name in self.REFRESHED})

    def describe_for_others(self, deployment: D) -> FoundDeployment:
        """Return what other deployments need of one to call it."""
        models = tuple(model.name for model in deployment.served_models)
        return FoundDeployment(name=deployment.name, kind=deployment.kind, url=deployment.url, models=models)

    def price(self, deployment: D) -> float | None:
        """Return what a deployment costs in USD an hour; None where that is unknown."""
        return None

    def price_instances(self, deployment: D) -> float | None:
        """Return what the deployment's instances cost in USD an hour, each as a whole; None where that is unknown."""
        return None

    def fix_replicas(self, blueprint: B) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return other values of keys, None for none, by the key path of each role whose replicas come and go by load:
        with them, as many stay."""
        return {}

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        """Return what the stack of a rendered deployment rents beside instances, whether it is used or not.

        Raises:
            InputError: the rendered file is wrong.
        """
        return ()

    def estimate_load(self, deployment: D) -> float | None:
        """Return the load that a deployment might carry, to compare it with others; None where that is unknown."""
        return None

    def move_to_pool(self, blueprint: Document[B], pool: str) -> Document[B]:
        """Return the blueprint with all of its work on another pool of the fleet."""
        return blueprint

    def describe(self, blueprint: Document[B], deployment: D) -> Iterable[tuple[str, str]]:
        """Return rows of `check`: a label of at most 10 characters, and a line about it."""
        return ()

    def build_summary(self, deployment: D) -> dict[str, Any]:
        """Return what `check --json` shows of the deployment, beside name, kind, target and fleet."""
        return {}


@functools.cache
def list_kinds() -> tuple[str, ...]:
    """List all kinds, the default one first."""
    packages = {
        path.parent.name.replace("_", "-") for path in (Path(__file__).parents[1] / "kinds").glob(f"*/{_MODULE}.py")
    }
    return (DEFAULT_KIND, *sorted(packages - {DEFAULT_KIND}))


@functools.cache
def get(kind: str) -> Kind[Any, Any]:
    """Return a kind by its name.

    Raises:
        InputError: there is no such kind; names all of them.
    """
    require_choice("kind", kind, "kind", list_kinds())
    module = importlib.import_module(f"{PACKAGE}.{kind.replace('-', '_')}.{_MODULE}")
    implementation: Kind[Any, Any] = module.KIND
    return implementation


def get_for(document: Document[Any]) -> Kind[Any, Any]:
    return get(document.value.kind)


def list_rented(fleet: Document[Fleet], root: Path) -> list[Units]:
    """Return what all deployments of the fleet that are rendered below `root` rent beside instances.

    Raises:
        InputError: a rendered file is wrong.
    """
    files = rendered.find(fleet.value, root)
    units = [units for file in files for units in get(rendered.read_kind(file, fleet.value)).list_rented(file, fleet)]
    return [*units, *rendered.list_chart_balancers(fleet.value, root)]


def load_deployment(text: str) -> Deployment:
    """Load a saved deployment of any kind from its JSON.

    Raises:
        ValueError: it is not the JSON of a deployment, or another version of this program, with other fields, saved it.
        InputError: its kind is not known.
    """
    document = json.loads(text)
    kind = document.get("kind", DEFAULT_KIND) if isinstance(document, dict) else DEFAULT_KIND
    loaded: Deployment = get(str(kind)).DEPLOYMENT.model_validate_json(text)
    return loaded
