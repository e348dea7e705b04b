"""Settings of the worker and the Batch API, from environment variables; `blueprint render` shows them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from batch.burn import Objective


@dataclass(frozen=True)
class TeamSettings:
    """A team's share."""

    weight: int
    priority: str
    """Priority of its jobs if the submission has none."""

    tokens_per_day: int
    """Maximum tokens per day (UTC); 0 for no limit."""

    deadline_s: float = 0.0
    """Deadline of its jobs if the submission has none; 0 for the deployment's."""


@dataclass(frozen=True)
class Settings:
    """Settings of both programs."""

    name: str
    """Name of the deployment, part of the names of queues and state machine."""

    bucket: str
    prefix: str
    teams: Mapping[str, TeamSettings]
    workers: int
    deadline_s: float
    """Deadline of a job if neither the submission nor its team has one."""

    bad_rows: str
    """`skip` or `refuse`, if the submission has none."""

    chunk_bytes: int
    failed_chunks: float
    """Share of chunks that may be given up before the job fails, 0 to 1."""

    takeover_s: float
    """Visibility timeout of the queues: another worker takes the chunks of one that was silent for so long."""

    endpoint: str
    """Base URL of the endpoint, without /v1."""

    api_key: str
    """Its bearer token; empty if it is in a secret, or if there is none."""

    api_key_secret: str
    """Name or ARN of the secret with the bearer token; empty for none."""

    api_key_field: str
    """Field of the secret's JSON; empty if its whole text is the token."""

    has_parquet: bool
    """Whether results are written as Parquet too."""

    usd_h: float | None
    """Cost of the endpoint per hour; None if unknown."""

    region: str
    is_emulated: bool
    """Whether AWS is an emulator."""

    @property
    def queue_wait_s(self) -> int:
        """How long SQS waits for a message before it answers that there is none.

        An emulator waits less: it waits for a worker that was killed, too, and gives it the message.
        """
        return 2 if self.is_emulated else 10


@dataclass(frozen=True)
class CacheSettings:
    """The cache that gets the answers besides S3."""

    url: str
    ttl_s: float
    username: str
    password: str
    login_secret: str
    """Name or ARN of the secret with both in its JSON; empty for none."""

    ca_file: str
    """File of certificates to trust instead of the system's; empty for the system's."""

    cluster: bool
    """Whether it is in cluster mode."""


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the worker only."""

    worker: str
    """Its unique name; default is the host's name, which is unique for each container."""

    ready_file: str
    """File that exists while it takes steps; empty for none."""

    metrics: tuple[str, ...]
    """Pages with vLLM's metrics."""

    is_shared: bool
    """Whether the engines also serve others: then no row may wait there."""

    objectives: tuple[Objective, ...]
    """Objectives of the deployment that shares the engines: the worker sends fewer rows if they are missed."""

    min_concurrency: int
    max_concurrency: int
    long_inputs: str
    """Rule for rows longer than the context (batch/long_inputs.py)."""

    engine_priorities: Mapping[str, int]
    """`priority` of requests by the class of their job, if the engines schedule by it: the lowest goes first."""

    attempts: int
    request_timeout_s: float
    cache: CacheSettings | None


def read(env: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of both programs.

    Raises:
        KeyError: a variable is missing.
    """
    return Settings(
        name=env["BATCH_NAME"],
        bucket=env["BATCH_BUCKET"],
        prefix=env["BATCH_PREFIX"],
        teams=parse_teams(env["BATCH_TEAMS"]),
        workers=int(env["BATCH_WORKERS"]),
        deadline_s=float(env["BATCH_DEADLINE_S"]),
        bad_rows=env["BATCH_BAD_ROWS"],
        chunk_bytes=int(env["BATCH_CHUNK_BYTES"]),
        failed_chunks=float(env["BATCH_FAILED_CHUNKS"]),
        takeover_s=float(env["BATCH_TAKEOVER_S"]),
        endpoint=env["BATCH_ENDPOINT"].rstrip("/"),
        api_key=env.get("BLUEPRINT_API_KEY", ""),
        api_key_secret=env.get("BATCH_API_KEY_SECRET", ""),
        api_key_field=env.get("BATCH_API_KEY_FIELD", ""),
        has_parquet=bool(env.get("BATCH_PARQUET")),
        usd_h=float(env["BATCH_USD_PER_HOUR"]) if env.get("BATCH_USD_PER_HOUR") else None,
        region=env["AWS_REGION"],
        is_emulated=bool(env.get("AWS_ENDPOINT_URL")),
    )


def read_worker(env: Mapping[str, str] = os.environ) -> WorkerSettings:
    """Read the settings of the worker only.

    Raises:
        KeyError: a variable is missing.
    """
    least, _, most = env["BATCH_CONCURRENCY"].partition("..")
    return WorkerSettings(
        worker=env.get("BATCH_WORKER") or socket.gethostname(),
        ready_file=env.get("BATCH_READY_FILE", ""),
        metrics=tuple(url for url in env.get("BATCH_METRICS", "").split(",") if url),
        is_shared=bool(env.get("BATCH_SHARED")),
        objectives=parse_objectives(env.get("BATCH_SLO", "")),
        min_concurrency=int(least),
        max_concurrency=int(most or least),
        long_inputs=env["BATCH_LONG_INPUTS"],
        engine_priorities=parse_priorities(env.get("BATCH_ENGINE_PRIORITIES", "")),
        attempts=int(env["BATCH_ATTEMPTS"]),
        request_timeout_s=float(env["BATCH_REQUEST_TIMEOUT_S"]),
        cache=read_cache(env),
    )


def parse_teams(text: str) -> dict[str, TeamSettings]:
    """Parse NAME:WEIGHT:PRIORITY:TOKENS_PER_DAY, or the same with :DEADLINE_S, separated by commas."""
    teams = {}
    for entry in text.split(","):
        name, weight, priority, tokens, *deadline = entry.split(":")
        teams[name] = TeamSettings(int(weight), priority, int(tokens), float(deadline[0]) if deadline else 0.0)
    return teams


def read_cache(env: Mapping[str, str]) -> CacheSettings | None:
    """Read the settings of the cache; None if there is none."""
    if not env.get("BATCH_CACHE_URL"):
        return None
    return CacheSettings(
        url=env["BATCH_CACHE_URL"],
        ttl_s=float(env["BATCH_CACHE_TTL_S"]),
        username=env.get("BATCH_CACHE_USERNAME", ""),
        password=env.get("BATCH_CACHE_PASSWORD", ""),
        login_secret=env.get("BATCH_CACHE_LOGIN_SECRET", ""),
        ca_file=env.get("BATCH_CACHE_CA_FILE", ""),
        cluster=env.get("BATCH_CACHE_CLUSTER") == "1",
    )


def parse_priorities(text: str) -> dict[str, int]:
    """Parse NAME:NUMBER, separated by commas; empty for none."""
    return {name: int(number) for name, number in (entry.split(":") for entry in text.split(",") if entry)}


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse METRIC=LIMIT_S:ALLOWED, separated by commas; empty for none."""
    objectives = []
    for entry in filter(None, text.split(",")):
        metric, _, limit = entry.partition("=")
        limit_s, allowed = limit.split(":")
        objectives.append(Objective(metric, float(limit_s), float(allowed)))
    return tuple(objectives)
