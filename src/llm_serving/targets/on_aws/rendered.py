"""What rendered files of deployments on ECS and on EKS have in common: a container, and the resources of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field

from llm_serving.fleet.model import Name
from llm_serving.fleet.pool import Orchestrator
from llm_serving.settings.document import AllowSingleItem, Conflict, Settings
from llm_serving.settings.units import Switch, TextFormat

T = TypeVar("T")

ZeroOrMore = Annotated[tuple[T, ...], AllowSingleItem()]
Port = Annotated[int, Field(ge=1, le=65535)]
S3Location = Annotated[
    str,
    TextFormat(
        r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+@-]+",
        "an S3 location: s3://BUCKET/PREFIX",
        "s3://my-models/qwen3-32b/",
    ),
]


def format_stack_name(kind: str, deployment: str) -> str:
    """Format the name of a deployment's stack."""
    return f"{kind}-{deployment}"


class Probe(Settings):
    """A request that proves readiness."""

    path: str
    body: str
    """JSON."""

    health: str = "/health"
    """Path that tells whether the process is alive, however many requests wait."""

    deadline_s: Annotated[int, Field(ge=1)]
    """Seconds after which a start without a response has failed."""


class Container(Settings):
    """Like containers, each alone in its task or pod."""

    name: Name
    role: Name
    count: Annotated[int, Field(ge=0, le=1000)] = 1
    """How many, or the minimum where they scale; 0 scales to zero without requests."""

    image: str
    command: ZeroOrMore[str]
    environment: dict[str, str] = Field(default_factory=dict)
    cpus: Annotated[int, Field(ge=1, le=512)]
    memory_mib: Annotated[int, Field(ge=128)]
    probe: Probe | None = None
    """None if another process of the replica has the endpoint, or there is none."""

    stop_s: Annotated[int, Field(ge=2, le=86_400)]
    """Seconds from the stop signal until it is killed."""

    @property
    def is_checked(self) -> bool:
        """Whether something asks it if it works."""
        return self.probe is not None


class ReadSecret(Settings):
    """A secret of AWS Secrets Manager that a program reads; its environment says what for."""

    secret: str
    """Name or ARN."""

    key: str = ""
    """ARN of the KMS key that encrypts it; empty for the one that AWS manages."""


class BatchProgram(Container):
    """Containers of the Batch API, or of the workers."""

    spot: Annotated[bool, Switch()] = False
    """Whether they run on spot capacity first; otherwise on none."""

    port: Port | None = None
    """Port of the Batch API; none of workers."""

    ready_file: str = ""
    """File of its container that is there once it works; empty where a request proves that."""

    secrets: ZeroOrMore[ReadSecret] = ()

    @property
    def is_checked(self) -> bool:
        return bool(self.ready_file) or super().is_checked


class BatchSchedule(Settings):
    """A file that becomes a job again and again."""

    at: str
    file: str
    team: Name
    priority: str


class ResultsTable(Settings):
    """The table over Parquet results in the Glue Data Catalog."""

    database: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,255}$")]
    teams: Annotated[tuple[Name, ...], AllowSingleItem(), Field(min_length=1)]
    """Whose results it shows."""


class BatchManifest(Settings):
    """A deployment that runs batches: what the stack batch-NAME makes of it."""

    ORCHESTRATOR: ClassVar[Orchestrator]

    kind: Literal["batch"]
    name: Name
    fleet: Name
    workflow: Annotated[str, Field(pattern=r"^[a-z0-9-]{3,80}$")]
    """The state machine."""

    bucket: str
    prefix: str
    inputs: ZeroOrMore[S3Location] = ()
    """Further places in S3 that jobs may be of."""

    takeover_s: Annotated[int, Field(ge=1, le=43_200)]
    """How long after a worker's last sign of life others get its messages."""

    control_queue: str
    inbox_queue: str
    run_queues: Annotated[tuple[str, ...], AllowSingleItem(), Field(min_length=1)]
    endpoint_port: Port
    """Port of what answers the rows."""

    endpoint_deployment: str = ""
    """The deployment that answers them, in the fleet's network; empty where what does may be anywhere."""

    cache_port: Port | None = None
    """Port of the cache in the fleet's network, which workers write answers to."""

    results_table: ResultsTable | None = None
    """None where results are no Parquet."""

    schedules: dict[Name, BatchSchedule] = Field(default_factory=dict)
    services: Annotated[tuple[BatchProgram, ...], AllowSingleItem(), Field(min_length=2)]

    @property
    def entry(self) -> BatchProgram:
        """The Batch API."""
        return next(service for service in self.services if service.port)

    def _check_single_api(self) -> Iterator[Conflict]:
        count = sum(service.port is not None for service in self.services)
        if count != 1:
            yield Conflict(("services",), f"{count} of them have a port", "exactly one, the Batch API")
