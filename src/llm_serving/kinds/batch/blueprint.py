"""`blueprint.yaml` of kind batch: the endpoint to feed, its teams, its workers and its limits. Plain typed data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from llm_serving.fleet.model import Name, parse_network
from llm_serving.kinds.serving.roles import ModelName
from llm_serving.services.addresses import CacheUrl, EndpointUrl
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.slo import BaseSlo
from llm_serving.services.team_keys import ApiKey, Secret, TeamKeys
from llm_serving.settings.document import AllowSingleItem, Conflict, Settings, check_one_of, parse_default
from llm_serving.settings.units import (
    Bounds,
    Duration,
    Memory,
    Range,
    Share,
    Switch,
    TimeZone,
    TokenRange,
    Tokens,
    read_formats,
)

FORMATS = read_formats(Path(__file__).with_name("formats.yaml"))

InputLocation = Annotated[str, FORMATS["input-location"]]
ScheduleTime = Annotated[str, FORMATS["schedule-time"]]
ScheduledFile = Annotated[str, FORMATS["scheduled-file"]]

Concurrency = Annotated[Bounds, Range("a number of requests in flight", "4..256", 1, 100_000)]

SECURITY_GROUP = "sg-"
"""How the id of a security group begins."""


def _check_network(value: str) -> str:
    if "/" in value:
        parse_network(value, "10.0.1.0/24")
    return value


Client = Annotated[str, FORMATS["client"], AfterValidator(_check_network)]

Priority = Literal["high", "normal", "low"]


class Endpoint(Settings):
    """The endpoint that answers the rows: exactly one of `model`, `deployment` and `url`."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["model"]}, {"required": ["deployment"]}, {"required": ["url"]}]}
    )

    model: ModelName | None = None
    """Model of the batch's own replicas, which run beside the workers behind their own router."""

    pool: Name | None = None
    """The fleet's pool for the replicas; only with `model`."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Replicas of the model."""

    accelerators: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators of one replica."""

    context: Tokens = 4096
    """Maximum tokens of a request to the replicas, prompt and answer together."""

    deployment: Name | None = None
    """Name of a running serving deployment."""

    url: EndpointUrl | None = None
    """Any OpenAI-compatible endpoint, without /v1. Its bearer token is BLUEPRINT_API_KEY in the environment, on AWS the
    secret `api_key`."""

    api_key: ApiKey | None = None
    """Secret of AWS Secrets Manager with the bearer token of the endpoint at `url`; only on AWS."""

    priority: Annotated[bool, Switch()] = False
    """Whether the endpoint at `url` schedules by `priority`, as vLLM does with `--scheduling-policy priority`: rows
    then run after requests without one. Of a `deployment` its `tuning.priority` says it, on AWS in the blueprint in the
    folder of its name beside this one."""

    metrics: Annotated[tuple[EndpointUrl, ...], AllowSingleItem()] = ()
    """Pages with vLLM's metrics, such as http://127.0.0.1:8000/metrics; only with `url`. Workers adapt to the queues on
    these pages; without pages, they adapt to the answers."""

    usd_per_hour: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Price of the endpoint per hour in USD, all its replicas together: jobs and teams then have a cost. Default on AWS
    is that of a `deployment` whose blueprint is in the folder of its name beside this one."""

    def _check_source(self) -> Iterator[Conflict]:
        fix = "set model: tiny, deployment: NAME or url: http://HOST:PORT"
        return check_one_of(self, "model", "deployment", "url", fix=fix)

    def _check_pool(self) -> Iterator[Conflict]:
        own = {"pool", "replicas", "accelerators", "context"} & self.model_fields_set
        if self.model and not self.pool:
            yield Conflict(("pool",), "replicas of a model need a pool of the fleet", "set pool: NAME")
        if not self.model and own:
            key = sorted(own)[0]
            yield Conflict((key,), "it is for replicas of a model, and there is no `model`", f"remove {key}")

    def _check_metrics(self) -> Iterator[Conflict]:
        if self.priority and not self.url:
            yield Conflict(("priority",), "only the endpoint of a `url` needs it", "remove priority")
        if self.metrics and not self.url:
            yield Conflict(("metrics",), "the metrics of its own replicas are known", "remove metrics")

    def _check_api_key(self) -> Iterator[Conflict]:
        if self.api_key and not self.url:
            yield Conflict(("api_key",), "only the endpoint of a `url` takes one", "remove api_key")


