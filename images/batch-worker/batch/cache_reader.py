"""Reads answers of batches from Valkey or Redis. Servers copy this file; it needs only the package `redis`.

reader = ResultReader("rediss://cache.example:6379", "mine", "ads", password=..., prompt_version="3")
result = reader.get("sku-1")          # None: missing, expired, or of another model or prompt
results = reader.get_many(["sku-1", "sku-2"])
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Result:
    """An answer."""

    answer: Any
    """Text; a list of vectors for an embedding."""

    model: str | None
    prompt_version: str
    """`prompt_version` in the metadata of the job."""

    batch: str
    at: float
    """When the job was submitted, in seconds since 1970."""


class ResultReader:
    """The answers of one team."""

    def __init__(
        self,
        url: str,
        deployment: str,
        team: str,
        *,
        username: str = "",
        password: str = "",
        ca_file: str = "",
        cluster: bool = False,
        model: str | None = None,
        prompt_version: str | None = None,
    ) -> None:
        """Open a cache; connects later.

        Args:
            url: redis://HOST:PORT, or with TLS rediss://HOST:PORT.
            ca_file: certificates to trust in place of the system's.
            cluster: whether the cache is in cluster mode, as ElastiCache Serverless always is.
            model: return only its answers; None for any, as with `prompt_version`.
        """
        self._redis = Client(url, build_login(username, password), ca_file, cluster=cluster)
        self._deployment, self._team = deployment, team
        self._model, self._prompt_version = model, prompt_version

    def get(self, custom_id: str) -> Result | None:
        """Read one answer.

        Raises:
            redis.RedisError: the cache is down.
        """
        return self.get_many([custom_id]).get(custom_id)

    def get_many(self, custom_ids: Iterable[str]) -> dict[str, Result]:
        """Read answers in one round trip to each node; missing ones are left out.

        Raises:
            redis.RedisError: the cache is down.
        """
        names = list(custom_ids)
        values = self._redis.run([("GET", build_key(self._deployment, self._team, name)) for name in names])
        pairs = zip(names, values, strict=True)
        results = {name: parse_value(value) for name, value in pairs}
        return {name: result for name, result in results.items() if result and self._counts(result)}

    def _counts(self, result: Result) -> bool:
        return self._model in (None, result.model) and self._prompt_version in (None, result.prompt_version)


def build_key(deployment: str, team: str, custom_id: str) -> str:
    return f"{deployment}:{team}:{custom_id}"


def parse_value(value: bytes | None) -> Result | None:
    """Parse the value of a key; None if there is none, or if it is no answer of a batch."""
    try:
        return Result(**json.loads(value)) if value is not None else None
    except (ValueError, TypeError, RecursionError):
        return None


def build_login(username: str, password: str) -> redis.CredentialProvider | None:
    """Build the arguments that log in; none if both are empty."""
    return redis.UsernamePasswordCredentialProvider(username, password) if username or password else None


class Client:
    """A client that times out after seconds, and verifies the server's certificate with TLS.

    It connects on the first command; after a failure, the next command connects again.
    """

    def __init__(self, url: str, login: redis.CredentialProvider | None, ca_file: str, *, cluster: bool) -> None:
        self._url, self._cluster = url, cluster
        self._options: dict[str, Any] = {
            "credential_provider": login,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(ExponentialBackoff(cap=1.0, base=0.1), 2),
            **({"ssl_ca_certs": ca_file} if ca_file else {}),
        }
        self._open: redis.Redis | redis.RedisCluster | None = None

    def run(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands on one key each, and return their answers in this order.

        Raises:
            redis.RedisError: the cache is down.
        """
        try:
            if self._open is None:
                self._open = (redis.RedisCluster if self._cluster else redis.Redis).from_url(self._url, **self._options)
            with self._open.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return list(pipe.execute())
        except redis.exceptions.RedisClusterException as error:  # of the package's errors the one that is no RedisError
            raise redis.ConnectionError(str(error)) from error
