"""AIBrix on EKS: how its gateway is asked, and what it does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving
from tests.kinds.serving.frameworks import test_llm_d

FLEET = test_llm_d.FLEET.replace("gateway: on", "operators: on, observability: on")

STRATEGIES = frozenset(
    {
        "least-busy-time", "least-gpu-cache", "least-kv-cache", "least-latency", "least-request", "least-utilization", "pd",
        "power-of-two", "prefix-cache", "prefix-cache-preble", "random", "session-affinity", "slo", "slo-pack-load",
        "slo-least-load", "slo-least-load-pulling", "throughput", "vtc-basic",
    }
)  # fmt: skip
"""What its header routing-strategy may say: constants of pkg/plugins/gateway/algorithms at v0.7.0 (c546589)."""


def format_blueprint(lines: str = "", **parts: str) -> str:
    return test_llm_d.format_blueprint(lines, **parts).replace("framework: llm-d", "framework: aibrix")


def resolve(folder: Path, text: str, target: str = "eks") -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target)


@pytest.mark.parametrize(
    ("policy", "strategy"), [("cache-aware", "prefix-cache"), ("load-aware", "least-request"), ("random", "random")]
)
def test_the_routers_policy_is_a_strategy_of_the_gateway(tmp_path: Path, policy: str, strategy: str) -> None:
    text = format_blueprint().replace("  worker:", f"  router: {{policy: {policy}}}\n  worker:")
    config: Any = resolve(tmp_path, text).framework_config["aibrixGateway"]
    assert config["strategy"] == strategy
    assert strategy in STRATEGIES


def test_engines_run_as_without_a_framework_and_the_router_is_nginx_before_a_proxy(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, format_blueprint())
    plain = resolve(tmp_path, format_blueprint().replace("framework: aibrix\n", ""))
    assert deployment.workers == plain.workers
    [router] = deployment.entries
    assert router.command[1:3] == ("--listen=0.0.0.0:8080", "--router=127.0.0.1:8081")
    assert router.command[-2:] == ("sleep", "infinity")


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        (
            format_blueprint("engine: sglang\n"),
            "eks",
            'framework: "aibrix": its gateway was compared with vllm, and not with sglang. '
            "Fix: set engine: vllm, or another framework.",
        ),
        (
            format_blueprint(pattern="multi-model", roles=test_llm_d.MODELS),
            "eks",
            'framework: "aibrix": one model is rendered for it, and not several. '
            "Fix: use another framework, or a blueprint for each model.",
        ),
        (
            format_blueprint(worker="{pool: on-ecs}"),
            "ecs",
            'framework: "aibrix": the framework does not run on the target ecs. '
            "Fix: use --target eks, or another framework.",
        ),
        (
            format_blueprint(worker="{pool: gpus, replicas: 0..2}"),
            "eks",
            "roles.worker.replicas: \"0..2\": AIBrix's gateway knows no model without pods, and answers that it does not "
            "exist. Fix: set replicas: 1..2, or use framework: plain.",
        ),
        (
            format_blueprint().replace("  worker:", "  router: {policy: round-robin}\n  worker:"),
            "eks",
            'roles.router.policy: "round-robin": the router of vllm under aibrix in the pattern aggregated has no such policy. '
            "Fix: use one of cache-aware, load-aware, random.",
        ),
        (
            format_blueprint().replace(
                "pattern: aggregated", "pattern: disaggregated"
            ).replace("worker: {pool: gpus}", "prefill: {pool: gpus}\n  decode: {pool: gpus}"),
            "eks",
            "AIBrix pairs prefill and decode in a StormService",
        ),
    ],
)  # fmt: skip
def test_what_aibrix_does_not_run_is_refused_by_name(tmp_path: Path, text: str, target: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, target)
    assert message in str(error.value)