class Team(Settings):
    """A team that submits jobs."""

    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Share of the tokens, relative to other teams with rows of the same priority."""

    priority: Priority = "normal"
    """Priority of its jobs if the submission has none."""

    deadline: Duration | None = None
    """Deadline of its jobs if the submission has none; default is `limits.deadline`."""

    tokens_per_day: Annotated[int, Field(ge=1)] | None = None
    """Maximum tokens per day (UTC), input and output together; further rows wait for the next day."""


class Workers(Settings):
    """The processes that send rows."""

    count: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of workers."""

    concurrency: Concurrency = parse_default("4..256")
    """Requests in flight per worker, which adapts between these bounds."""

    spot: Annotated[bool, Switch()] = True
    """Whether they run on spot capacity on AWS. They hand back their rows within its two minutes' notice."""

    pool: Name | None = None
    """The fleet's pool that they run on, on EKS; default is nodes without taints. A CPU pool is enough."""


class Schedule(Settings):
    """A file that becomes a job at regular times; only on AWS."""

    at: ScheduleTime
    """Times: cron(...) or rate(...) of EventBridge Scheduler."""

    time_zone: TimeZone = "UTC"
    """Of the times of cron(...), which follow its summer time."""

    file: ScheduledFile
    """The file, below batch/NAME/scheduled/ in the results bucket."""

    team: str | None = None
    """The team of the job; default is the first."""

    priority: Priority | None = None
    """Priority of the job; default is the team's."""


class Limits(Settings):
    """Limits of a job, and what happens to rows that cannot run."""

    deadline: Duration = parse_default("24h")
    """Deadline of a job if neither the submission nor its team has one; rows that have not started by then fail as
    `batch_expired`."""

    bad_rows: Literal["skip", "refuse"] = "skip"
    """Whether invalid rows fail (`skip`), or the whole job (`refuse`)."""

    long_inputs: Literal["reject", "truncate-head", "truncate-middle", "truncate-tail", "split-and-reduce"] = "reject"
    """Rows longer than the model's context fail, or their longest message or prompt is cut at the head, in the middle
    or at the tail; or the row is sent for each piece of that text, and then once more with the answers in place of the
    text. The line of the answer says what was done."""

    attempts: Annotated[int, Field(ge=1, le=100)] = 5
    """How often a row is sent before it fails; answers 429 and 503, an endpoint that is down and a model that is gone
    after it answered do not count."""

    request_timeout: Annotated[Duration, Field(ge=1, le=86400)] = parse_default("10min")
    """Maximum time of a request."""

    chunk: Memory = parse_default("16Mi")
    """Maximum bytes of a chunk, which one worker takes at a time; less in small files, so that all workers get some."""

    failed_chunks: Share = parse_default("0%")
    """Chunks that may be given up, because each attempt ended the worker, before the job fails."""

    takeover: Annotated[Duration, Field(ge=2, le=43200)] = parse_default("30s")
    """Time after a worker's last sign of life until another takes its chunks."""


class Cache(Settings):
    """Valkey or Redis, where servers look answers up; S3 always has them too."""

    url: CacheUrl
    """Its address; `rediss` with TLS. Workers log in with BATCH_CACHE_USERNAME and BATCH_CACHE_PASSWORD of their
    environment, on AWS with `login`; BATCH_CACHE_CA_FILE names certificates to trust instead of the system's."""

    login: Secret | None = None
    """Secret of AWS Secrets Manager that workers log in with, JSON with `username` and `password`; only on AWS. For a
    cache with only a password, the user is `default`."""

    cluster: Annotated[bool, Switch()] = False
    """Whether it is in cluster mode, as ElastiCache Serverless always is; `url` is then its configuration endpoint."""

    ttl: Annotated[Duration, Field(ge=1)] = parse_default("7d")
    """Time to live of an answer."""

    def _check_cluster(self) -> Iterator[Conflict]:
        address, _, database = self.url.partition("://")[2].partition("/")
        if self.cluster and database not in ("", "0"):
            fix = f"set url: {self.url.partition('://')[0]}://{address}"
            yield Conflict(("url",), "a cache in cluster mode has database 0 only", fix)

    def _check_login(self) -> Iterator[Conflict]:
        if self.login and not self.url.startswith("rediss://"):
            yield Conflict(
                ("login",), "without TLS the password could be read on its way", f"set url: rediss{self.url[5:]}"
            )


class Results(Settings):
    """Results besides output.jsonl and errors.jsonl."""

    parquet: Annotated[bool, Switch()] = False
    """Whether to write them as Parquet too, below results/team=T/date=D/batch=ID/ of the deployment's prefix."""

    cache: Cache | None = None
    """A cache of the answers; default is none."""


