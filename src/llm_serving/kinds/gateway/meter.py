"""The engines' counters of tokens, as the gateway's database keeps them: one row for each deployment and time.

Between two rows a deployment costs its price; if its counters stood still, that was idle time. What teams used at a
deployment's own routers, with keys, is in a second table, a row where a counter changed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from llm_serving.kinds.gateway import database
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import Backend

_COUNTERS = ("team_answers_total", "team_input_tokens_total", "team_output_tokens_total")
"""Of images/router/keys.js."""

_TIMEOUT_S, _READERS = 10.0, 50
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def list_metered(backends: Iterable[Backend]) -> list[Backend]:
    """List the deployments whose price and counters are known, or that ask for keys themselves, each once."""
    return list({backend.name: backend for backend in backends if backend.is_metered or backend.usage_url}.values())


def record(login: Login, backends: Iterable[Backend]) -> None:
    """Add a row for each deployment, with the counters of each engine that answers.

    Raises:
        Unavailable: the database does not answer.
    """
    inserts = [_build_engines_insert(backend, read_counters(backend)) for backend in backends if backend.is_metered]
    inserts += [_build_door_insert(backend.name, use) for backend in backends if (use := read_use(backend)) is not None]
    # Apart: each of two programs would keep the lock of an index that is there from what the other one inserts.
    for statements in (database.read_statement("meter_schema"), "\n".join(inserts)):
        database.execute(login, statements)


def _build_engines_insert(backend: Backend, counters: Mapping[str, Tokens]) -> str:
    """Build the statements for what the engines of a deployment counted."""
    tokens = database.quote(json.dumps({page: sum(counted) for page, counted in counters.items()}))
    deployment = database.quote(backend.name)
    return database.read_statement("meter_engines", deployment=deployment, usd_h=repr(backend.usd_h), tokens=tokens)


def _build_door_insert(deployment: str, use: Mapping[Used, Sequence[float]]) -> str:
    """Build the statement for what teams used at each router."""
    counted = ", ".join(
        f"({', '.join([*map(database.quote, use_key), *(f'{count!r}::float8' for count in counts)])})"
        for use_key, counts in {Used("", "", ""): (0.0, 0.0, 0.0), **use}.items()
    )
    return database.read_statement("meter_door", deployment=database.quote(deployment), values=counted)


class Used(NamedTuple):
    """What a counter of a router with keys is of."""

    router: str
    """URL of its page; each counts from its own start."""

    team: str
    model: str


def read_use(backend: Backend) -> dict[Used, list[float]] | None:
    """Read requests and tokens by router, team and model; None where no router with keys answers."""
    pages = list(_read_pages([backend.usage_url] if backend.usage_url else []))
    use: dict[Used, list[float]] = {}
    for router, page in pages:
        for number, name in enumerate(_COUNTERS):
            for sample in _list_samples(page, name):
                use_key = Used(router, sample.labels["team"], sample.labels["model"])
                use.setdefault(use_key, [0.0] * len(_COUNTERS))[number] = sample.value
    return use if pages else None


def _read_pages(urls: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Read each page that answers, at each address of its host, by its URL; many at once, for some are silent."""

    def read(page: str) -> str | None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return _read_page(page)
        return None

    pages: list[str] = []
    with contextlib.suppress(OSError):  # of the names
        pages = [page for url in urls for page in list_pages(url)]
    with ThreadPoolExecutor(_READERS) as pool:
        yield from ((page, text) for page, text in zip(pages, pool.map(read, pages), strict=True) if text is not None)


def _read_page(url: str) -> str:
    with _OPENER.open(url, timeout=_TIMEOUT_S) as response:
        return str(response.read().decode())


class Tokens(NamedTuple):
    """What an engine counted since it started."""

    prompts: float
    answers: float


def read_counters(backend: Backend) -> dict[str, Tokens]:
    """Read the counters of each engine by its page: an engine that starts anew counts from 0, the others count on."""
    counters = {}
    for page, text in _read_pages(backend.metrics_urls):
        with contextlib.suppress(ValueError):
            samples = [list(_list_samples(text, name)) for name in (backend.prompt_tokens, backend.output_tokens)]
            if any(samples) or "# TYPE " in text:  # some engines have a counter from their first request on only
                counters[page] = Tokens(*(sum(float(sample.value) for sample in own) for own in samples))
    return counters


def list_pages(url: str) -> list[str]:
    """List the URL at each address of its host: on AWS a name has an address for each replica."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    addresses = {str(row[4][0]) for row in socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)}
    return [urlsplit(url)._replace(netloc=f"{address}:{port or 80}").geturl() for address in sorted(addresses)]


def _list_samples(page: str, name: str) -> Iterator[Sample]:
    """List the samples of a metric; of an engine's thousand lines those of others are not parsed, which takes 20 ms."""
    lines = [line for line in page.splitlines() if line.startswith(name)]
    for family in text_string_to_metric_families("\n".join(lines)):
        yield from (sample for sample in family.samples if sample.name == name)


def load(text: str) -> list[Backend]:
    """Read the deployments of the meter's process from JSON."""
    return [Backend.model_validate(row) for row in json.loads(text)]
