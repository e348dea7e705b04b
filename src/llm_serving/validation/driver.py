"""Leads the driver through its phases: ask the server what it understands, warm it up, play the load, read metrics.

Runs inside Locust as a greenlet of its own; users and conductor find each other through Locust's environment.
"""

from __future__ import annotations

import datetime
import functools
import gc
import http.client
import json
import platform
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import locust
from gevent.pool import Pool

from llm_serving.validation import prompts
from llm_serving.validation.driver_result import OUTCOME, Outcome
from llm_serving.validation.load import Load, Prompt, made_prompts, own_prompts
from llm_serving.validation.load_plan import Plan
from llm_serving.validation.prefix_overlap import Beginnings
from llm_serving.validation.stream import Connection, HttpError

SETTLE_S = 1.2
"""Wait after the last answer: the engine counts a request just after it sent it, and Locust writes CSV each second."""


def plan(environment: Any) -> Plan:
    """The plan that Locust was given on its command line; read once."""
    if not hasattr(environment, "plan"):
        environment.plan = Plan.model_validate_json(Path(environment.parsed_options.plan).read_text(encoding="utf-8"))
    found: Plan = environment.plan
    return found


def load(environment: Any) -> Load:
    """The one load that all users share."""
    if not hasattr(environment, "load"):
        environment.load = Load(plan(environment))
    found: Load = environment.load
    return found


def start(environment: Any, **_: Any) -> None:
    """Begins to lead; Locust ends when the load is over."""
    gevent.spawn(_lead, environment)


class Refused(Exception):
    """No load can be played; says why."""


def _lead(environment: Any) -> None:
    told = Outcome(planned=plan(environment).traffic.requests)
    told.versions = {"locust": locust.__version__, "python": platform.python_version()}
    try:
        _phases(environment, told)
    except Refused as error:
        told.refused = str(error)
    except Exception as error:  # noqa: BLE001  whatever it is, the parent must learn of it
        traceback.print_exc()
        told.refused = f"the load driver failed: {type(error).__name__}: {error}"
    finally:
        (Path(plan(environment).folder) / OUTCOME).write_text(told.model_dump_json(), encoding="utf-8")
        environment.runner.quit()


def _phases(environment: Any, told: Outcome) -> None:
    now, settings = load(environment), plan(environment)
    asker = environment.user_classes[0](environment)
    told.kernel_times = asker.connection.kernel_times
    now.vllm_dialect = told.vllm_dialect = _speaks_vllm(asker, now)
    warm, counted, first = _prompts(asker, settings)
    told.warm_up_sent = now.warm_up(prompt for prompt, _ in zip(warm, range(settings.traffic.warm_up), strict=False))
    told.warm_up_failed = now.warm_up_failed
    told.pages_before = _pages(settings)
    # What is there now stays: the collector need not look through it while answers are timed.
    gc.collect()
    gc.freeze()
    told.started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    spent = time.process_time()
    looked = Beginnings()
    now.play(looked.over(counted, first))
    told.shared_prompts, told.shared_of = looked.share, looked.prompts
    told.duration_s = now.end - now.zero
    told.cpu_share = (time.process_time() - spent) / max(told.duration_s, 0.001)
    gevent.sleep(SETTLE_S)
    told.pages_after = _pages(settings)


def _prompts(asker: Any, settings: Plan) -> tuple[Iterator[Prompt], Iterator[Prompt], int | None]:
    """Prompts for the warm-up and for the counted load, and how many come before they come again, where they do."""
    if settings.data:
        rows = prompts.read_rows(Path(settings.data), settings.traffic.api)
        return own_prompts(settings, rows), own_prompts(settings, rows), len(rows) * len(settings.models)
    many = Pool(prompts.AT_ONCE).imap
    costs = {model: prompts.measure(functools.partial(_count, asker, model), many) for model in settings.models}
    return made_prompts(settings, "warm-up", costs), made_prompts(settings, "load", costs), None


def _speaks_vllm(asker: Any, now: Load) -> bool:
    """Whether the server takes vLLM's own parameters; asked with a request like those to come."""
    prompt = Prompt(({"role": "user", "content": prompts.FIRST},), max_tokens=2)
    for dialect in (True, False):
        now.vllm_dialect = dialect
        try:
            _ask(asker, asker.body(prompt))
        except HttpError as error:
            if dialect and error.status in (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY):
                continue
            raise Refused(f"{asker.plan.url}{asker.path()} answers with {error}") from None
        return dialect
    raise AssertionError("unreachable: the second try returns or raises")


def _count(asker: Any, model: str, text: str) -> int:
    """Tokens of a prompt, by the server's own usage."""
    body = asker.body(Prompt(({"role": "user", "content": text},), max_tokens=1, model=model))
    body = {key: value for key, value in body.items() if key != "stream_options"} | {"stream": False}
    try:
        usage = json.loads(_ask(asker, body)).get("usage") or {}
    except HttpError as error:
        raise Refused(f"{asker.plan.url}{asker.path()} answers with {error}") from None
    # A server that reports no usage is taken to have a token a word; the report then shows no input tokens.
    return int(usage.get("prompt_tokens") or len(text.split()))


def _ask(asker: Any, body: dict[str, Any]) -> bytes:
    """One request outside the load, on a connection of its own; returns the answer's body."""
    connection = Connection(asker.plan.url, asker.headers())
    deadline = asker.plan.traffic.deadline
    try:
        with gevent.Timeout(deadline):
            connection.connect()
            return b"".join(piece for _, piece in connection.post(asker.path(), json.dumps(body).encode()))
    except gevent.Timeout:
        raise Refused(f"{asker.plan.url} does not answer a first request within {deadline:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"{asker.plan.url} does not answer: {error}") from None
    finally:
        connection.close()


def _pages(settings: Plan) -> dict[str, str]:
    """The engine's metrics by replica; one that does not answer is left out."""
    found = {}
    for name, url in settings.engine_pages.items():
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                found[name] = page.read().decode("utf-8", "replace")
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            continue
    return found