class Sample(Settings):
    """The job that `validate` runs."""

    team: str | None = None
    """The team that submits it; default is the first."""

    rows: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """Number of valid rows."""

    bad_rows: Annotated[int, Field(ge=0, le=10_000)] = 5
    """Number of invalid rows: damaged, or without or with a duplicate custom_id. All must be in the errors file."""

    input_tokens: TokenRange = parse_default("16..64")
    """Length of a prompt with its chat template. One token per word is assumed if `validate` cannot ask the endpoint,
    as on AWS."""

    output_tokens: TokenRange = parse_default("8")
    """Length of an answer."""

    model: str | None = None
    """`model` of the rows; default is the replicas'."""


class BatchSlo(BaseSlo):
    """Limits for the sample job. Lost or duplicate rows always fail."""

    deadline: Duration = parse_default("10min")
    """Maximum time from submission to results."""

    endpoint_use: Share | None = None
    """Minimum output tokens per second, as a share of the best of several fixed concurrencies on the same endpoint,
    measured in the same run."""

    failed_rows: Share = parse_default("0%")
    """Maximum share of valid rows that fail."""

    urgent_row: Duration | None = None
    """Maximum time from the submission of a job of `priority: high` to its first result while jobs of all teams run."""


class Api(Settings):
    """The Batch API."""

    keys: TeamKeys | None = None
    """Keys of teams. With them a call without a key is refused, and a team sees its own files and batches only. Every
    client is every team without them."""

    clients: Annotated[tuple[Client, ...], Field(max_length=50), AllowSingleItem()] = ()
    """Who reaches it on AWS: ranges of addresses, security groups on ECS, namespaces on EKS; one or a list. Default is
    the fleet's VPC on ECS, and the deployments' namespace on EKS."""


class Blueprint(BaseBlueprint):
    """A user's copy of a pattern that runs batches."""

    kind: Literal["batch"] = "batch"
    """Kind of work."""

    pattern: Literal["offline-batch"] = "offline-batch"
    """Pattern that this is a copy of, a folder of blueprints/."""

    endpoint: Annotated[Endpoint, Field(examples=[{"url": "http://127.0.0.1:8000"}])]
    """Endpoint that answers the rows."""

    teams: Annotated[dict[Name, Team], Field(min_length=1, max_length=30)] = Field(
        default_factory=lambda: {"default": Team()}
    )
    """Teams that submit jobs, by name."""

    api: Api = Api()
    """The Batch API."""

    workers: Workers = Workers()
    """The processes that send rows."""

    limits: Limits = Limits()
    """Limits of a job."""

    results: Results = Results()
    """Results besides output.jsonl and errors.jsonl."""

    inputs: Annotated[tuple[InputLocation, ...], Field(max_length=20), AllowSingleItem()] = ()
    """More S3 locations, besides the results bucket, from which jobs on AWS may read files; one or a list."""

    schedules: Annotated[dict[Name, Schedule], Field(max_length=50)] = Field(default_factory=dict)
    """Files that become jobs at regular times, by name; only on AWS."""

    sample: Sample = Sample()
    """The job that `validate` runs."""

    slo: BatchSlo = BatchSlo()
    """Limits for the sample job."""

    def _check_urgent_row(self) -> Iterator[Conflict]:
        if self.slo.urgent_row is not None and len(self.teams) == 1:
            reason = "an urgent job is measured among jobs of several teams, and there is one"
            yield Conflict(("slo", "urgent_row"), reason, "remove urgent_row")

    def _check_schedules(self) -> Iterator[Conflict]:
        for name, schedule in self.schedules.items():
            if schedule.team is not None and schedule.team not in self.teams:
                yield Conflict(("schedules", name, "team"), "there is no such team", self._list_teams())

    def _list_teams(self) -> str:
        return f"choose {' or '.join(self.teams)}"

    def _check_sample(self) -> Iterator[Conflict]:
        team = self.sample.team
        if team is not None and team not in self.teams:
            yield Conflict(("sample", "team"), "there is no such team", self._list_teams())
        if self.endpoint.model is None and self.sample.model is None:
            reason = "the endpoint is not the batch's own, so its rows must name a model"
            yield Conflict(("sample",), reason, "set sample: {model: NAME}")


def resolve_deadline(team: Team, limits: Limits) -> float:
    """Return the deadline of a team's jobs whose submission has none."""
    return limits.deadline if team.deadline is None else team.deadline
