"""What runs on ECS, as `rendered/NAME/ecs/ecs.yaml` says it: plain data that the stack serving-NAME is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from llm_serving.catalog import instances
from llm_serving.fleet import groups, names
from llm_serving.fleet.model import Fleet, Name
from llm_serving.settings.document import Contradiction, Document, Listed, Settings, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Form

T = TypeVar("T")

Many = Annotated[tuple[T, ...], Listed()]
Port = Annotated[int, Field(ge=1, le=65535)]
Place = Annotated[
    str,
    Form(
        r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+@-]+",
        "a place in S3: s3://BUCKET/PREFIX",
        "s3://my-models/qwen3-32b/",
    ),
]
Device = Annotated[str, Form(r"/dev/[A-Za-z0-9/_-]+", "a device of the machine: /dev/NAME", "/dev/infiniband/uverbs0")]

MOST_STOP_S = 120
"""Longest that Fargate waits between asking a container to stop and killing it.

Source: ECS API reference, ContainerDefinition, stopTimeout, 2026-11.
"""


MACHINES_S = 900
"""A machine comes, pulls an image of several GB and starts; a model's own start is counted beside."""


class Scale(Settings):
    """When tasks come and go."""

    most: Annotated[int, Field(ge=1, le=5000)]
    metric: Literal["queue", "kv-usage"]
    target: Annotated[float, Field(gt=0, le=10_000, strict=False)]
    """Of one task: requests that wait, or the share of its KV cache in use."""

    cool_down: Annotated[int, Field(ge=0, le=86_400)]
    """Seconds that a task is kept when it is no longer needed."""


class Member(Settings):
    """A service that is one machine of a replica over several."""

    replica: Annotated[int, Field(ge=0)]
    rank: Annotated[int, Field(ge=0)]


class Probe(Settings):
    """A request that proves an answer."""

    path: str
    body: str
    """JSON."""

    deadline_s: Annotated[int, Field(ge=1)]
    """It has not started if no answer came by then."""


class Service(Settings):
    """Like tasks of one role: an ECS service, or one for each choice of its pool."""

    name: Name
    role: Name
    kind: Literal["engine", "router"]
    pool: Name | None = None
    """The fleet's pool; none runs on Fargate, which has no accelerators."""

    types: Many[str] = ()
    """Instance types that hold a task."""

    zones: Many[str] = ()
    count: Annotated[int, Field(ge=0, le=5000)] = 1
    """Tasks; where they scale, the least. 0: they sleep while nobody asks."""

    member: Member | None = None
    scale: Scale | None = None
    unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Tasks that a deployment may take away at once."""

    port: Port
    metrics_port: Port
    """Where its own metrics are, at /metrics."""

    events_ports: Many[Port] = ()
    """Where routers hear of its cache."""

    image: str
    command: Many[str]
    environment: dict[str, str] = Field(default_factory=dict)
    own_address: Many[str] = ()
    """Variables that must hold the task's own address."""

    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    cpus: Annotated[int, Field(ge=1, le=512)]
    memory_mib: Annotated[int, Field(ge=128)]
    shared_memory_mib: Annotated[int, Field(ge=0)] = 0
    devices: Many[Device] = ()
    """Devices of the machine that the task sees; with any of them it may lock memory."""

    probe: Probe | None = None
    """None where another process of its replica answers, or none is to."""

    fetches: dict[str, Place] = Field(default_factory=dict)
    """What is copied to /scratch/fetched/NAME before the engine starts: LoRA adapters, and weights where need be."""

    fetch_s: Annotated[int, Field(ge=0, le=86_400)] = 0
    """Longest that one of those may take."""

    stop_s: Annotated[int, Field(ge=2, le=86_400)]
    """From being asked to stop until it is killed."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._on_fargate(), self._scales_up(), self._wakes(), self._gpus_have_machines())

    @property
    def sleeps(self) -> bool:
        """Whether it has no task while nobody asks."""
        return self.count == 0

    @property
    def first(self) -> int:
        """Tasks that it starts with, and that a deployment waits for."""
        return max(1, self.count)

    def _on_fargate(self) -> Iterator[Contradiction]:
        if self.pool is None and self.stop_s > MOST_STOP_S:
            why = f"without a pool the task runs on Fargate, which waits {MOST_STOP_S} s at the longest"
            yield Contradiction(("stop_s",), why, f"{MOST_STOP_S} or less")
        if self.pool is None and self.devices:
            yield Contradiction(("devices",), "without a pool the task runs on Fargate, which has none", "devices: []")

    def _scales_up(self) -> Iterator[Contradiction]:
        if self.scale and self.scale.most < self.count:
            yield Contradiction(("scale", "most"), f"the least is {self.count}", f"{self.count} or more")
        if self.scale and self.member:
            yield Contradiction(("scale",), "the machines of a replica do not come and go alone", "no scale")

    def _wakes(self) -> Iterator[Contradiction]:
        if self.sleeps and (self.kind == "router" or self.scale is None):
            why = "the router stands always, to see who asks" if self.kind == "router" else "without scale none comes"
            yield Contradiction(("count",), why, "1 or more")

    def _gpus_have_machines(self) -> Iterator[Contradiction]:
        if self.gpus and self.pool is None:
            yield Contradiction(("gpus",), "without a pool the task runs on Fargate, which has none", "gpus: 0")


class Serving(Settings):
    """One deployment."""

    name: Name
    fleet: Name
    served: str
    """What clients put in `model`; the first, where there are several."""

    reads: Many[Place]
    errors: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Share of requests that may fail."""

    services: Annotated[tuple[Service, ...], Listed(), Field(min_length=2)]

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._one_router(), self._names_once())

    def _one_router(self) -> Iterator[Contradiction]:
        count = sum(service.kind == "router" for service in self.services)
        if count != 1:
            yield Contradiction(("services",), f"{count} of them are routers", "exactly one of kind: router")

    def _names_once(self) -> Iterator[Contradiction]:
        for index, service in enumerate(self.services):
            if service.name in [one.name for one in self.services[:index]]:
                yield Contradiction(("services", index, "name"), "another service has it", "a name of its own")

    @property
    def router(self) -> Service:
        """What clients reach."""
        return next(service for service in self.services if service.kind == "router")

    @property
    def engines(self) -> tuple[Service, ...]:
        """What the router spreads requests over."""
        return tuple(service for service in self.services if service.kind == "engine")

    @property
    def sleepers(self) -> tuple[Service, ...]:
        """Engines that have no task while nobody asks."""
        return tuple(service for service in self.engines if service.sleeps)


