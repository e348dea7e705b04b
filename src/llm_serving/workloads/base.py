"""The workload seam: a kind of work is a package beside this module, and targets call it through `Workload`.

`kind:` at the top of blueprint.yaml names the package; `serving` where left out. A package NAME has a module `workload`
with one object, WORKLOAD. To add a kind, add such a package and a pattern folder with its templates.
"""

# ruff: noqa: ARG002 - the defaults take what a kind that overrides them needs
from __future__ import annotations

import functools
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from llm_serving.fleet.model import Fleet, Name
from llm_serving.settings.document import Document, Settings
from llm_serving.settings.errors import InputError
from llm_serving.workloads.environment import Conventions, Environment, Process, ResolvedData

DEFAULT_KIND = "serving"

FILE_NAME = "blueprint.yaml"

_MODULE = "workload"


class BaseBlueprint(Settings):
    """What every kind's blueprint.yaml has."""

    kind: str = DEFAULT_KIND
    """What sort of work this is."""

    name: Name | None = None
    """Name of the deployment; the folder's name where left out."""


class BaseDeployment(ResolvedData):
    """A blueprint of any kind resolved against a fleet: frozen data, every number decided."""

    kind: str
    name: str
    target: str
    fleet: str
    environment: Environment
    notes: tuple[str, ...] = ()
    """What the user should know of this target, a sentence each."""

    emulated: tuple[str, ...] = ()
    """Parts that are emulated; shown with every result."""

    url: str = ""
    """Base URL for clients; empty where there is no endpoint."""

    @property
    @abstractmethod
    def worker_processes(self) -> tuple[Process, ...]:
        """The processes that do the work."""

    @property
    def endpoint_processes(self) -> tuple[Process, ...]:
        """The processes before the workers, which start after them; none where there is no endpoint."""
        return ()

    @property
    def processes(self) -> tuple[Process, ...]:
        """All that runs, in the order of starting: emulated AWS, the workers, what is before them."""
        return (*self.environment.services, *self.worker_processes, *self.endpoint_processes)

    @property
    def served_models(self) -> tuple[Any, ...]:
        """The models that clients can name; none where there is no inference API."""
        return ()

    @property
    def loaded_models(self) -> tuple[Any, ...]:
        """The models whose weights the bucket must hold before the workers start."""
        return ()


def resolve_name(blueprint: Document[Any]) -> str:
    """The deployment's name: as written, or the folder's.

    Raises:
        InputError: the folder's name is not a valid name.
    """
    if blueprint.value.name:
        name: str = blueprint.value.name
        return name
    folder = blueprint.path.resolve().parent.name
    try:
        return TypeAdapter(Name).validate_python(folder)
    except ValidationError:
        reason = "the folder's name is used, and is not a valid name"
        fix = "name: NAME, 2 to 32 of a-z, 0-9 and -"
        raise InputError([blueprint.build_mistake(["name"], folder, reason, fix)]) from None


B = TypeVar("B", bound=BaseBlueprint)
D = TypeVar("D", bound=BaseDeployment)


class Workload(ABC, Generic[B, D]):
    """One kind of work. A target renders, deploys, watches and removes what `resolve` returns.

    A kind overrides what differs from these defaults; `SETTINGS`, `DEPLOYMENT`, `resolve` and `describe` it must have.
    """

    KIND: ClassVar[str]
    SETTINGS: type[B]
    DEPLOYMENT: type[D]

    VALIDATOR: ClassVar[str] = ""
    """Module that `blueprint validate` runs, with the functions of `validation.base.Validator`; empty for none."""

    def find_refusal(self, conventions: Conventions) -> str:
        """The reason why a target with these conventions cannot carry this kind; empty where it can."""
        return ""

    @abstractmethod
    def read(self, folder: Path) -> Document[B]:
        """Reads the blueprint in `folder`.

        Raises:
            InputError: with every mistake of its file.
        """

    def list_port_names(self, blueprint: B) -> list[str]:
        """Names of the ports that a target must choose where processes share one machine."""
        return []

    def read_measurements(self, blueprint: Document[B], environment: Environment, root: Path) -> Environment:
        """The environment with what earlier reports below `root` measured of this blueprint."""
        return environment

    @abstractmethod
    def resolve(self, blueprint: Document[B], fleet: Document[Fleet], environment: Environment) -> D:
        """Decides every number of the deployment.

        Raises:
            InputError: it cannot work; with every reason at its line of the blueprint.
        """

    def refresh(self, deployment: D, blueprint: B) -> D:
        """The deployment with those settings of the blueprint as it is now that need no new deploy."""
        return deployment

    def move_to_pool(self, blueprint: Document[B], pool: str) -> Document[B]:
        """The blueprint with all of its work on another pool of the fleet."""
        return blueprint

    def describe(self, blueprint: Document[B], deployment: D) -> Iterable[tuple[str, str]]:
        """Rows of `check`: a label of at most 10 characters, and a line about it."""
        return ()

    def build_summary(self, deployment: D) -> dict[str, Any]:
        """What `check --json` shows of the deployment, beside name, kind, target and fleet."""
        return {}


@functools.cache
def list_kinds() -> tuple[str, ...]:
    """All kinds, the default one first."""
    packages = {path.parent.name.replace("_", "-") for path in Path(__file__).parent.glob(f"*/{_MODULE}.py")}
    return (DEFAULT_KIND, *sorted(packages - {DEFAULT_KIND}))


@functools.cache
def get(kind: str) -> Workload[Any, Any]:
    """The workload of a kind.

    Raises:
        InputError: there is no such kind; names all of them.
    """
    if kind not in list_kinds():
        raise InputError(f"kind: now {kind!r}: there is no such kind. Fix: {' or '.join(list_kinds())}.")
    module = importlib.import_module(f"{__package__}.{kind.replace('-', '_')}.{_MODULE}")
    workload: Workload[Any, Any] = module.WORKLOAD
    return workload


def get_for(document: Document[Any]) -> Workload[Any, Any]:
    """The workload that a blueprint is of."""
    return get(document.value.kind)


def load_deployment(text: str) -> Any:
    """A saved deployment of any kind, from its JSON.

    Raises:
        ValueError: it is not the JSON of a deployment, or another version of this program, with other fields, saved it.
        InputError: its kind is not known.
    """
    data = json.loads(text)
    kind = data.get("kind", DEFAULT_KIND) if isinstance(data, dict) else DEFAULT_KIND
    return get(str(kind)).DEPLOYMENT.model_validate_json(text)
