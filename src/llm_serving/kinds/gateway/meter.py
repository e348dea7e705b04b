"""The engines' counters of tokens, as the gateway's database keeps them: one row for each deployment and time.

Between two rows a deployment costs its price; if its counters stood still, that was idle time.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from llm_serving.kinds.gateway import database
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import Backend

TABLE = "blueprint_meter"

_CREATE = f"""\
CREATE TABLE IF NOT EXISTS {TABLE} (
  deployment text, at timestamptz DEFAULT now(), usd_h float8, input_tokens float8, output_tokens float8);"""
_TIMEOUT_S = 10.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def list_metered(routes: Mapping[str, Iterable[Backend]]) -> list[Backend]:
    """List the deployments whose price and counters are known, each once."""
    backends = {backend.name: backend for row in routes.values() for backend in row if backend.is_metered}
    return list(backends.values())


def record(login: Login, backends: Iterable[Backend]) -> None:
    """Add a row for each deployment; NULL in place of counters that do not answer.

    Raises:
        Unavailable: the database does not answer.
    """
    inserts = [
        f"INSERT INTO {TABLE} (deployment, usd_h, input_tokens, output_tokens) "
        f"VALUES ('{backend.name}', {backend.usd_h!r}, {_format(read_counters(backend))});"
        for backend in backends
    ]
    database.execute(login, ["--single-transaction", "--command", "\n".join([_CREATE, *inserts])])


def _format(counters: tuple[float, float] | None) -> str:
    return "NULL, NULL" if counters is None else f"{counters[0]!r}, {counters[1]!r}"


def read_counters(backend: Backend) -> tuple[float, float] | None:
    """Read the tokens of all prompts and of all answers; None where an engine does not answer."""
    try:
        pages = [_read_page(url) for url in backend.metrics_urls]
    except (OSError, ValueError):
        return None
    return _sum(pages, backend.prompt_tokens), _sum(pages, backend.output_tokens)


def _read_page(url: str) -> str:
    with _OPENER.open(url, timeout=_TIMEOUT_S) as response:
        return str(response.read().decode())


def _sum(pages: Iterable[str], name: str) -> float:
    return sum(value for page in pages for value in _list_values(page, name))


def _list_values(page: str, name: str) -> Iterator[float]:
    for family in text_string_to_metric_families(page):
        yield from (sample.value for sample in family.samples if sample.name == name)


def load(text: str) -> list[Backend]:
    """Read the deployments of the meter's process from JSON."""
    return [Backend.model_validate(row) for row in json.loads(text)]