def read(path: Path, fleet: Document[Fleet]) -> Document[Serving]:
    """The deployment of the file `path`, on that fleet.

    Raises:
        InputError: with every mistake of the file: of its form, then of what the fleet does not have.
    """
    document = load(path, Serving)
    if wrong := list(_mistakes(document, fleet)):
        raise InputError(wrong)
    return document


@dataclass(frozen=True)
class Choice:
    """Where the tasks of one ECS service go."""

    number: int
    """Place in the pool's order of preference, from 0."""

    providers: tuple[str, ...]
    """Capacity providers; empty on Fargate."""


def choices(fleet: Fleet, service: Service) -> list[Choice]:
    """The service's choices; only the first for a machine of a replica, which must stand beside the others."""
    if service.pool is None:
        return [Choice(0, ())]
    strategies = groups.strategies(groups.of_pool(fleet, service.pool, instances.load()))
    if service.member:
        peers = strategies[0]
        return [Choice(0, (groups.provider_name(fleet, peers[service.member.replica % len(peers)]),))]
    return [
        Choice(number, tuple(groups.provider_name(fleet, group) for group in peers))
        for number, peers in enumerate(strategies)
    ]


def name_of(serving: Serving, service: Service, choice: Choice) -> str:
    """Name of the ECS service of a choice."""
    further = f"-{choice.number}" if choice.number else ""
    return f"{serving.name}-{service.name}{further}"


def log_group(fleet: Fleet, deployment: str) -> str:
    """Log group of all tasks of a deployment; the streams begin with the role."""
    return f"/aws/ecs/{names.cluster(fleet)}/serving/{deployment}"


def _mistakes(document: Document[Serving], fleet: Document[Fleet]) -> Iterator[Mistake]:
    wanted, rented, rows = document.value, fleet.value, instances.load()
    if wanted.fleet != rented.name:
        yield document.mistake(["fleet"], wanted.fleet, f"{fleet.path} is {rented.name}", f"fleet: {rented.name}")
        return
    for index, service in enumerate(wanted.services):
        if service.pool is None:
            continue
        at: list[str | int] = ["services", index]
        of_pool = groups.of_pool(rented, service.pool, rows) if service.pool in rented.pools else ()
        if not [group for group in of_pool if group.orchestrator == "ecs"]:
            there = [name for name, pool in rented.pools.items() if rented.orchestrator_of(pool) == "ecs"]
            why = f"the fleet {rented.name} has no such pool on ECS"
            yield document.mistake([*at, "pool"], service.pool, why, f"one of {', '.join(there) or 'another fleet'}")
            continue
        types = {name for group in of_pool for name in group.types}
        for number, name in enumerate(service.types):
            if name not in types:
                why = f"no machine of the pool {service.pool} is one"
                yield document.mistake([*at, "types", number], name, why, f"one of {', '.join(sorted(types))}")
        asked = [rows[name] for name in (types.intersection(service.types) or types)]
        most = max(row.accelerators.count if row.accelerators else 0 for row in asked)
        if service.gpus > most:
            why = f"a machine of the pool {service.pool} has {most} at the most"
            yield document.mistake([*at, "gpus"], service.gpus, why, f"{most} or less")
        seen = max(group.efa for group in of_pool)
        if sum(device.startswith("/dev/infiniband/uverbs") for device in service.devices) > seen:
            why = f"a machine of the pool {service.pool} has {seen} EFA interfaces"
            yield document.mistake([*at, "devices"], len(service.devices), why, f"{seen} of them")
