"""`blueprint.yaml` of kind batch: the endpoint to feed, its teams, its workers and its limits. Plain typed data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llm_serving.fleet.model import Name
from llm_serving.settings.document import AllowSingleItem, Conflict, Document, Settings, load, parse_default
from llm_serving.settings.units import Bounds, Duration, Memory, Range, Share, Switch, TextFormat, TokenRange, Tokens
from llm_serving.workloads import base
from llm_serving.workloads.base import BaseBlueprint
from llm_serving.workloads.batch.secrets import ApiKey, Secret
from llm_serving.workloads.serving.roles import ModelName

Url = Annotated[
    str,
    TextFormat(
        r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?",
        "the base URL of an OpenAI-compatible endpoint",
        "http://127.0.0.1:8000",
    ),
]

CacheUrl = Annotated[
    str,
    TextFormat(
        r"rediss?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[0-9]{1,2})?",
        "the address of Valkey or Redis, without user and password",
        "rediss://cache.example.com:6379",
    ),
]

InputLocation = Annotated[
    str,
    TextFormat(
        r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+@-]+",
        "an S3 location: s3://BUCKET/PREFIX",
        "s3://my-catalogue/exports",
    ),
]

ScheduleTime = Annotated[
    str,
    TextFormat(
        r"cron\([0-9A-Za-z*?,/# -]{11,100}\)|rate\([1-9][0-9]{0,5} (?:minute|hour|day)s?\)",
        "a time of EventBridge Scheduler, in UTC",
        "cron(0 2 * * ? *)",
    ),
]

ScheduledFile = Annotated[
    str,
    TextFormat(
        r"[A-Za-z0-9][A-Za-z0-9._=+@-]*(?:/[A-Za-z0-9._=+@-]+)*",
        "a file below batch/NAME/scheduled/ in the results bucket",
        "catalogue.jsonl",
    ),
]

Concurrency = Annotated[Bounds, Range("a number of requests in flight", "4..256", 1, 100_000)]

Priority = Literal["high", "normal", "low"]


class Endpoint(Settings):
    """What answers the rows: exactly one of `model`, `deployment` and `url`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["model"]}, {"required": ["deployment"]}, {"required": ["url"]}],
        }
    )

    model: ModelName | None = None
    """Replicas of this model run beside the workers, behind a router of their own."""

    pool: Name | None = None
    """The fleet's pool that carries the replicas; with `model` alone."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Replicas of the model."""

    accelerators: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators of one replica."""

    context: Tokens = 4096
    """Most tokens of a request, prompt and answer together, of the replicas."""

    deployment: Name | None = None
    """A serving deployment that is up, by its name."""

    url: Url | None = None
    """Any OpenAI-compatible endpoint, without /v1. BLUEPRINT_API_KEY in the environment is its bearer token, on AWS the
    secret `api_key`."""

    api_key: ApiKey | None = None
    """Secret of AWS Secrets Manager with the bearer token of the endpoint at `url`; on AWS alone."""

    priority: Annotated[bool, Switch()] = False
    """Whether the endpoint at `url` schedules by `priority`, as vLLM does with `--scheduling-policy priority`: rows go
    after requests without one then. Of a `deployment`, its own `tuning.priority` says it."""

    metrics: Annotated[tuple[Url, ...], AllowSingleItem()] = ()
    """Pages with vLLM's metrics, such as http://127.0.0.1:8000/metrics, by whose queues the workers adapt; with `url`
    alone. Where there are none, they adapt by answers alone."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_one(), self._check_pool(), self._check_metrics(), self._check_api_key())

    def _check_one(self) -> Iterator[Conflict]:
        written = [name for name in ("model", "deployment", "url") if getattr(self, name) is not None]
        if len(written) != 1:
            key_path = (written[1],) if written else ()
            reason = "it must have exactly one of model, deployment and url"
            yield Conflict(key_path, reason, "model: tiny, or deployment: NAME, or url: http://HOST:PORT")

    def _check_pool(self) -> Iterator[Conflict]:
        own = {"pool", "replicas", "accelerators", "context"} & self.model_fields_set
        if self.model and not self.pool:
            yield Conflict(("pool",), "replicas of a model need a pool of the fleet", "pool: NAME")
        if not self.model and own:
            key = sorted(own)[0]
            yield Conflict((key,), "it is for replicas of a model, and there is no `model`", f"no {key}")

    def _check_metrics(self) -> Iterator[Conflict]:
        if self.priority and not self.url:
            yield Conflict(("priority",), "only the endpoint of a `url` cannot say it itself", "no priority")
        if self.metrics and not self.url:
            yield Conflict(("metrics",), "the metrics of its own replicas are known", "no metrics")

    def _check_api_key(self) -> Iterator[Conflict]:
        if self.api_key and not self.url:
            yield Conflict(("api_key",), "only the endpoint of a `url` takes one", "no api_key")


