"""`traces` of a blueprint: where engines send spans, and what that opens in their network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving
from tests.kinds.serving.checks.test_engine_arguments import FLEET

COLLECTOR = "http://collector.monitoring.svc:4318/v1/traces"


def _resolve(folder: Path, extra: str) -> ServingDeployment:
    blueprint = (
        "name: mine\npattern: aggregated\nmodel: Qwen/Qwen3-8B\ncontext: 2k\nroles: {worker: {pool: small}}\n"
        f"traffic: {{users: 2, input_tokens: 32, output_tokens: 8}}\nslo: {{}}\n{extra}"
    )
    return resolving.resolve_files(folder, blueprint, FLEET, "eks")


@pytest.mark.parametrize(
    ("url", "port", "in_network"),
    [
        (COLLECTOR, 4318, True),
        ("http://collector/v1/traces", 80, True),
        ("https://otlp.example.com/v1/traces", 443, False),
        ("https://otlp.example.com:4318", 4318, False),
    ],
)
def test_engines_send_spans_and_may_connect_to_the_receiver(
    tmp_path: Path, url: str, port: int, in_network: bool
) -> None:
    deployment = _resolve(tmp_path, f"traces: {url}\n")
    [worker] = deployment.workers
    assert worker.command[worker.command.index("--otlp-traces-endpoint") + 1] == url
    assert worker.env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert worker.env["OTEL_SERVICE_NAME"] == deployment.served_models[0].name
    assert (worker.calls["traces"].port, worker.calls["traces"].in_network) == (port, in_network)
    assert not deployment.entries[0].calls, "the router sends none"


def test_without_traces_nothing_is_sent_and_nothing_is_open(tmp_path: Path) -> None:
    [worker] = _resolve(tmp_path, "").workers
    assert "--otlp-traces-endpoint" not in worker.command
    assert not worker.calls


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "traces: collector:4317\n",
            'traces: "collector:4317": it is not the URL of an OTLP/HTTP receiver of traces. Fix: use the URL of an '
            f"OTLP/HTTP receiver of traces such as {COLLECTOR}.",
        ),
        (
            "traces: http://collector:65536/v1/traces\n",
            'traces: "http://collector:65536/v1/traces": its port is above 65535. Fix: use a port that there is.',
        ),
        (
            f"traces: {COLLECTOR}\nengine: sglang\n",
            f'traces: "{COLLECTOR}": the engine sglang has no option for it in the catalog. Fix: remove traces.',
        ),
        (
            f"engine_arguments: {{otlp_traces_endpoint: {COLLECTOR}}}\n",
            f'engine_arguments.otlp_traces_endpoint: "{COLLECTOR}"',
        ),
    ],
)
def test_what_cannot_receive_or_send_is_refused(tmp_path: Path, extra: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _resolve(tmp_path, extra)
