"""A blueprint resolved against a fleet: frozen data with every number decided. Templates lay it out and compute nothing."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from blueprints.blueprint import Slo, Traffic
from infra.units import Bounds


class Resolved(BaseModel):
    """Base of resolved data: frozen, plain, and JSON at any time."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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

    engine: str = ""
    """Folder of the engine's executables; empty where the image's PATH has them."""

    data: str = ""
    """Folder for all that a run writes."""

    ports: dict[str, int] = {}
    """Port by process name, where they are chosen by the place."""

    memory_bytes: int = 0
    """Memory of this machine, where the place is one machine."""

    cores: int = 0
    """Cores of this machine, where the place is one machine."""


class Probe(Resolved):
    """How to know that a process answers: a real completion, never a health page alone."""

    path: str
    body: dict[str, str | int]
    deadline_s: float


class Process(Resolved):
    """One running copy of a role."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    port: int
    probe: Probe


class Role(Resolved):
    """One kind of process in a deployment."""

    name: str
    pool: str
    instance_type: str
    accelerators: int
    count: Bounds
    memory_bytes: int
    """What one replica takes of its machine's memory."""

    processes: tuple[Process, ...]
    """On `local` one for each replica; elsewhere the one that all replicas are like."""


class Weights(Resolved):
    """Where the weights come from."""

    uri: str
    """s3://BUCKET/PREFIX"""

    loader: str
    """vLLM's --load-format."""

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
    emulated: tuple[str, ...] = ()
    """What stands in for what; shown to the user wherever a result is."""
