"""A blueprint resolved against a fleet: frozen data, every number decided. Templates lay it out and compute nothing."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from blueprints.blueprint import Slo, Traffic
from infra.units import Bounds


class Resolved(BaseModel):
    """Base of resolved data: frozen, plain, and JSON at any time."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Probe(Resolved):
    """How to know that a process answers: a real completion, never a health page alone."""

    path: str
    body: dict[str, str | int]

    deadline_s: float
    """It has not started if no answer came by then, from the start of the process."""


class Process(Resolved):
    """One running copy of a role."""

    name: str
    command: tuple[str, ...]

    environment: dict[str, str]
    """On top of what the machine sets."""

    port: int

    probe: Probe | None = None
    """None where something else than a completion proves it, as for an emulated AWS."""

    stateful: bool = False
    """What it holds is gone when it ends, so it is not simply started again."""

    memory_bytes: int = 0
    """What it takes of its machine's memory."""


class Place(Resolved):
    """Facts of the place where a deployment runs that no settings file holds."""

    target: str
    """`local`, `eks` or `ecs`."""

    region: str
    """AWS region."""

    bucket: str
    """The model bucket that the storage stack made."""

    s3_endpoint: str | None = None
    """URL of an S3 other than AWS's own; None means AWS."""

    environment: dict[str, str] = {}
    """What every process needs to reach AWS here."""

    engine: str = ""
    """Folder of the engine's executables; empty where the image's PATH has them."""

    data: str = ""
    """Folder for all that a run writes."""

    sockets: str = ""
    """Folder for Unix sockets: of a path short enough for them."""

    launcher: tuple[str, ...] = ()
    """Put before every command: sees to it that nothing of a process is left when it ends."""

    services: tuple[Process, ...] = ()
    """What runs beside the deployment and stands in for AWS."""

    ports: dict[str, int] = {}
    """Port by process name, where they are chosen by the place."""

    cores: int = 0
    """Cores of this machine, where the place is one machine."""

    emulated: tuple[str, ...] = ()
    """What stands in for what, a sentence each."""


class Role(Resolved):
    """One kind of process in a deployment."""

    name: str
    pool: str
    """The fleet's pool; empty where it needs no machine of its own."""

    instance_type: str
    """The type of that pool that was chosen."""

    accelerators: int
    """Of one replica."""

    count: Bounds
    processes: tuple[Process, ...]
    """On `local` one for each replica; elsewhere the one that all replicas are like."""


class Weights(Resolved):
    """Where the weights come from."""

    uri: str
    """s3://BUCKET/PREFIX/"""

    loader: str
    """The engine's own name of the way they are loaded."""

    bytes: int
    """Size of the weights."""

    random: bool
    """Whether they are random numbers from a seed: every page that shows their output says so."""


class Deployment(Resolved):
    """What runs: all that a renderer needs."""

    name: str
    pattern: str
    target: str
    fleet: str
    model: str
    """As the blueprint names it: in the catalogue, on the hub, or a folder."""

    served_model: str
    """The name that clients put in `model`."""

    engine: str
    weights: Weights
    context: int
    workers: Role
    router: Role
    url: str
    """Base URL for clients, without /v1."""

    traffic: Traffic
    slo: Slo
    place: Place
    notes: tuple[str, ...] = ()
    """What the user should know of this target, a sentence each."""

    emulated: tuple[str, ...] = ()
    """What stands in for what; shown to the user wherever a result is."""

    @property
    def processes(self) -> tuple[Process, ...]:
        """All that runs, in the order of starting."""
        return (*self.place.services, *self.workers.processes, *self.router.processes)