class Team(Settings):
    """Who submits jobs."""

    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Share of the tokens, against the other teams that have rows of the same priority."""

    priority: Priority = "normal"
    """Of its jobs, where a submission names none."""

    tokens_per_day: Annotated[int, Field(ge=1)] | None = None
    """Most tokens a day (UTC), input and output together; rows beyond wait for the next day."""


class Workers(Settings):
    """The processes that send rows."""

    count: Annotated[int, Field(ge=1, le=1000)] = 2
    """How many run."""

    concurrency: Concurrency = parse_default("4..256")
    """Requests in flight of each: the worker finds the best number between the two."""

    spot: Annotated[bool, Switch()] = True
    """Whether they run on spot capacity on AWS, which ends them with two minutes' notice: they hand back their rows."""

    pool: Name | None = None
    """The fleet's pool that they run on, on EKS; nodes without taints where left out. A pool of CPUs is enough."""


class Schedule(Settings):
    """A file that becomes a job again and again; on AWS alone."""

    at: ScheduleTime
    """When: cron(...) or rate(...) of EventBridge Scheduler, in UTC."""

    file: ScheduledFile
    """The file, below batch/NAME/scheduled/ in the results bucket."""

    team: str | None = None
    """The team whose job it is; the first where left out."""

    priority: Priority | None = None
    """Of the job; the team's own where left out."""


class Limits(Settings):
    """What a job may take, and what happens to rows that cannot run."""

    deadline: Duration = parse_default("24h")
    """Of a job, where a submission names none; rows that have not started by then fail as `batch_expired`."""

    bad_rows: Literal["skip", "refuse"] = "skip"
    """Rows that cannot run fail alone (`skip`), or the whole job does (`refuse`)."""

    long_inputs: Literal["reject", "truncate-head", "truncate-middle", "truncate-tail", "split-and-reduce"] = "reject"
    """Rows longer than the model's context: fail, or lose what lies at the head, in the middle or at the tail of their
    longest message or prompt; or the row is asked for each piece of that text, and then once more with the answers in
    the text's place. The answer's line says what was done."""

    attempts: Annotated[int, Field(ge=1, le=100)] = 5
    """Times that a row is sent before it fails; answers 429 and 503, and an endpoint that is away, do not count."""

    request_timeout: Annotated[Duration, Field(ge=1, le=86400)] = parse_default("10min")
    """Longest answer."""

    chunk: Memory = parse_default("16Mi")
    """Most bytes of a chunk, which one worker has at a time; smaller in small files, so that all workers have some."""

    failed_chunks: Share = parse_default("0%")
    """Chunks that may be given up, because each attempt ended the worker, before the job fails."""

    takeover: Annotated[Duration, Field(ge=2, le=43200)] = parse_default("30s")
    """How long after a worker's last sign of life another one takes its chunks."""


class Cache(Settings):
    """Valkey or Redis, where servers look answers up; S3 keeps them whatever happens to it."""

    url: CacheUrl
    """Its address; `rediss` with TLS. BATCH_CACHE_USERNAME and BATCH_CACHE_PASSWORD in the workers' environment log in,
    on AWS `login`, and BATCH_CACHE_CA_FILE names certificates to trust in place of the system's."""

    login: Secret | None = None
    """Secret of AWS Secrets Manager that workers log in with, JSON with `username` and `password`; on AWS alone. Where
    the cache has a password alone, the user is `default`."""

    cluster: Annotated[bool, Switch()] = False
    """Whether it is in cluster mode, as ElastiCache Serverless always is; `url` is then its configuration endpoint."""

    ttl: Annotated[Duration, Field(ge=1)] = parse_default("7d")
    """How long it keeps an answer."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_login(), self._check_cluster())

    def _check_cluster(self) -> Iterator[Conflict]:
        address, _, database = self.url.partition("://")[2].partition("/")
        if self.cluster and database not in ("", "0"):
            fix = f"url: {self.url.partition('://')[0]}://{address}"
            yield Conflict(("url",), "a cache in cluster mode has database 0 alone", fix)

    def _check_login(self) -> Iterator[Conflict]:
        if self.login and not self.url.startswith("rediss://"):
            yield Conflict(
                ("login",), "without TLS the password could be read on its way", f"url: rediss{self.url[5:]}"
            )


class Results(Settings):
    """Where results go besides output.jsonl and errors.jsonl."""

    parquet: Annotated[bool, Switch()] = False
    """Writes them as Parquet too, below results/team=T/date=D/batch=ID/ of the deployment's prefix."""

    cache: Cache | None = None
    """A cache of the answers; none where left out."""


