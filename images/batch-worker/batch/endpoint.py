"""Sends rows to an OpenAI-compatible endpoint, and reads the load of its engines."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import aiohttp

from batch import rows
from batch.secrets import ApiKey

REQUESTS = "batch-requests"
"""Logger with a line for each request."""

FIELDS = "fields"
"""Attribute of its records, with what a line of JSON has besides the message."""

log = logging.getLogger(REQUESTS)

UNAUTHORIZED, NOT_FOUND = 401, 404
"""Statuses of an endpoint that refuses the key, and of one without the model."""

BUSY_STATUSES = (429, 503)
"""Statuses of an overloaded endpoint: the row waits, and its attempt does not count."""

_NO_LIST_STATUSES = (NOT_FOUND, 405, 501)
"""Statuses of an endpoint that runs and has no list of its models."""

_PROBE_TIMEOUT_S = 10.0

_MAX_ANSWER_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Answer:
    status: int
    raw: bytes
    body: Any
    """Parsed; None if it is not JSON."""

    retry_after_s: float = 0.0

    @property
    def input_tokens(self) -> int:
        return rows.read_usage(self.body, *rows.INPUT_TOKENS) or 0

    @property
    def output_tokens(self) -> int:
        return rows.read_usage(self.body, *rows.OUTPUT_TOKENS) or 0


class EndpointAway(Exception):
    """The endpoint does not accept connections: nothing was sent."""


class NoAnswer(Exception):
    """The request was sent and has no complete answer: it timed out, or the connection ended."""


class Endpoint:
    """One base URL."""

    def __init__(
        self,
        base: str,
        api_key: ApiKey,
        timeout_s: float,
        metrics: Sequence[str],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._base, self._api_key = base, api_key
        self._metrics = metrics
        self._session = aiohttp.ClientSession(
            headers={**headers, "X-Request-Class": "batch"},  # the fleet's routers count these apart
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=10),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=10),
        )
        # Of its own: the key is for the endpoint, and metrics pages are often plain HTTP.
        self._metrics_session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._set_key()

    def _set_key(self) -> None:
        self._key = self._api_key.value
        if self._key:
            self._session.headers["Authorization"] = f"Bearer {self._key}"

    async def close(self) -> None:
        await self._session.close()
        await self._metrics_session.close()

    async def send(self, path: str, body: Mapping[str, Any], source: str = "tokens") -> Answer:
        """Send a request, and again if the key was refused and has changed since.

        Args:
            source: what it is sent for. The id by which the logs of all parts tell of a request begins with it.

        Raises:
            EndpointAway: nothing was sent.
            NoAnswer: it was sent, and there is no complete answer.
        """
        key = self._key
        answer = await self._log_post(path, body, source)
        if answer.status == UNAUTHORIZED and await self._renew_key(key):
            answer = await self._log_post(path, body, source)
        return answer

    async def _renew_key(self, refused: str) -> bool:
        """Read the key again after a refusal; returns whether it changed."""
        is_renewed = await asyncio.to_thread(self._api_key.renew, refused)
        self._set_key()
        return is_renewed

    async def _log_post(self, path: str, body: Mapping[str, Any], source: str) -> Answer:
        """Send a request under an id of its own, and log how it ended; neither its text nor the answer's."""
        request_id, started = f"{source}.{secrets.token_hex(4)}", time.monotonic()
        end: dict[str, Any] = {"status": 0}  # of a request that has no answer
        try:
            answer = await self._post(path, body, request_id)
            end = {"status": answer.status, "input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
            return answer
        except (EndpointAway, NoAnswer) as error:
            end["error"] = str(error)
            raise
        finally:
            fields = {"request_id": request_id, "path": path, **end, "seconds": round(time.monotonic() - started, 3)}
            log.info("request", extra={FIELDS: fields})

    async def _post(self, path: str, body: Mapping[str, Any], request_id: str) -> Answer:
        headers = {"X-Request-Id": request_id}
        try:
            async with self._session.post(
                self._base + path, json=body, headers=headers, allow_redirects=False
            ) as response:
                raw = await response.content.read(_MAX_ANSWER_BYTES)
                while not response.content.at_eof():
                    block = await response.content.read(_MAX_ANSWER_BYTES)
                    if len(raw) + len(block) > _MAX_ANSWER_BYTES:
                        raise NoAnswer(f"the answer has more than {_MAX_ANSWER_BYTES} bytes")
                    raw += block
                return Answer(response.status, raw, _parse(raw), _parse_seconds(response.headers.get("Retry-After")))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EndpointAway(str(error)) from None
        except TimeoutError:
            raise NoAnswer("no answer within the time limit") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from None

    async def count_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Count the tokens of a prompt or of messages by vLLM, with its template; None if that fails."""
        try:
            answer = await self.send("/tokenize", body)
        except (EndpointAway, NoAnswer):
            return None
        count = answer.body.get("count") if answer.status == 200 and isinstance(answer.body, dict) else None
        return count if isinstance(count, int) else None

    async def is_up(self) -> bool:
        """Return whether it lists its models: it is running, accepts the key, and has an engine.

        Some endpoints, such as servers of embeddings, have no such list: that they answer is enough.
        """
        key, timeout = self._key, aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        try:
            url = f"{self._base}/v1/models"
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                await response.read()
                if response.status == UNAUTHORIZED:
                    await self._renew_key(key)
                return response.status in (200, *_NO_LIST_STATUSES)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    async def read_metrics(self) -> dict[str, str]:
        """Read the engines' metrics pages, by URL with the engine's address; those that answer."""
        resolved = await asyncio.gather(*(_find_pages(url) for url in self._metrics))
        hosts = {url: host for urls, host in resolved for url in urls}
        pages = await asyncio.gather(*(self._read_page(url, host) for url, host in hosts.items()))
        return {url: page for url, page in zip(hosts, pages, strict=True) if page}

    async def _read_page(self, url: str, host: str) -> str:
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        try:
            session, headers = self._metrics_session, {"Host": host}
            async with session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                return await response.text() if response.status == 200 else ""
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return ""


async def _find_pages(url: str) -> tuple[list[str], str]:
    """Resolve a URL to the page at each address of its host, and the host: a headless Service has one for each engine.

    With TLS, return only the URL itself, because the certificate is for its name.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http":
        return [url], parts.netloc
    try:
        loop = asyncio.get_running_loop()
        entries = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except OSError:  # the name does not exist: no engine runs
        return [], parts.netloc
    family = entries[0][0]  # of one family: engines have addresses of both
    addresses = {entry[4][0]: None for entry in entries if entry[0] == family}
    hosts = [f"[{address}]" if ":" in address else address for address in map(str, addresses)]
    return [parts._replace(netloc=f"{host}:{parts.port or 80}").geturl() for host in hosts], parts.netloc


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None


def _parse_seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:  # a date
        return 0.0
