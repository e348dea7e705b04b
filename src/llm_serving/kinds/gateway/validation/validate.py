"""`blueprint validate` of a gateway: each team calls each of its models, by a key that lives as long as the validation.

Besides, calls that must be refused: without a key, with an unknown one, with a revoked one, and of each team for each
model that is not its own.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import importlib.metadata
import json
import math
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType

from llm_serving import console
from llm_serving.kinds.gateway.access import LocalAccess
from llm_serving.kinds.gateway.blueprint import GatewaySlo
from llm_serving.kinds.gateway.client import AdminClient
from llm_serving.kinds.gateway.deployment import GatewayDeployment
from llm_serving.kinds.gateway.validation.report import GatewayReport, Refusal, TeamCalls
from llm_serving.services.tasks import GENERATE, POOLED
from llm_serving.settings.choices import Task
from llm_serving.settings.errors import InputError, quote_value
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.base import require_slo as require_slo
from llm_serving.validation.load.api_key import OPENER
from llm_serving.validation.pages import html_report
from llm_serving.validation.reports import run_folder
from llm_serving.validation.reports.kind_report import render_end
from llm_serving.validation.statistics import gate, sample_statistics
from llm_serving.validation.statistics.gate import Findings, MissedObjective

_TIMEOUT_S = 120.0
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_UNKNOWN_KEY = f"sk-{'0' * 24}"
_TEXT = "Say hello."


class Call(NamedTuple):
    """A call that was sent."""

    status: int
    """Of the answer; 0 without one."""

    failure: str
    """Why it has no complete answer; empty where it has."""

    ms: float


def validate(deployment: GatewayDeployment, options: ValidationOptions) -> tuple[GatewayReport, Path]:
    """Send the sample; return the report and its folder, RUNS/NAME/TIME.

    Raises:
        InputError: an option is for load tests only, or the gateway is on AWS.
        Unavailable: the administration does not answer, or the report cannot be written.
    """
    for option, value in {"--user": options.user_file, "--driver": options.driver}.items():
        if value is not None:
            raise InputError(f"{option}: {quote_value(value)}: a gateway has no load driver. Fix: leave it out.")
    if deployment.stack:
        fix = "call it from the fleet's network, with a key of `blueprint gateway key create`"
        raise InputError(f"{deployment.name}: a validation creates keys on this machine only. Fix: {fix}.")
    runs = options.runs / deployment.name
    run_folder.require_writable(runs)
    with run_folder.lock_work(options.logs, deployment.name) as work:
        started = datetime.datetime.now(datetime.UTC)
        url = (options.url or deployment.url).removesuffix("/v1")
        with LocalAccess(deployment).connect() as client:
            calls, refusals = _measure(deployment, client, url, options.requests or deployment.sample.requests)
        report = build_report(deployment, calls, refusals, started)
        page = html_report.render_page("gateway.html.j2", Path(__file__).parent, report=report, pictures={})
        return report, run_folder.publish(report, page, work, runs)


def _measure(
    deployment: GatewayDeployment, client: AdminClient, url: str, count: int
) -> tuple[dict[tuple[str, str], list[Call]], list[Refusal]]:
    output_tokens = deployment.sample.output_tokens
    some_model = next(iter(deployment.routes))
    calls: dict[tuple[str, str], list[Call]] = {}
    refusals = [
        Refusal(call=name, expected=_UNAUTHORIZED, status=call(url, key, some_model, output_tokens).status)
        for name, key in {"without a key": "", "an unknown key": _UNKNOWN_KEY}.items()
    ]
    for team, settings in deployment.teams.items():
        with console.step(f"Call as {team}"), _lend_key(client, team) as key:
            for model in deployment.routes:
                if model in settings.models:
                    task = deployment.routes[model][0].task or GENERATE
                    calls[team, model] = [
                        call(url, key, model, output_tokens, task=task, is_stream=bool(number % 2))
                        for number in range(count)
                    ]
                else:
                    status = call(url, key, model, output_tokens).status
                    refusals.append(Refusal(call=f"{team} for {model}", expected=_FORBIDDEN, status=status))
        status = call(url, key, settings.models[0], output_tokens).status
        refusals.append(Refusal(call=f"a revoked key of {team}", expected=_UNAUTHORIZED, status=status))
    return calls, refusals


@contextlib.contextmanager
def _lend_key(client: AdminClient, team: str) -> Iterator[str]:
    key, _ = client.create_key(team, None)
    try:
        yield key
    finally:
        client.revoke_key(key)


def call(url: str, key: str, model: str, output_tokens: int, *, task: Task = GENERATE, is_stream: bool = False) -> Call:
    """Send a chat, or a request of another task, and wait for its whole answer."""
    pooled = POOLED.get(task)
    is_stream = is_stream and pooled is None
    chat = {"messages": [{"role": "user", "content": _TEXT}], "max_tokens": output_tokens, "stream": is_stream}
    path, fields = (pooled.path, pooled.build([_TEXT])) if pooled else ("/v1/chat/completions", chat)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{url}{path}", json.dumps({"model": model, **fields}).encode(), headers)
    start = time.monotonic()
    try:
        with OPENER.open(request, timeout=_TIMEOUT_S) as response:
            text, status = response.read().decode(errors="replace"), response.status
        is_complete = _is_complete(text, pooled.field if pooled else "finish_reason", is_stream=is_stream)
        failure = "" if is_complete else "incomplete answer"
    except urllib.error.HTTPError as error:
        status, failure = error.code, str(error.code)
    except (OSError, http.client.HTTPException) as error:
        status, failure = 0, type(error).__name__
    return Call(status, failure, 1000 * (time.monotonic() - start))


def _is_complete(text: str, field: str, *, is_stream: bool) -> bool:
    """Return whether an answer has its end: an error can come within a stream whose status is 200."""
    if is_stream:
        return text.rstrip().endswith("data: [DONE]") and '"error"' not in text
    return f'"{field}"' in text


def build_report(
    deployment: GatewayDeployment,
    calls: dict[tuple[str, str], list[Call]],
    refusals: Sequence[Refusal],
    started: datetime.datetime,
) -> GatewayReport:
    """Count the calls, and hold them against the SLO."""
    answered_ms = [call.ms for row in calls.values() for call in row if not call.failure]
    teams = tuple(_count(team, model, row) for (team, model), row in calls.items())
    times_ms = [math.inf if call.failure else call.ms for row in calls.values() for call in row]
    missed, not_shown = gate.sort_findings(_judge(deployment.slo, teams, refusals, times_ms))
    return GatewayReport(
        name=deployment.name,
        verdict="fail" if missed else "not shown" if not_shown else "pass",
        missed=tuple(missed),
        not_shown=tuple(not_shown),
        started_at=started.isoformat(),
        teams=teams,
        refusals=tuple(refusals),
        answer_ms=sample_statistics.summarize_latency(answered_ms),
        settings={
            "target": deployment.target,
            "sample": deployment.sample.model_dump(mode="json"),
            "slo": deployment.slo.model_dump(mode="json"),
        },
        versions={"blueprint": importlib.metadata.version("llm-serving-blueprints")},
        emulated=(*deployment.notes, *deployment.emulated),
    )


def _count(team: str, model: str, calls: Sequence[Call]) -> TeamCalls:
    errors = Counter(call.failure for call in calls if call.failure)
    return TeamCalls(team=team, model=model, sent=len(calls), answered=len(calls) - errors.total(), errors=dict(errors))


def _judge(
    slo: GatewaySlo, teams: Sequence[TeamCalls], refusals: Sequence[Refusal], times_ms: Sequence[float]
) -> Findings:
    for refusal in refusals:
        if refusal.status != refusal.expected:
            reason = f"{refusal.call}: {refusal.status or 'no answer'}, not {refusal.expected}"
            yield MissedObjective(metric="refusals", value=refusal.status, limit=refusal.expected, why=reason)
    total, answered = (sum(getattr(row, name) for row in teams) for name in ("sent", "answered"))
    share = (total - answered) / max(1, total)
    if share > slo.failed_requests:
        first = next(f"{row.team} for {row.model}: {failure}" for row in teams for failure in row.errors)
        unanswered = f"{total - answered} of {total} requests have no answer, such as {first}"
        reason = f"{unanswered}; the limit is {slo.failed_requests:.1%}"
        yield MissedObjective(metric="failed_requests", value=share, limit=slo.failed_requests, why=reason)
    if slo.answer_p95 is not None and times_ms:
        yield from gate.judge_seconds("answer_p95", slo.answer_p95, times_ms, 0.95, "requests")


def render(report: GatewayReport, folder: Path) -> RenderableType:
    """Render the report that was saved in `folder`."""
    total, answered = (sum(getattr(row, name) for row in report.teams) for name in ("sent", "answered"))
    refused = sum(refusal.status == refusal.expected for refusal in report.refusals)
    return Group(
        f"{answered} of {total} requests answered; {refused} of {len(report.refusals)} calls refused as they must be",
        *render_end(report, folder),
    )
