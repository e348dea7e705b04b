"""A blueprint resolved against a fleet: frozen data, every number decided. Templates lay it out and compute nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from llm_serving.settings.units import Bounds
from llm_serving.workloads.serving.blueprint import Disruption
from llm_serving.workloads.serving.roles import Scale
from llm_serving.workloads.serving.traffic import Slo, Traffic

PREFILL, DECODE = "prefill", "decode"
"""Names of the roles that a request is split between."""


class ResolvedData(BaseModel):
    """Base of resolved data: frozen, plain, and JSON at any time."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Probe(ResolvedData):
    """How to know that a process answers: a real completion, never a health page alone."""

    path: str
    body: dict[str, str | int]

    deadline_s: float
    """It has not started if no answer came by then, from the start of the process."""


class Process(ResolvedData):
    """One running copy of a role."""

    name: str
    command: tuple[str, ...]

    env: dict[str, str]
    """On top of what the machine sets."""

    port: int

    probe: Probe | None = None
    """None where something else than a completion proves it, as for an emulated AWS."""

    rank: int = 0
    """Which machine of its replica it runs on, from 0; the first one answers requests."""

    own_address: tuple[str, ...] = ()
    """Variables that must hold the address by which other machines reach it, where only the place can know it."""

    stateful: bool = False
    """What it holds is gone when it ends, so it is not simply started again."""

    memory_bytes: int = 0
    """What it takes of its machine's memory."""


class MeasuredPrefix(ResolvedData):
    """What `validate` measured of a blueprint's traffic."""

    shared_prefix: float
    """Share of a prompt that earlier ones began with, 0 to 1."""

    measured_at: str
    """When, UTC, ISO 8601."""


class Environment(ResolvedData):
    """Facts of the place where a deployment runs that no settings file holds."""

    target: str
    """`local`, `eks` or `ecs`."""

    region: str
    """AWS region."""

    bucket: str
    """The model bucket that the storage stack made."""

    s3_endpoint: str | None = None
    """URL of an S3 other than AWS's own; None means AWS."""

    env: dict[str, str] = {}
    """What every process needs to reach AWS here."""

    engine_folder: str = ""
    """Folder of the engine's executables; empty where the image's PATH has them."""

    data_folder: str = ""
    """Folder for all that a run writes."""

    socket_folder: str = ""
    """Folder for Unix sockets: of a path short enough for them."""

    launcher: tuple[str, ...] = ()
    """Put before every command: sees to it that nothing of a process is left when it ends."""

    router_discovery: tuple[str, ...] = ()
    """What runs images/router's program; empty where the image's PATH has it."""

    module_folder: str = "/opt/vllm"
    """Folder with images/vllm's event_sources.py, which an engine loads."""

    services: tuple[Process, ...] = ()
    """What runs beside the deployment and stands in for AWS."""

    ports: dict[str, int] = {}
    """Port by the name that `resolve.ports` gives it, where they are chosen by the place."""

    registry: str = ""
    """Where the fleet's own images lie: ACCOUNT.dkr.ecr.REGION.amazonaws.com/FLEET."""

    namespace: str = ""
    """Of deployments on EKS; the private DNS namespace of their peers on ECS."""

    service_account: str = ""
    """On EKS, whom the engines act as; the fleet's stacks tie it to a role that may read weights."""

    measured: MeasuredPrefix | None = None
    """Of the blueprint's traffic as it is now, by reports that lie here; None where there is none."""

    cores: int = 0
    """Cores of this machine, where the place is one machine."""

    emulated: tuple[str, ...] = ()
    """What stands in for what, a sentence each."""


class Weights(ResolvedData):
    """Where the weights come from."""

    uri: str
    """s3://BUCKET/PREFIX/"""

    loader: str
    """The engine's own name of the way they are loaded."""

    bytes: int
    """Size of the weights."""

    random: bool
    """Whether they are random numbers from a seed: every page that shows their output says so."""


class ServedModel(ResolvedData):
    """A model as clients see it."""

    model: str
    """As the blueprint names it: in the catalogue, on the hub, or a folder."""

    name: str
    """What clients put in `model`."""

    weights: Weights
    context: int
    """Most tokens of a request."""

    adapters: dict[str, str] = {}
    """LoRA adapters: where each lies, by the name that clients put in `model`."""


class Parallelism(ResolvedData):
    """How one replica is spread over accelerators."""

    tensor: int = 1
    """Ways that each layer is split."""

    pipeline: int = 1
    """Stages of layers."""

    data: int = 1
    """Copies of the attention layers."""

    expert: bool = False
    """Whether whole experts are spread over the accelerators."""