class Sample(Settings):
    """The job that `validate` runs."""

    team: str | None = None
    """The team that submits it; the first where left out."""

    rows: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """How many rows can run."""

    bad_rows: Annotated[int, Field(ge=0, le=10_000)] = 5
    """How many more cannot: damaged, without or with a doubled custom_id. All must be in the errors file."""

    input_tokens: TokenRange = parse_default("16..64")
    """Length of a prompt, in words."""

    output_tokens: TokenRange = parse_default("8")
    """Length of an answer."""

    model: str | None = None
    """`model` of the rows; the replicas' own where left out."""


class BatchSlo(Settings):
    """What the sample job must be like. No row may be lost or doubled, whatever stands here."""

    deadline: Duration = parse_default("10min")
    """Longest time from submission to results."""

    endpoint_use: Share | None = None
    """Least output tokens a second, as a share of what the endpoint gives to the best of several fixed concurrencies,
    measured in the same run."""

    failed_rows: Share = parse_default("0%")
    """Most rows that could run and failed."""

    urgent_row: Duration | None = None
    """Longest time from the submission of a job of `priority: high` to its first result while jobs of all teams run."""


class Blueprint(BaseBlueprint):
    """A user's copy of a pattern that runs batches."""

    kind: Literal["batch"] = "batch"
    """What sort of work this is."""

    pattern: Literal["offline-batch"] = "offline-batch"
    """The folder under blueprints/ that this is a copy of."""

    endpoint: Annotated[Endpoint, Field(examples=[{"url": "http://127.0.0.1:8000"}])]
    """What answers the rows."""

    teams: Annotated[dict[Name, Team], Field(min_length=1, max_length=30)] = Field(
        default_factory=lambda: {"default": Team()}
    )
    """Who submits jobs, by name."""

    workers: Workers = Workers()
    """The processes that send rows."""

    limits: Limits = Limits()
    """What a job may take."""

    results: Results = Results()
    """Where results go besides output.jsonl and errors.jsonl."""

    inputs: Annotated[tuple[InputLocation, ...], Field(max_length=20), AllowSingleItem()] = ()
    """Places in S3 beside the results bucket that jobs on AWS may read their files from, one or a list."""

    schedules: Annotated[dict[Name, Schedule], Field(max_length=50)] = Field(default_factory=dict)
    """Files that become jobs again and again, by name; on AWS alone."""

    sample: Sample = Sample()
    """The job that `validate` runs."""

    slo: BatchSlo = BatchSlo()
    """What the sample job must be like."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_sample(), self._check_schedules(), self._check_urgent_row())

    def _check_urgent_row(self) -> Iterator[Conflict]:
        if self.slo.urgent_row is not None and len(self.teams) == 1:
            reason = "an urgent job is measured among jobs of several teams, and there is one"
            yield Conflict(("slo", "urgent_row"), reason, "no urgent_row")

    def _check_schedules(self) -> Iterator[Conflict]:
        for name, schedule in self.schedules.items():
            if schedule.team is not None and schedule.team not in self.teams:
                yield Conflict(("schedules", name, "team"), "there is no such team", " or ".join(self.teams))

    def _check_sample(self) -> Iterator[Conflict]:
        team = self.sample.team
        if team is not None and team not in self.teams:
            yield Conflict(("sample", "team"), "there is no such team", " or ".join(self.teams))
        if self.endpoint.model is None and self.sample.model is None:
            reason = "the endpoint is another one's, so the rows must say which of its models they want"
            yield Conflict(("sample",), reason, "sample: {model: NAME}")


def read(folder: Path) -> Document[Blueprint]:
    """Reads the blueprint in `folder`.

    Raises:
        InputError: with every mistake of its file at once.
    """
    return load(folder / base.FILE_NAME, Blueprint)
