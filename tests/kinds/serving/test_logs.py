"""`logs: json` of a blueprint: what the programs are told, and that one id leads through the real ones' lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving
from tests.kinds.serving.checks.test_engine_arguments import FLEET

BLUEPRINT = (
    "name: mine\npattern: aggregated\nmodel: Qwen/Qwen3-8B\ncontext: 2k\nroles: {worker: {pool: small}}\n"
    "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
)


def _resolve(folder: Path, extra: str, target: str = "eks") -> ServingDeployment:
    return resolving.resolve_files(folder, BLUEPRINT + extra, FLEET, target)


def test_the_front_and_the_engine_log_json_if_asked_to(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, "logs: json\n")
    [worker], [router] = deployment.workers, deployment.entries
    assert worker.command[worker.command.index("--logging-config") + 1] == '{"formatter": "json"}'
    assert "--enable-log-requests" in worker.command
    assert "--log=json" in router.command[: router.command.index("--")]


def test_by_default_they_log_text(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, "")
    words = [word for service in deployment.services for word in service.command]
    assert not {"--logging-config", "--enable-log-requests", "--log=json"} & set(words)


@pytest.mark.parametrize(
    ("extra", "target", "message"),
    [
        (
            "logs: json\nengine: sglang\n",
            "eks",
            'logs: "json": the engine sglang has no option for it in the catalog. Fix: set logs: text.',
        ),
        (
            "logs: json\nframework: ray\n",
            "local",
            'logs: "json": vLLM 0.29.0, which Ray requires, reads a format from a file alone (VLLM_LOGGING_CONFIG_PATH), '
            "which Ray's image does not have. Fix: set logs: text in a copy to try here.",
        ),
        (
            "engine_arguments: {enable_log_requests: true}\n",
            "eks",
            'engine_arguments.enable_log_requests: "true": the deployment writes it from logs. Fix: set logs, and remove '
            "enable_log_requests here.",
        ),
    ],
)
def test_what_cannot_log_json_is_refused(tmp_path: Path, extra: str, target: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _resolve(tmp_path, extra, target)
