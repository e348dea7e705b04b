"""Run the driver's phases: detect the server's dialect, warm it up, send the load, read metrics.

Runs inside Locust as a separate greenlet; users and driver share Locust's environment.
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
from llm_serving.validation.driver_result import RESULT_FILE, DriverResult
from llm_serving.validation.load import Load, Prompt, cycle_prompts, generate_prompts
from llm_serving.validation.load_plan import LoadPlan
from llm_serving.validation.prefix_overlap import PrefixOverlap
from llm_serving.validation.stream import Connection, HttpError

SETTLE_S = 1.2
"""Wait after the last answer: the engine counts a request just after it sent it, and Locust writes CSV each second."""


def read_plan(environment: Any) -> LoadPlan:
    """Return the plan from Locust's command line; read once."""
    if not hasattr(environment, "plan"):
        environment.plan = LoadPlan.model_validate_json(
            Path(environment.parsed_options.plan).read_text(encoding="utf-8")
        )
    plan: LoadPlan = environment.plan
    return plan


def get_load(environment: Any) -> Load:
    """Return the load that all users share."""
    if not hasattr(environment, "load"):
        environment.load = Load(read_plan(environment))
    load: Load = environment.load
    return load


def start(environment: Any, **_: Any) -> None:
    """Start the driver; Locust stops after the load."""
    gevent.spawn(_drive, environment)


class DriverError(Exception):
    """The load cannot be sent; the message is the reason."""


def _drive(environment: Any) -> None:
    result = DriverResult(planned=read_plan(environment).traffic.requests)
    result.versions = {"locust": locust.__version__, "python": platform.python_version()}
    try:
        _run_phases(environment, result)
    except DriverError as error:
        result.error = str(error)
    except Exception as error:  # noqa: BLE001  the parent process reports it
        traceback.print_exc()
        result.error = f"the load driver failed: {type(error).__name__}: {error}"
    finally:
        (Path(read_plan(environment).folder) / RESULT_FILE).write_text(result.model_dump_json(), encoding="utf-8")
        environment.runner.quit()


def _run_phases(environment: Any, result: DriverResult) -> None:
    load, plan = get_load(environment), read_plan(environment)
    user = environment.user_classes[0](environment)
    result.kernel_times = user.connection.kernel_times
    load.vllm_dialect = result.vllm_dialect = _detect_vllm_dialect(user, load)
    warm_up, counted, unique_count = _create_prompts(user, plan)
    result.warm_up_sent = load.warm_up(prompt for prompt, _ in zip(warm_up, range(plan.traffic.warm_up), strict=False))
    result.warm_up_failed = load.warm_up_failed
    result.metrics_before = _fetch_metrics(plan)
    # Objects that exist now stay: keep the garbage collector from scanning them while answers are timed.
    gc.collect()
    gc.freeze()
    result.started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    cpu_start = time.process_time()
    overlap = PrefixOverlap()
    load.play(overlap.observe(counted, unique_count))
    result.shared_prompts, result.shared_prompt_count = overlap.share, overlap.prompts
    result.duration_s = load.end_time - load.start_time
    result.cpu_share = (time.process_time() - cpu_start) / max(result.duration_s, 0.001)
    gevent.sleep(SETTLE_S)
    result.metrics_after = _fetch_metrics(plan)


def _create_prompts(user: Any, plan: LoadPlan) -> tuple[Iterator[Prompt], Iterator[Prompt], int | None]:
    """Return the prompts of the warm-up and of the counted load, and the number of unique ones if they repeat."""
    if plan.data:
        rows = prompts.read_rows(Path(plan.data), plan.traffic.api)
        return cycle_prompts(plan, rows), cycle_prompts(plan, rows), len(rows) * len(plan.models)
    map_concurrently = Pool(prompts.CONCURRENCY).imap
    costs = {
        model: prompts.measure_costs(functools.partial(_count_tokens, user, model), map_concurrently)
        for model in plan.models
    }
    return generate_prompts(plan, "warm-up", costs), generate_prompts(plan, "load", costs), None


def _detect_vllm_dialect(user: Any, load: Load) -> bool:
    """Return whether the server accepts vLLM's own parameters, tested with a request like the load's."""
    prompt = Prompt(({"role": "user", "content": prompts.FIRST_WORD},), max_tokens=2)
    for dialect in (True, False):
        load.vllm_dialect = dialect
        try:
            _send_request(user, user.body(prompt))
        except HttpError as error:
            if dialect and error.status in (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY):
                continue
            raise DriverError(f"{user.plan.url}{user.path()} returned {error}") from None
        return dialect
    raise AssertionError("unreachable: the second try returns or raises")


def _count_tokens(user: Any, model: str, text: str) -> int:
    """Return the tokens of a prompt, from the server's usage."""
    body = user.body(Prompt(({"role": "user", "content": text},), max_tokens=1, model=model))
    body = {key: value for key, value in body.items() if key != "stream_options"} | {"stream": False}
    try:
        usage = json.loads(_send_request(user, body)).get("usage") or {}
    except HttpError as error:
        raise DriverError(f"{user.plan.url}{user.path()} returned {error}") from None
    # Assume a token per word if the server reports no usage; the report then shows no input tokens.
    return int(usage.get("prompt_tokens") or len(text.split()))


def _send_request(user: Any, body: dict[str, Any]) -> bytes:
    """Send one request outside the load, on a separate connection; return the response body."""
    connection = Connection(user.plan.url, user.headers())
    deadline = user.plan.traffic.deadline
    try:
        with gevent.Timeout(deadline):
            connection.connect()
            return b"".join(chunk for _, chunk in connection.post(user.path(), json.dumps(body).encode()))
    except gevent.Timeout:
        raise DriverError(f"{user.plan.url} did not answer the first request within {deadline:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise DriverError(f"{user.plan.url} is unreachable: {error}") from None
    finally:
        connection.close()


def _fetch_metrics(plan: LoadPlan) -> dict[str, str]:
    """Return the engine's metrics by replica, without replicas that do not respond."""
    pages = {}
    for name, url in plan.metrics_urls.items():
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                pages[name] = response.read().decode("utf-8", "replace")
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            continue
    return pages
