"""The file `rendered/NAME/ecs/ecs.yaml`: typed data from which the stack KIND-NAME is synthesized."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from llm_serving.catalog import instances
from llm_serving.fleet import groups, names
from llm_serving.fleet.interfaces import EFA_DEVICE
from llm_serving.fleet.model import Fleet, Name
from llm_serving.settings.document import AllowSingleItem, Conflict, Document, Settings, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import TextFormat
from llm_serving.targets.on_aws.rendered import BatchManifest, BatchProgram, Container, Port, S3Location, ZeroOrMore

FILE = "ecs.yaml"
"""The rendered file."""

Device = Annotated[
    str, TextFormat(r"/dev/[A-Za-z0-9/_-]+", "a device of the machine: /dev/NAME", "/dev/infiniband/uverbs0")
]

MAX_STOP_S = 120
"""Longest that Fargate waits between asking a container to stop and killing it.

Source: ECS API reference, ContainerDefinition, stopTimeout, 2026-11.
"""

MAX_TASKS = 1000
"""Most tasks that register with one discovery service, which a role's choices share.

Source: ECS developer guide, "Use service discovery to connect Amazon ECS services with DNS names", considerations,
2026-11.
"""

ALARM_METRICS = {"engine": ("queue",), "router": ("requests", "errors")}
"""Metrics that alarms use, by kind of service."""


class Autoscaling(Settings):
    """Rules for scaling the number of tasks."""

    most: Annotated[int, Field(ge=1, le=MAX_TASKS)]
    metric: Literal["queue", "kv-usage"]
    target: Annotated[float, Field(gt=0, le=10_000, strict=False)]
    """Target for one task: queued requests, or the used share of its KV cache."""

    cool_down: Annotated[int, Field(ge=0, le=86_400)]
    """Seconds before an idle task is stopped."""


class ReplicaNode(Settings):
    """The place of a service in a replica that spans several nodes."""

    replica: Annotated[int, Field(ge=0)]
    rank: Annotated[int, Field(ge=0)]


class CompileCache(Settings):
    """Where compiled programs outlive a task."""

    path: Annotated[str, Field(pattern="^/")]
    """In the container."""

    node_path: Annotated[str, Field(pattern="^/")]
    """On the instance, which creates it."""


class TaskService(Container):
    """The tasks of one role of any kind of deployment."""

    pool: Name | None = None
    """The fleet's pool; empty for Fargate, which has no accelerators."""

    member: ReplicaNode | None = None

    @property
    def initial_count(self) -> int:
        """Number of tasks that it starts with, and that a deploy waits for."""
        return max(1, self.count)

    def _check_stop(self) -> Iterator[Conflict]:
        if self.pool is None and self.stop_s > MAX_STOP_S:
            reason = f"without a pool the task runs on Fargate, which waits at most {MAX_STOP_S} s"
            yield Conflict(("stop_s",), reason, f"{MAX_STOP_S} or less")


