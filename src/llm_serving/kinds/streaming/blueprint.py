"""`blueprint.yaml` of kind streaming: the endpoint, the prompt, the events and their limits. Plain typed data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llm_serving.fleet.model import Name
from llm_serving.services.addresses import CacheUrl, EndpointUrl
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.slo import BaseSlo
from llm_serving.services.team_keys import ApiKey
from llm_serving.settings.document import Conflict, OneOrMore, Settings, check_one_of, parse_default
from llm_serving.settings.units import Duration, Memory, Share, Switch, read_formats

FORMATS = read_formats(Path(__file__).with_name("formats.yaml"))

OwnFile = Annotated[str, FORMATS["own-file"]]


class Mock(Settings):
    """Stands in for an endpoint: the same answer to every prompt, on this machine only."""

    latency: Annotated[Duration, Field(gt=0, le=60)] = parse_default("0.1s")
    """Time until it answers, give or take a fifth."""


class Endpoint(Settings):
    """The endpoint that answers the prompts: exactly one of `mock`, `deployment` and `url`."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["mock"]}, {"required": ["deployment"]}, {"required": ["url"]}]}
    )

    mock: Mock | None = None
    """A stand-in, to try the pipeline without a model."""

    deployment: Name | None = None
    """Name of a running serving deployment."""

    url: EndpointUrl | None = None
    """Any OpenAI-compatible endpoint, without /v1. Its bearer token is BLUEPRINT_API_KEY in the environment, on AWS the
    secret `api_key`."""

    api_key: ApiKey | None = None
    """Secret of AWS Secrets Manager with the bearer token of the endpoint at `url`; only on AWS."""

    model: str | None = None
    """`model` of the requests; default is the first of a `deployment`."""

    output_tokens: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Maximum tokens of an answer."""

    deadline: Annotated[Duration, Field(gt=0, le=3600)] = parse_default("2s")
    """Time for an answer, retries included; an event without an answer by then is a dead letter."""

    in_flight: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Requests in flight per task; further events wait in Kafka."""

    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Maximum attempts per event. Of a hundred events per task or more, at most a tenth is retried."""

    overtake: Annotated[bool, Switch()] = False
    """Whether a shopper's newer event ends the request of an older one, which becomes the dead letter `overtaken`."""

    def _check_source(self) -> Iterator[Conflict]:
        fix = "set mock: {}, deployment: NAME or url: http://HOST:PORT"
        return check_one_of(self, "mock", "deployment", "url", fix=fix)

    def _check_model(self) -> Iterator[Conflict]:
        if self.url and not self.model:
            yield Conflict(("url",), "requests to it must name a model", "set model: NAME")

    def _check_api_key(self) -> Iterator[Conflict]:
        if self.api_key and not self.url:
            yield Conflict(("api_key",), "only the endpoint of a `url` takes one", "remove api_key")


class Session(Settings):
    """What a prompt knows of its shopper."""

    timeout: Annotated[Duration, Field(ge=1, le=7 * 86400)] = parse_default("30min")
    """Age after which an event no longer belongs to the session."""

    events: Annotated[int, Field(ge=1, le=1000)] = 20
    """Maximum events of a session, the latest."""


class Limits(Settings):
    """Events beyond a limit are dead letters."""

    # Kafka takes records of 1 MiB, and a dead letter has an event's quotes escaped twice.
    event: Annotated[Memory, Field(ge=128, le=2**18)] = parse_default("16Ki")
    """Maximum size of an event."""

    late: Annotated[Duration, Field(ge=0)] = parse_default("5min")
    """How much older than the newest event of its shopper an event may be."""

    future: Annotated[Duration, Field(ge=0)] = parse_default("1min")
    """How far an event's clock may be ahead of Kafka's."""


class Shed(Settings):
    """Events that are not asked for while the endpoint is slow: they become dead letters."""

    after: Annotated[Duration, Field(ge=0.001, le=86400)]
    """Longest that an event waits for its request, from its arrival in Kafka."""

    keep: OneOrMore[Annotated[str, Field(min_length=1)]] = Field((), validate_default=False)
    """Values of `type` whose events are asked for however long they wait."""


class Cache(Settings):
    """Valkey or Redis, with the latest answer of each shopper."""

    ttl: Annotated[Duration, Field(ge=1)] = parse_default("1d")
    """Time to live of an answer."""


