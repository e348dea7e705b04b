"""The rendered file of a deployment on AWS: its services, and the data of its stack, read back into their classes once.

A user may have edited the file, or the template that it is made from.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from llm_serving.fleet.model import Fleet, Name
from llm_serving.fleet.standing_cost import Units
from llm_serving.services.blueprint import DEFAULT_KIND
from llm_serving.services.formats import FORMATS
from llm_serving.services.service import Service
from llm_serving.settings.document import AllowSingleItem, Conflict, Document, Settings, load
from llm_serving.settings.errors import InputError

S = TypeVar("S")

S3Location = Annotated[str, FORMATS["s3-location"]]


def split_location(location: str) -> tuple[str, str]:
    """Return the bucket and the prefix of an S3Location, without a slash at its end; empty texts of an empty one."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    return bucket, prefix.rstrip("/")


class Rendered(Settings, Generic[S]):
    """A deployment with a stack of its own, KIND-NAME."""

    kind: str
    name: Name
    fleet: Name
    services: Annotated[tuple[Service, ...], AllowSingleItem()] = ()
    stack: S
    """What the stack makes beside the services, in the form of the kind."""

    @property
    def entry(self) -> Service:
        return next(service for service in self.services if service.is_entry)

    @property
    def scale_to_zero_services(self) -> tuple[Service, ...]:
        return tuple(service for service in self.services if service.replicas.min == 0)

    def _check_single_entry(self) -> Iterator[Conflict]:
        count = sum(service.is_entry for service in self.services)
        if self.services and count != 1:
            reason = f"clients call {count} of them"
            yield Conflict(("services",), reason, "set is_entry: true in exactly one")

    def _check_unique_names(self) -> Iterator[Conflict]:
        for index, service in enumerate(self.services):
            if service.name in [other.name for other in self.services[:index]]:
                yield Conflict(("services", index, "name"), "another service has it", "use a unique name")

    def _check_replicas(self) -> Iterator[Conflict]:
        for index, service in enumerate(self.services):
            replicas, key_path = service.replicas, ("services", index, "replicas")
            if replicas.max < replicas.min:
                yield Conflict((*key_path, "max"), f"min is {replicas.min}", f"set {replicas.min} or more")
            if replicas.scale and service.node:
                reason = "the nodes of a replica scale together, not one by one"
                yield Conflict((*key_path, "scale"), reason, "remove scale")
            if replicas.min == 0 and service.is_entry:
                reason = "what clients call must always run, to receive requests"
                yield Conflict((*key_path, "min"), reason, "set 1 or more")
            elif replicas.min == 0 and replicas.scale is None:
                yield Conflict((*key_path, "min"), "without scale no replica would ever start", "set 1 or more")


def format_stack_name(kind: str, deployment: str) -> str:
    return f"{kind}-{deployment}"


def find(fleet: Fleet, root: Path) -> list[Path]:
    """Return the rendered deployments of that fleet below `root` that have a stack of their own."""
    files = sorted(root.glob("rendered/*/*/*.yaml"))
    return [file for file in files if read_kind(file, fleet)]


def find_callers(name: str, fleet: Document[Fleet], root: Path, target: str) -> list[str]:
    """Return the deployments of the fleet rendered below `root` for a target that call the deployment `name`."""
    callers = []
    for file in find(fleet.value, root):
        with contextlib.suppress(InputError):  # one whose file is wrong is refused where it is deployed
            caller = read(file, fleet, Rendered[Any]).value
            called = {call.deployment for service in caller.services for call in service.calls.values()}
            if file.parent.name == target and name in called:
                callers.append(caller.name)
    return callers


def read_kind(file: Path, fleet: Fleet) -> str:
    """Return the kind of a rendered deployment of the fleet that has a stack; empty for any other file."""
    keys = read_head(file)
    return keys.get("kind", DEFAULT_KIND) if keys.get("fleet") == fleet.name and "services" in keys else ""


def list_fargate(orchestrator: str, services: Sequence[Service], name: str) -> Iterator[Units]:
    """Yield the cores and the memory of the tasks of the deployment `name` that run on Fargate, and not in a pool."""
    if orchestrator != "ecs":
        return
    tasks = [service for service in services if not service.placement.pool]
    memory_bytes = sum(service.replicas.min * service.resources.memory_bytes for service in tasks)
    yield Units("fargate-vcpu", sum(service.replicas.min * service.resources.cpus for service in tasks), name)
    yield Units("fargate-gib", math.ceil(memory_bytes / 2**30), name)


def list_chart_balancers(fleet: Fleet, root: Path) -> Iterator[Units]:
    """Yield the load balancers that a chart makes, and no stack, of what is rendered for the fleet below `root`."""
    for file in sorted(root.glob("rendered/*/*/*.yaml")):
        keys = read_head(file)
        owner = re.sub("[\"' ]", "", keys.get("global", ""))
        if "loadBalancer" in keys and owner == f"{{fleet:{fleet.name}}}":
            yield Units("application-load-balancer", 1, file.parent.parent.name)


def read_head(file: Path) -> dict[str, str]:
    """Return the keys of a rendered file that are not in another, without reading all of it.

    A user may have added comments and quotes.
    """
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (line.partition(" #")[0].partition(":") for line in lines if line[:1].isalpha())
    return {key: value.strip(" '\"") for key, _, value in pairs}


def read(file: Path, fleet: Document[Fleet], model: type[Rendered[S]]) -> Document[Rendered[S]]:
    """Read the rendered file of a deployment of the fleet.

    Args:
        model: with the class of the stack's data; Rendered[Any] where it is not used.

    Raises:
        InputError: with every mistake of the file, or it is of another fleet.
    """
    if "stack" not in read_head(file):
        raise InputError(
            f"{file}: it has no stack: an earlier version rendered it. Fix: delete it, and run this again."
        )
    document = load(file, model)
    if document.value.fleet != fleet.value.name:
        reason, fix = f"{fleet.path} is {fleet.value.name}", f"set fleet: {fleet.value.name}"
        raise InputError([document.build_mistake(["fleet"], document.value.fleet, reason, fix)])
    return document