class Service(TaskService):
    """The tasks of one role of serving: an ECS service, or one for each choice of its pool."""

    kind: Literal["engine", "router"]
    types: ZeroOrMore[str] = ()
    """Instance types that hold a task."""

    zones: ZeroOrMore[str] = ()
    scale: Autoscaling | None = None
    unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Tasks that a rollout may stop at once."""

    port: Port
    metrics_port: Port
    """Port of its metrics, at /metrics."""

    metrics: dict[str, str]
    """Prometheus names of its metrics, by the catalog's names: queue, kv-usage and running of an engine, requests and
    errors of a router."""

    events_ports: ZeroOrMore[Port] = ()
    """Port of its KV cache events, which routers subscribe to."""

    own_address: ZeroOrMore[str] = ()
    """Variables that must hold the task's own address."""

    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    shared_memory_mib: Annotated[int, Field(ge=0)] = 0
    devices: ZeroOrMore[Device] = ()
    """Devices of the instance that the task can use; with any of them it may lock memory."""

    fetches: dict[str, S3Location] = Field(default_factory=dict)
    """What is copied to /scratch/fetched/NAME before the engine starts: LoRA adapters, and weights if needed."""

    compile_cache: CompileCache | None = None
    fetch_s: Annotated[int, Field(ge=0, le=86_400)] = 0
    """Longest copy of one of those, in seconds."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (
            self._check_stop(),
            self._check_fargate(),
            self._check_scaling(),
            self._check_scale_to_zero(),
            self._check_gpu_pool(),
            self._check_metrics(),
        )

    @property
    def scales_to_zero(self) -> bool:
        """Whether it scales to zero."""
        return self.count == 0

    def _check_fargate(self) -> Iterator[Conflict]:
        if self.pool is None and self.devices:
            yield Conflict(("devices",), "without a pool the task runs on Fargate, which has none", "devices: []")

    def _check_scaling(self) -> Iterator[Conflict]:
        if self.scale and self.scale.most < self.count:
            yield Conflict(("scale", "most"), f"the least is {self.count}", f"{self.count} or more")
        if self.scale and self.member:
            yield Conflict(("scale",), "the nodes of a replica scale together, not one by one", "no scale")

    def _check_scale_to_zero(self) -> Iterator[Conflict]:
        if self.scales_to_zero and (self.kind == "router" or self.scale is None):
            reason = (
                "the router must always run, to receive requests"
                if self.kind == "router"
                else "without scale no task would ever start"
            )
            yield Conflict(("count",), reason, "1 or more")

    def _check_gpu_pool(self) -> Iterator[Conflict]:
        if self.gpus and self.pool is None:
            yield Conflict(("gpus",), "without a pool the task runs on Fargate, which has none", "gpus: 0")

    def _check_metrics(self) -> Iterator[Conflict]:
        read = {*ALARM_METRICS[self.kind], *((self.scale.metric,) if self.scale else ())}
        for name in sorted(read - self.metrics.keys()):
            yield Conflict(("metrics",), f"alarms and scaling read {name}", f"the Prometheus name of {name}")


class LoadBalancer(Settings):
    """The internal load balancer with TLS before the routers."""

    certificate: str
    """ARN of the ACM certificate."""

    web_acl: str = ""
    """ARN of the AWS WAF web ACL; empty without one."""

    idle_timeout_s: Annotated[int, Field(ge=1, le=4000)]
    """Longest silence on a connection."""

    drain_s: Annotated[int, Field(ge=0, le=3600)]
    """How long requests of a stopped router may finish."""


class EcsManifest(Settings):
    """A deployment of any kind."""

    kind: str
    name: Name
    fleet: Name
    services: tuple[TaskService, ...]

    @property
    @abstractmethod
    def entry(self) -> Service | BatchService:
        """The service that clients call."""

    @property
    @abstractmethod
    def start_s(self) -> int:
        """Longest start of a task, in seconds, after its instance has."""

    @property
    def scale_to_zero_services(self) -> tuple[TaskService, ...]:
        """Services that scale to zero."""
        return ()

    def _check_unique_names(self) -> Iterator[Conflict]:
        for index, service in enumerate(self.services):
            if service.name in [other.name for other in self.services[:index]]:
                yield Conflict(("services", index, "name"), "another service has it", "a unique name")


class EcsDeployment(EcsManifest):
    """A deployment that serves."""

    kind: Literal["serving"] = "serving"
    served: str
    """The value of `model` in requests; of several models, the first."""

    reads: ZeroOrMore[S3Location]
    errors: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Allowed share of failed requests."""

    request_timeout_s: Annotated[int, Field(ge=1, le=86400)] = 1800
    """Longest request, seconds: nothing on a client's side of the router may end one earlier."""

    load_balancer: LoadBalancer | None = None
    """What has TLS before the routers; None where clients call them."""

    services: Annotated[tuple[Service, ...], AllowSingleItem(), Field(min_length=2)]

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_single_router(), self._check_unique_names())

    def _check_single_router(self) -> Iterator[Conflict]:
        count = sum(service.kind == "router" for service in self.services)
        if count != 1:
            yield Conflict(("services",), f"{count} of them are routers", "exactly one of kind: router")

    @property
    def entry(self) -> Service:
        """The router."""
        return self.router

    @property
    def start_s(self) -> int:
        """Of the slowest engine, with what is copied before."""
        return max(engine.fetch_s + engine.probe.deadline_s for engine in self.engines if engine.probe)

    @property
    def router(self) -> Service:
        """The service that clients call."""
        return next(service for service in self.services if service.kind == "router")

    @property
    def engines(self) -> tuple[Service, ...]:
        """The services that the router sends requests to."""
        return tuple(service for service in self.services if service.kind == "engine")

    @property
    def scale_to_zero_services(self) -> tuple[Service, ...]:
        """Engine services that scale to zero."""
        return tuple(service for service in self.engines if service.scales_to_zero)


class BatchService(BatchProgram, TaskService):
    """The tasks of the Batch API, or of the workers, on Fargate or Fargate Spot."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_stop(),)


class EcsBatch(BatchManifest, EcsManifest):
    """A deployment that runs batches."""

    ORCHESTRATOR = "ecs"

    kind: Literal["batch"]
    services: Annotated[tuple[BatchService, ...], AllowSingleItem(), Field(min_length=2)]

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_unique_names(), self._check_single_api())

    @property
    def entry(self) -> BatchService:
        """The Batch API."""
        return next(service for service in self.services if service.port)

    @property
    def start_s(self) -> int:
        """Of the Batch API."""
        return self.entry.probe.deadline_s if self.entry.probe else 0


MANIFESTS: Mapping[str, type[EcsDeployment | EcsBatch]] = {"serving": EcsDeployment, "batch": EcsBatch}
"""By kind."""


def read(path: Path, fleet: Document[Fleet]) -> Document[Any]:
    """Read the deployment of the file `path` for a fleet, as its kind has it.

    Raises:
        InputError: with every mistake of the file: of its form, then of what the fleet does not have.
    """
    document = load(path, MANIFESTS[read_kind(path)])
    if mistakes := list(_find_mistakes(document, fleet)):
        raise InputError(mistakes)
    return document


def read_kind(path: Path) -> str:
    """Read the kind of a rendered deployment; of one without, as of a file that is not there, the default."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    kinds = [line.removeprefix("kind: ") for line in text.splitlines() if line.startswith("kind: ")]
    return next((kind for kind in kinds if kind in MANIFESTS), next(iter(MANIFESTS)))


