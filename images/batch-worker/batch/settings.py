"""Settings of the worker and the Batch API: a JSON document in BATCH_SETTINGS, which `blueprint render` shows.

What a container alone knows, and what is secret, are variables of their own.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
"""Version of the document that this image reads."""


class BadSettings(Exception):
    """The settings cannot be read; the text has the reason and the fix."""


@dataclass(frozen=True)
class Team:
    """A team's share."""

    weight: int
    priority: str
    """Priority of its jobs if the submission has none, as with `deadline_s`."""

    deadline_s: float
    tokens_per_day: int | None
    """Maximum tokens per day (UTC); None for no limit."""

    queues: Mapping[str, str]
    """Names of the queues with chunks, by priority."""


@dataclass(frozen=True)
class Objective:
    """A limit of the SLO of the deployment that shares the engines."""

    metric: str
    """Name of the histogram, in seconds."""

    limit_s: float
    allowed: float
    """Share of samples that may be above, 0 to 1: what the percentile leaves."""


@dataclass(frozen=True)
class KeySecret:
    """The secret with the endpoint's bearer token."""

    secret: str
    """Its name or ARN."""

    field: str
    """Field of its JSON; empty if its whole text is the token."""


@dataclass(frozen=True)
class KeysSource:
    """Where the keys of teams are: one of the two."""

    secret: str = ""
    """Name or ARN of a secret of AWS Secrets Manager."""

    file: str = ""


@dataclass(frozen=True)
class CacheSettings:
    """The cache that gets the answers besides S3."""

    url: str
    ttl_s: float
    is_cluster: bool
    queue: str = ""
    """Name of a queue whose messages ring an alarm: one for each chunk whose answers are missing; empty for none."""

    login_secret: str = ""
    """Name or ARN of the secret with user and password in its JSON; empty for the variables."""

    username: str = ""
    password: str = ""
    ca_file: str = ""
    """File of certificates to trust instead of the system's; empty for the system's."""


@dataclass(frozen=True)
class Settings:
    """Settings of both programs."""

    name: str
    """Name of the state machine."""

    bucket: str
    prefix: str
    priorities: tuple[str, ...]
    """Rows of a priority run before those of every one after it."""

    teams: Mapping[str, Team]
    control_queue: str
    """Name of the queue with the steps of jobs that are not chunks."""

    inbox_queue: str
    """Name of the queue with S3's events of the inboxes."""

    workers: int
    min_concurrency: int
    max_concurrency: int
    """Bounds of a worker's requests in flight."""

    drain_s: float
    """How long rows in flight may finish after SIGTERM."""

    bad_rows: str
    """`skip` or `refuse`, if the submission has none."""

    long_inputs: str
    """Rule for rows longer than the context (batch/long_inputs.py)."""

    attempts: int
    request_timeout_s: float
    chunk_bytes: int
    failed_chunks: float
    """Share of chunks that may be given up before the job fails, 0 to 1."""

    max_deadline_s: float
    """Longest deadline of a job."""

    takeover_s: float
    """Visibility timeout of the queues: another worker takes the chunks of one that was silent for so long."""

    endpoint: str
    """Base URL of the endpoint, without /v1."""

    is_shared: bool
    """Whether the engines also serve others: then no row may wait there."""

    has_priority: bool
    """Whether the engines schedule by `priority` of a request."""

    headers: Mapping[str, str]
    """Further headers of each request for an answer: its class at what holds requests before the engines."""

    api_key: KeySecret | None
    """None if the variable BLUEPRINT_API_KEY has it, or if there is none."""

    team_keys: KeysSource | None
    """None where the Batch API asks for no key; workers have none."""

    metrics_urls: tuple[str, ...]
    """Pages with the engines' metrics."""

    metrics: Mapping[str, tuple[str, ...]]
    """Names on these pages of `queue`, `running`, `kv-usage` and `preemptions`; several if the engine is unknown."""

    objectives: tuple[Objective, ...]
    """Objectives of the deployment that shares the engines: the worker sends fewer rows if they are missed."""

    has_parquet: bool
    """Whether results are written as Parquet too."""

    cache: CacheSettings | None
    usd_h: float | None
    """Cost of the endpoint per hour; None if unknown."""

    logs: str
    """`text` or `json`."""

    worker: str = ""
    """Unique name of the worker."""

    ready_file: str = ""
    """File that exists while it takes steps; empty for none."""

    plain_api_key: str = ""
    """The endpoint's bearer token if it is in no secret; empty for none."""

    is_emulated: bool = False
    """Whether AWS is an emulator."""

    @property
    def run_queues(self) -> dict[tuple[str, str], str]:
        """Names of the queues with chunks, by team and priority."""
        return {
            (team, priority): name
            for team, settings in self.teams.items()
            for priority, name in settings.queues.items()
        }

    @property
    def queue_wait_s(self) -> int:
        """How long SQS waits for a message before it answers that there is none.

        An emulator waits less: it waits for a worker that was killed, too, and gives it the message.
        """
        return 2 if self.is_emulated else 10


def read(env: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        BadSettings: they are missing, of another version, or incomplete.
    """
    try:
        document = json.loads(env["BATCH_SETTINGS"])
        version = document.pop("version")
    except (KeyError, ValueError, AttributeError) as error:
        raise BadSettings(f"BATCH_SETTINGS: {error!r}. Fix: deploy with `blueprint deploy`, which writes it.") from None
    if version != VERSION:
        raise BadSettings(
            f"BATCH_SETTINGS: version {version}; this image reads version {VERSION}. Fix: build the image of the "
            "version that deploys it, with images/build batch-worker, and deploy again."
        )
    try:
        return _build(document, env)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadSettings(f"BATCH_SETTINGS: {error}. Fix: deploy with the version of this image.") from None


def _build(document: dict[str, Any], env: Mapping[str, str]) -> Settings:
    own: dict[str, Any] = {
        "worker": env.get("BATCH_WORKER") or socket.gethostname(),  # unique for each container
        "ready_file": env.get("BATCH_READY_FILE", ""),
        "plain_api_key": env.get("BLUEPRINT_API_KEY", ""),
        "is_emulated": bool(env.get("AWS_ENDPOINT_URL")),
    }
    cache, api_key, team_keys = document.pop("cache"), document.pop("api_key"), document.pop("team_keys")
    login: dict[str, Any] = {
        name: env.get(f"BATCH_CACHE_{name.upper()}", "") for name in ("username", "password", "ca_file")
    }
    return Settings(
        teams={name: Team(**team) for name, team in document.pop("teams").items()},
        objectives=tuple(Objective(**objective) for objective in document.pop("objectives")),
        metrics={name: tuple(names) for name, names in document.pop("metrics").items()},
        metrics_urls=tuple(document.pop("metrics_urls")),
        priorities=tuple(document.pop("priorities")),
        cache=cache and CacheSettings(**cache, **login),
        api_key=api_key and KeySecret(**api_key),
        team_keys=team_keys and KeysSource(**team_keys),
        **document,
        **own,
    )
