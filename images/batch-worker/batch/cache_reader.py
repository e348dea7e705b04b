"""Reads answers of batches from Valkey or Redis. Servers copy this file: it needs the package `redis` alone.

reader = ResultReader("rediss://cache.example:6379", "mine", "ads", password=..., prompt_version="3")
result = reader.get("sku-1")          # None: not there, not any more, or of another model or prompt
results = reader.get_many(["sku-1", "sku-2"])
"""

from __future__ import annotations

import json
from collections.abc import Iterable
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
    """Text, or of an embedding a list of vectors."""

    model: str | None
    prompt_version: str
    """As the job's metadata had it."""

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
        model: str | None = None,
        prompt_version: str | None = None,
    ) -> None:
        """Open a cache; nothing is asked yet.

        Args:
            url: redis://HOST:PORT, or with TLS rediss://HOST:PORT.
            ca_file: certificates to trust in place of the system's.
            model: what alone counts; any if None, as with `prompt_version`.
        """
        self._valkey = connect(url, username, password, ca_file)
        self._deployment, self._team = deployment, team
        self._model, self._prompt_version = model, prompt_version

    def get(self, custom_id: str) -> Result | None:
        """Read one answer.

        Raises:
            redis.RedisError: the cache is away.
        """
        return self.get_many([custom_id]).get(custom_id)

    def get_many(self, custom_ids: Iterable[str]) -> dict[str, Result]:
        """Read answers in one round trip; those that are not there are left out.

        Raises:
            redis.RedisError: the cache is away.
        """
        names = list(custom_ids)
        with self._valkey.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.get(build_key(self._deployment, self._team, name))
            found = zip(names, pipe.execute(), strict=True)
        results = {name: Result(**json.loads(value)) for name, value in found if value is not None}
        return {name: result for name, result in results.items() if self._counts(result)}

    def _counts(self, result: Result) -> bool:
        return self._model in (None, result.model) and self._prompt_version in (None, result.prompt_version)


def build_key(deployment: str, team: str, custom_id: str) -> str:
    """The key of an answer."""
    return f"{deployment}:{team}:{custom_id}"


def connect(url: str, username: str, password: str, ca_file: str) -> redis.Redis:
    """Open a client that gives up after seconds, and checks the server's certificate where there is TLS."""
    options: dict[str, Any] = {"ssl_ca_certs": ca_file} if ca_file else {}
    return redis.Redis.from_url(
        url,
        username=username or None,
        password=password or None,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(ExponentialBackoff(cap=1.0, base=0.1), 2),
        **options,
    )
