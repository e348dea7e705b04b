"""The server, asked before a load: what it understands, how many tokens prompts take. On gevent's sockets."""

from __future__ import annotations

import functools
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
from gevent.pool import Pool

from llm_serving.services import tasks
from llm_serving.settings.errors import Unavailable
from llm_serving.validation.load import api_key, data_rows, prompts
from llm_serving.validation.load.load import Load, cycle_prompts, generate_prompts
from llm_serving.validation.load.load_plan import LoadPlan, Shard
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.load.rendezvous import Setup
from llm_serving.validation.load.stream import Connection, HttpError


class Client:
    """Asks as the default Locust user does, where there is no Locust."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.engine_dialect = False

    def headers(self) -> dict[str, str]:
        return api_key.build_headers(self.plan.url)

    def path(self) -> str:
        return self.plan.path

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return prompt.build_body(self.plan.models[0], self.plan.traffic.api, engine_dialect=self.engine_dialect)


def measure(user: Any, load: Load | Client) -> Setup:
    """Return what all processes need to know of the server, whose dialect the load has from here on.

    Raises:
        Unavailable: it does not answer, or not as an OpenAI-compatible server does.
    """
    plan = user.plan
    engine_dialect = _detect_dialect(user, load)
    if plan.data:
        rows = data_rows.read_rows(Path(plan.data), plan.traffic)
        texts = [row.recorded_answer for row in rows if row.recorded_answer]
        rates = {
            model: prompts.measure_tokens_per_character(functools.partial(_count_tokens, user, model), texts)
            for model in plan.models
            if texts
        }
        return Setup(engine_dialect=engine_dialect, tokens_per_character=rates)
    if plan.task == tasks.DRAW:  # its prompts are no texts of so many tokens
        return Setup(engine_dialect=engine_dialect)
    map_concurrently = Pool(plan.bound(prompts.CONCURRENCY)).imap
    costs = {
        model: prompts.measure_costs(
            functools.partial(_count_tokens, user, model), map_concurrently, plan.traffic.images, plan.nonce
        )
        for model in plan.models
    }
    return Setup(engine_dialect=engine_dialect, costs=costs)


def create_prompts(plan: LoadPlan, shard: Shard, phase: str, setup: Setup) -> tuple[Iterator[Prompt], int | None]:
    """Return a process's prompts of a phase, endlessly; and how many of them are unique, None where all are."""
    if plan.data:
        rows = data_rows.read_rows(Path(plan.data), plan.traffic)
        unique_count = shard.count_own(len(rows) * len(plan.models))
        return cycle_prompts(plan, phase, rows, setup.tokens_per_character, shard), unique_count
    return generate_prompts(plan, phase, setup.costs, shard), None


def _detect_dialect(user: Any, load: Load | Client) -> bool:
    """Return whether the server accepts the engines' own parameters, tested with a request like the load's."""
    prompt = Prompt(({"role": "user", "content": prompts.FIRST_WORD},), max_tokens=2)
    for dialect in (True, False):
        load.engine_dialect = dialect
        try:
            send(user, user.body(prompt))
        except HttpError as error:
            if dialect and error.status in (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY):
                continue
            raise Unavailable(f"{user.plan.url}{user.path()} returned {error}. Fix: run blueprint logs.") from None
        return dialect
    raise AssertionError("unreachable: the second try returns or raises")


def _count_tokens(user: Any, model: str, content: Any) -> int:
    prompt = Prompt(({"role": "user", "content": content},), max_tokens=1, model=model)
    body = user.body(prompt)
    if user.plan.pooled is None:
        body = {key: value for key, value in body.items() if key != "stream_options"} | {"stream": False}
    try:
        return prompt.count_tokens(send(user, body))
    except HttpError as error:
        raise Unavailable(f"{user.plan.url}{user.path()} returned {error}. Fix: run blueprint logs.") from None
    except ValueError as error:
        raise Unavailable(f"{user.plan.url}{user.path()} {error}") from None


def send(user: Any, body: dict[str, Any]) -> bytes:
    """Send a request on a connection of its own; return the whole response.

    Raises:
        HttpError: the status was not 200.
        Unavailable: the server cannot be reached, or did not answer within the traffic's deadline.
    """
    connection = Connection(user.plan.url, user.headers())
    deadline = user.plan.traffic.deadline
    try:
        with gevent.Timeout(deadline):
            connection.connect()
            return b"".join(chunk for _, chunk in connection.post(user.path(), json.dumps(body).encode()))
    except gevent.Timeout:
        raise Unavailable(
            f"{user.plan.url} did not answer the first request within {deadline:g} s. Fix: run blueprint logs."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{user.plan.url} is unreachable: {error}. Fix: run blueprint status, or check --url."
        ) from None
    finally:
        connection.close()