EFA_HUGE_PAGES = 5128
"""Of 2 MiB, that a machine with EFA's driver has. Source: EKS User Guide, "Run machine learning training on Amazon EKS
with Elastic Fabric Adapter", 2026-11."""


class Resources(ResolvedData):
    """What one machine gives to one replica."""

    device: str = ""
    """Kubernetes' name of the accelerator; empty where none is needed."""

    accelerators: int = 0
    """As the machine hands them out: whole Neuron devices, of several NeuronCores each."""

    efa: int = 0
    """EFA interfaces: the replica's share by accelerators."""

    node_efa: int = 0
    """EFA interfaces of the whole machine: what ECS, which hands out none of them, shows to each task."""

    cpus: int = 1
    memory_bytes: int = 0
    shared_memory_bytes: int = 0
    """Of /dev/shm, which the processes of one machine exchange tensors through."""

    @property
    def huge_page_bytes(self) -> int:
        """In pages of 2 MiB, for libfabric's buffers: the share, by interfaces, of what EFA's driver sets aside."""
        return EFA_HUGE_PAGES * self.efa // self.node_efa * 2**21 if self.efa else 0


class Prefetch(ResolvedData):
    """What of S3 is copied to the machine before the engine starts."""

    uris: dict[str, str]
    """s3://BUCKET/PREFIX by the name of its folder in /scratch/fetched."""

    timeout_s: int
    """Longest that one of them may take, seconds."""

    disk_bytes: int
    """Of the machine's disk: for all of them, and for what the engine caches."""


class Toleration(ResolvedData):
    """A taint of the pool's nodes that the role's pods tolerate, in Kubernetes' words."""

    key: str
    value: str
    effect: str


class Role(ResolvedData):
    """One kind of process in a deployment."""

    name: str
    kind: Literal["engine", "router"]
    image: str = ""
    """Empty on `local`."""

    served_model: ServedModel | None = None
    """The model; None for the router, which serves what the engines do."""

    pool: str = ""
    """The fleet's pool; empty where it needs no machine of its own."""

    instance_types: tuple[str, ...] = ()
    """The pool's types that hold a replica, all alike in what they give; exactly these are asked for."""

    zones: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    """Labels that the pool's nodes carry."""

    tolerations: tuple[Toleration, ...] = ()
    accelerators: int = 0
    """Of one replica; on Neuron its NeuronCores."""

    prefetch: Prefetch | None = None
    """None where nothing of S3 is copied to the machine."""

    nodes: int = 1
    """Of one replica: more than one start together, in one zone."""

    parallelism: Parallelism = Parallelism()
    resources: Resources = Resources()
    replicas: Bounds
    scale: Scale | None = None
    """When replicas come and go between the bounds; None where they are always as many."""

    ports: dict[str, int] = {}
    """Further ports that its processes listen on, by name, where each replica has an address of its own."""

    processes: tuple[Process, ...]
    """On `local` one for each replica; elsewhere what all replicas are like, one for each of its machines."""


class Deployment(ResolvedData):
    """What runs: all that a renderer needs."""

    name: str
    pattern: str
    target: str
    fleet: str
    engine: str
    framework: str
    roles: tuple[Role, ...]
    """Engines in the order in which requests meet them, and the router last."""

    url: str
    """Base URL for clients, without /v1."""

    disruption: Disruption
    traffic: Traffic
    slo: Slo
    environment: Environment
    notes: tuple[str, ...] = ()
    """What the user should know of this target, a sentence each."""

    emulated: tuple[str, ...] = ()
    """What stands in for what; shown to the user wherever a result is."""

    @property
    def engine_roles(self) -> tuple[Role, ...]:
        """The roles that run an engine."""
        return tuple(role for role in self.roles if role.kind == "engine")

    @property
    def router(self) -> Role:
        """The one endpoint."""
        return self.roles[-1]

    @property
    def engine_processes(self) -> tuple[Process, ...]:
        """The processes of all engines."""
        return tuple(process for role in self.engine_roles for process in role.processes)

    @property
    def answering_roles(self) -> tuple[Role, ...]:
        """The engines' roles whose answers reach a client: prefill only hands its cache on."""
        return tuple(role for role in self.engine_roles if role.name != PREFILL)

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        """The models that clients can name, each once."""
        return tuple(
            {role.served_model.name: role.served_model for role in self.engine_roles if role.served_model}.values()
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        """All that clients can put in `model`: models and their adapters."""
        return tuple(name for model in self.served_models for name in (model.name, *model.adapters))

    @property
    def processes(self) -> tuple[Process, ...]:
        """All that runs, in the order of starting."""
        return (*self.environment.services, *(process for role in self.roles for process in role.processes))
