"""What a validation of a gateway counts as failed."""

from __future__ import annotations

import contextlib
import datetime
import json
import urllib.request
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_serving.kinds.gateway.blueprint import GatewaySlo, Sample
from llm_serving.kinds.gateway.deployment import GatewayDeployment
from llm_serving.kinds.gateway.validation import validate
from llm_serving.kinds.gateway.validation.report import GatewayReport, Refusal
from llm_serving.kinds.gateway.validation.validate import Call
from llm_serving.settings.errors import CheckFailed
from tests import known_server
from tests.known_server import Behaviour

ANSWERED, REFUSED = Call(200, "", 40.0), Call(429, "429", 3.0)


def build(calls: dict[tuple[str, str], list[Call]], status: int = 401, **slo: Any) -> GatewayReport:
    deployment = GatewayDeployment.model_construct(
        name="edge", target="local", slo=GatewaySlo(**slo), sample=Sample(), notes=(), emulated=(),
        environment=SimpleNamespace(),
    )  # fmt: skip
    refusals = [Refusal(call="without a key", expected=401, status=status)]
    return validate.build_report(deployment, calls, refusals, datetime.datetime.now(datetime.UTC))


def test_answered_calls_and_refused_ones_meet_the_slo() -> None:
    report = build({("ads", "chat"): [ANSWERED] * 59}, answer_p95=1.0)
    assert (report.verdict, report.missed, report.answer_ms.p50) == ("pass", (), 40.0)
    validate.require_slo(report)


def test_a_call_that_had_to_be_refused_and_a_failed_one_are_each_named() -> None:
    report = build({("ads", "chat"): [ANSWERED, REFUSED]}, status=200)
    assert report.teams[0].errors == {"429": 1}
    with pytest.raises(CheckFailed) as missed:
        validate.require_slo(report)
    assert str(missed.value) == (
        "edge misses its SLO:\n"
        "  refusals: without a key: 200, not 401\n"
        "  failed_requests: 1 of 2 requests have no answer, such as ads for chat: 429; the limit is 0.0%"
    )


def test_a_slow_answer_misses_its_limit() -> None:
    report = build({("ads", "chat"): [ANSWERED]}, answer_p95=0.03)
    assert [missed.why for missed in report.missed] == ["0.040 s; the limit is 0.03 s"]


def test_a_percentile_of_few_answers_is_not_shown_and_the_number_that_would_is_named() -> None:
    report = build({("ads", "chat"): [ANSWERED] * 10}, answer_p95=1.0)
    with pytest.raises(CheckFailed) as unshown:
        validate.require_slo(report)
    assert (report.verdict, report.missed) == ("not shown", ())
    assert str(unshown.value).splitlines()[1:] == [
        "  answer_p95 within 1 s: 10 requests do not bound it; needs 59 requests"
    ]


def test_a_failed_request_counts_as_infinitely_slow() -> None:
    few, some = (
        build({("ads", "chat"): [ANSWERED] * (100 - failed) + [REFUSED] * failed}, answer_p95=1.0, failed_requests=0.2)
        for failed in (4, 8)
    )
    assert few.not_shown[0].startswith("answer_p95 within 1 s: 0.040 s, and unbounded by requests without an answer; ")
    assert [missed.why for missed in some.missed] == ["requests without an answer reach it; the limit is 1 s"]


def test_a_stream_that_ends_half_way_is_no_answer() -> None:
    faults = Behaviour(0.001, 0.0, faults=("cut", "error_event"))
    with known_server.run_server(faults) as url:
        failures = [validate.call(url, "", "known", 8, is_stream=True).failure for _ in range(2)]
    assert all(failures)


def test_whole_answers_are_complete_with_and_without_a_stream() -> None:
    with known_server.run_server(Behaviour(0.001, 0.0)) as url:
        calls = [validate.call(url, "", "known", 8, is_stream=is_stream) for is_stream in (False, True)]
    assert [(call.status, call.failure) for call in calls] == [(200, ""), (200, "")]


def test_each_route_is_asked_for_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, Any]] = []

    def open_url(request: urllib.request.Request, timeout: float) -> Any:
        sent.append((request.full_url, json.loads(cast(bytes, request.data))))
        body = b'{"data": []}' if len(sent) == 1 else b'{"choices": []}'
        return contextlib.closing(SimpleNamespace(status=200, read=lambda: body, close=lambda: timeout))

    monkeypatch.setattr(validate, "OPENER", SimpleNamespace(open=open_url))
    calls = [validate.call("http://edge", "", "m", 8, task=task, is_stream=True) for task in ("embed", "draw")]
    assert [call.failure for call in calls] == ["", "incomplete answer"]
    assert sent == [
        ("http://edge/v1/embeddings", {"model": "m", "encoding_format": "base64", "input": ["Say hello."]}),
        ("http://edge/v1/images/generations", {"model": "m", "response_format": "b64_json", "prompt": "Say hello."}),
    ]