class Aws(Settings):
    """What runs on AWS."""

    brokers: Annotated[int, Field(ge=3, le=30, multiple_of=3)] = 3
    """Brokers of MSK, as many in each of three zones."""

    broker_type: Annotated[str, FORMATS["broker-type"]] = "kafka.m7g.large"
    """Instance type of the brokers."""

    broker_storage: Annotated[Memory, Field(ge=2**30, le=2**44)] = parse_default("100Gi")
    """Storage of each broker."""

    cache_type: Annotated[str, FORMATS["cache-type"]] = "cache.m7g.large"
    """Node type of the cache, which has a node in each of two zones."""

    parallelism: Annotated[int, Field(ge=1, le=1000)] = 4
    """Instances of the job, each on a KPU of its own: a core and 4 GB."""

    lag_alarm: Annotated[Duration, Field(ge=1, le=86400)] = parse_default("60s")
    """Consumer lag, the time between checkpoints taken off, at which an alarm rings; on EKS an alert."""


class Eks(Settings):
    """What runs on EKS: Kafka by Strimzi's operator, the job by Flink's, both of `aws`' sizes."""

    image: str | None = None
    """Image of Flink 1.20 with the job as /opt/flink/usrlib/stream-job.jar."""

    cache: CacheUrl | None = None
    """Valkey or Redis that the job reaches."""

    state_class: str | None = None
    """Storage class of a volume that several nodes write to, such as EFS's: it keeps the job's checkpoints."""

    broker_class: str = "gp3"
    """Storage class of the brokers."""


class Generator(Settings):
    """Events that come by themselves on this machine: a daily curve, bursts, few shoppers with most events."""

    rate: Annotated[float, Field(ge=0, le=100_000)] = 2
    """Events per second at the day's peak; 0 for none."""

    shoppers: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Number of shoppers."""


class Sample(Settings):
    """The events that `validate` sends, open loop."""

    events: Annotated[int, Field(ge=1, le=1_000_000)] = 600
    """Number of valid events."""

    bad_events: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Number of events that are not valid, and must be dead letters: in turn of an unknown version, cut off, too long,
    of the future, and late."""

    rate: Annotated[float, Field(gt=0, le=100_000)] = 40
    """Events per second."""

    shoppers: Annotated[int, Field(ge=1, le=10_000_000)] = 200
    """Number of shoppers."""


class StreamSlo(BaseSlo):
    """Limits for the sample. Lost and duplicated events always fail."""

    answer_p50: Duration | None = None
    """Median time from an event to its answer in the cache."""

    answer_p99: Duration = parse_default("3s")
    """99th percentile of the time from an event to its answer in the cache."""

    pipeline_p99: Duration | None = None
    """99th percentile of that time without the endpoint's."""

    dead_events: Share = parse_default("0%")
    """Maximum share of valid events that become dead letters."""


class Blueprint(BaseBlueprint):
    """A user's copy of a pattern that answers events."""

    kind: Literal["streaming"] = "streaming"
    """Kind of work."""

    pattern: Literal["near-real-time"] = "near-real-time"
    """Pattern that this is a copy of, a folder of blueprints/."""

    endpoint: Annotated[Endpoint, Field(examples=[{"url": "http://127.0.0.1:8000", "model": "tiny"}])]
    """Endpoint that answers the prompts."""

    prompt: OwnFile = "prompt.txt"
    """File with the prompt: text with {{ shopper }}, {{ session }} and {{ event.PROPERTY }}."""

    events: OwnFile = "event.schema.json"
    """File with the JSON Schema of events, which requires id, shopper, type and at (milliseconds since 1970)."""

    session: Session = Session()
    """What a prompt knows of its shopper."""

    limits: Limits = Limits()
    """Events beyond a limit are dead letters."""

    shed: Annotated[Shed | None, Field(examples=[{"after": "5s", "keep": ["purchase"]}])] = None
    """Events that are not asked for while the endpoint is slow; without it every event is."""

    cache: Cache = Cache()
    """Valkey or Redis, with the latest answer of each shopper."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Partitions of each topic. A deploy adds them, and takes none away."""

    # Kafka aborts a transaction, which lasts from one checkpoint to the next, after an hour, as StreamJob says.
    # A job that fails just before a checkpoint has half of it to start again.
    checkpoint: Annotated[Duration, Field(ge=0.1, le=1800)] = parse_default("1s")
    """Time between checkpoints. Readers of Kafka as `read_committed` see answers that late; the cache has them at
    once."""

    parquet: Annotated[bool, Switch()] = False
    """Whether answers also go to S3 as Parquet, at each `checkpoint` a file of each task. AWS has a table over them."""

    aws: Aws = Aws()
    """What runs on AWS."""

    eks: Eks = Eks()
    """What runs on EKS."""

    generator: Generator = Generator()
    """Events that come by themselves on this machine."""

    sample: Sample = Sample()
    """The events that `validate` sends."""

    slo: StreamSlo = StreamSlo()
    """Limits for the sample."""
