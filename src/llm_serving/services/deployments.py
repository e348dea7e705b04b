"""Deployments of the fleet by name: where one answers, what it serves, costs and promises, on every target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from llm_serving.catalog import frameworks
from llm_serving.fleet.model import Fleet
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import DEFAULT_KIND, FILE_NAME, resolve_name
from llm_serving.services.deployment import Deployment, FoundDeployment, Traits
from llm_serving.services.environment import Environment
from llm_serving.settings.choices import Task
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError

ENTRY_PORT, WORKER_PORT, USAGE_PORT = 8080, 8000, 9092
"""Ports of an entry, of workers, and of what teams used at a router that asks for keys, where each replica has its own
address."""

USAGE = "usage"
"""Name of the last of them among a router's ports."""

FILE = "deployment.json"
"""What is deployed on this machine, in the deployment's data folder."""

METRICS_PATH = "/metrics"


class DeploymentCircle(InputError):
    """Deployments that each name the next, the last one the first: none of them can be resolved."""


def find(name: str, siblings: Path, fleet: Document[Fleet], environment: Environment) -> FoundDeployment | None:
    """Find a deployment of the fleet on the target of `environment`; None where it does not run on this machine.

    On AWS its address and the names of its classes follow from its name. The rest is known of one whose blueprint is
    here.

    Args:
        siblings: folder with the folder of its blueprint, which has its name.

    Raises:
        DeploymentCircle: its blueprint leads back to one that is being resolved.
    """
    conventions = environment.conventions
    if conventions.is_local:
        if not environment.data_folder:  # a check contacts nothing
            return FoundDeployment(name=name, url=conventions.url.format(deployment=name, namespace="", port=0))
        deployment = read(Path(environment.data_folder).parent / name / FILE)
        return None if deployment is None else kinds.get(deployment.kind).describe_for_others(deployment)
    names = {"deployment": name, "namespace": environment.namespace}
    deployment = _resolve_blueprint(name, siblings / name, fleet, environment)
    workers = deployment.workers if deployment else ()
    # Of some engines and frameworks the page of metrics has a path or a port of its own.
    pages = dict.fromkeys((worker.ports.get("metrics", worker.port), worker.metrics_path) for worker in workers)
    workers_url = conventions.engines_url
    address = {
        "url": conventions.url.format(**names, port=ENTRY_PORT),
        "metrics_urls": tuple(
            f"{workers_url.format(**names, port=port)}{path}"
            for port, path in pages or [(WORKER_PORT, METRICS_PATH)]
            if workers_url and path
        ),
    }
    if deployment is None:
        return FoundDeployment.model_validate({"name": name, **address, "traits": _assume_traits(name, environment)})
    return kinds.get(deployment.kind).describe_for_others(deployment).model_copy(update=address)


def require_serving(
    blueprint: Document[Any],
    name: str,
    fleet: Document[Fleet],
    environment: Environment,
    key_path: Sequence[str | int] = ("endpoint", "deployment"),
    tasks: Sequence[Task] = get_args(Task),
) -> FoundDeployment:
    """Return the serving deployment that a blueprint names at `key_path`.

    Args:
        tasks: what it is asked for, one of them.

    Raises:
        InputError: it does not run, has another task, or names its way back to this one.
    """
    if name in environment.dependents:
        circle = (*environment.dependents[environment.dependents.index(name) :], name)
        reason = f"the deployments name each other in a circle: {' -> '.join(circle)}"
        raise DeploymentCircle([blueprint.build_mistake(key_path, name, reason, "name a serving deployment")])
    deployment = find(name, blueprint.path.resolve().parent.parent, fleet, environment)
    if deployment is None or deployment.kind not in ("", DEFAULT_KIND):
        reason = "no serving deployment of this name is up here"
        fix = f"run blueprint deploy {name} first, from this directory"
        raise InputError([blueprint.build_mistake(key_path, name, reason, fix)])
    if deployment.task not in (None, *tasks):
        asked = " or ".join(tasks)
        reason, fix = (
            f"its task is {deployment.task}, and it is asked to {asked}",
            f"name a deployment with task: {asked}",
        )
        raise InputError([blueprint.build_mistake(key_path, name, reason, fix)])
    return deployment


def read(file: Path) -> Deployment | None:
    """Read what is deployed; None if nothing is, or if another version of this program wrote it."""
    try:
        return kinds.load_deployment(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, InputError):
        return None


def _assume_traits(name: str, environment: Environment) -> Traits:
    """Return what frameworks of the target that have classes would go by: others read no such headers."""
    traits = Traits()
    for row in frameworks.load_frameworks().values():
        if row.classes and environment.target in row.targets:
            traits = Traits(classes=row.build_class_headers(name), caller_header=row.caller_header)
    return traits


def _resolve_blueprint(name: str, folder: Path, fleet: Document[Fleet], environment: Environment) -> Deployment | None:
    """Resolve the blueprint in a folder; None where it is of another name, or cannot work, which its deploy reports."""
    if not (folder / FILE_NAME).is_file():
        return None
    try:
        blueprint = inputs.read_blueprint(folder)
        if resolve_name(blueprint) != name:
            return None
        nested = environment.model_copy(update={"dependents": (*environment.dependents, name)})
        deployment: Deployment = kinds.get_for(blueprint).resolve(blueprint, fleet, nested)
    except DeploymentCircle:
        raise
    except InputError:
        return None
    return deployment