@dataclass(frozen=True)
class PlacementChoice:
    """One placement choice of an ECS service's tasks."""

    number: int
    """Rank in the pool's order of preference, from 0."""

    providers: tuple[str, ...]
    """Capacity providers; empty on Fargate."""


def list_choices(fleet: Fleet, service: TaskService) -> list[PlacementChoice]:
    """List the service's choices; only the first for a node of a replica, which must be next to the others."""
    if service.pool is None:
        return [PlacementChoice(0, ())]
    strategies = groups.group_by_choice(groups.resolve_pool(fleet, service.pool, instances.load()))
    if service.member:
        peers = strategies[0]
        return [PlacementChoice(0, (groups.format_provider_name(fleet, peers[service.member.replica % len(peers)]),))]
    return [
        PlacementChoice(number, tuple(groups.format_provider_name(fleet, group) for group in peers))
        for number, peers in enumerate(strategies)
    ]


def format_service_name(deployment: EcsManifest, service: TaskService, choice: PlacementChoice) -> str:
    """Format the name of the ECS service of a choice."""
    suffix = f"-{choice.number}" if choice.number else ""
    return f"{deployment.name}-{service.name}{suffix}"


def format_log_group(fleet: Fleet, deployment: str, kind: str = "serving") -> str:
    """Format the log group of a deployment's tasks; the streams begin with the role."""
    return f"/aws/ecs/{names.format_cluster_name(fleet)}/{kind}/{deployment}"


def format_driver_group_name(fleet: Fleet, deployment: str) -> str:
    """Format the name of the security group of a deployment's load drivers."""
    return f"{fleet.name}-{deployment}-driver"


def _find_mistakes(document: Document[Any], fleet: Document[Fleet]) -> Iterator[Mistake]:
    deployment, fleet_settings = document.value, fleet.value
    if deployment.fleet != fleet_settings.name:
        yield document.build_mistake(
            ["fleet"], deployment.fleet, f"{fleet.path} is {fleet_settings.name}", f"fleet: {fleet_settings.name}"
        )
        return
    for index, service in enumerate(deployment.services):
        if isinstance(service, Service) and service.pool is not None:
            yield from _check_service(document, fleet_settings, index, service, service.pool)


def _check_service(
    document: Document[Any], fleet: Fleet, index: int, service: Service, pool_name: str
) -> Iterator[Mistake]:
    """What the pool of a service does not have."""
    key_path: list[str | int] = ["services", index]
    rows = instances.load()
    pool_groups = groups.resolve_pool(fleet, pool_name, rows) if pool_name in fleet.pools else ()
    if not any(group.orchestrator == "ecs" for group in pool_groups):
        ecs_pools = [name for name, pool in fleet.pools.items() if fleet.get_orchestrator(pool) == "ecs"]
        reason = f"the fleet {fleet.name} has no such pool on ECS"
        fix = f"one of {', '.join(ecs_pools) or 'another fleet'}"
        yield document.build_mistake([*key_path, "pool"], pool_name, reason, fix)
        return
    types = {name for group in pool_groups for name in group.types}
    for number, name in enumerate(service.types):
        if name not in types:
            reason = f"no instance of the pool {pool_name} is one"
            fix = f"one of {', '.join(sorted(types))}"
            yield document.build_mistake([*key_path, "types", number], name, reason, fix)
    candidates = [rows[name] for name in (types.intersection(service.types) or types)]
    max_gpus = max(row.accelerators.count if row.accelerators else 0 for row in candidates)
    if service.gpus > max_gpus:
        reason = f"an instance of the pool {pool_name} has {max_gpus} at the most"
        yield document.build_mistake([*key_path, "gpus"], service.gpus, reason, f"{max_gpus} or less")
    max_efa = max(group.efa for group in pool_groups)
    if sum(device.startswith(EFA_DEVICE) for device in service.devices) > max_efa:
        reason = f"an instance of the pool {pool_name} has {max_efa} EFA interfaces"
        yield document.build_mistake([*key_path, "devices"], len(service.devices), reason, f"{max_efa} of them")
