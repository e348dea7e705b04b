"""llm-d on EKS: the endpoint picker's configuration, and what it does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.summary import describe_for_others
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a]
orchestrator: both
add_ons: {gateway: on}
pools:
  gpus: {types: g6e.12xlarge, size: 0..8, orchestrator: eks}
  on-ecs: {types: g6e.12xlarge, size: 0..2, orchestrator: ecs}
"""
SCORERS = ["queue-scorer", "kv-cache-utilization-scorer"]


def format_blueprint(
    lines: str = "", *, worker: str = "{pool: gpus}", pattern: str = "aggregated", roles: str = ""
) -> str:
    model = "" if roles else "model: Qwen/Qwen3-0.6B\ncontext: 2k\n"
    return (
        f"name: mine\npattern: {pattern}\nframework: llm-d\n{model}roles:\n{roles or f'  worker: {worker}'}\n{lines}"
        "traffic: {users: 2, input_tokens: 100, output_tokens: 8}\nslo: {}\n"
    )


def resolve(folder: Path, text: str, target: str = "eks") -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target)


def get_picker(deployment: ServingDeployment) -> dict[str, Any]:
    picker: Any = deployment.framework_config["endpointPicker"]
    return dict(picker)


@pytest.mark.parametrize(
    ("policy", "scorers"), [("load-aware", SCORERS), ("cache-aware", [*SCORERS, "prefix-cache-scorer"])]
)
def test_the_routers_policy_is_the_scorers_of_the_picker(tmp_path: Path, policy: str, scorers: list[str]) -> None:
    text = format_blueprint().replace("  worker:", f"  router: {{policy: {policy}}}\n  worker:")
    config = get_picker(resolve(tmp_path, text))["config"]
    assert [row["type"] for row in config["plugins"]] == [*scorers, "metrics-data-source", "core-metrics-extractor"]
    [profile] = config["schedulingProfiles"]
    assert [row["pluginRef"] for row in profile["plugins"]] == scorers


FAIRNESS = {"type": "round-robin-fairness-policy"}
BAND = {"fairnessPolicyRef": "round-robin-fairness-policy"}
"""Types and keys: pkg/epp/framework/plugins/flowcontrol and apix/config/v1alpha1 of llm-d-router v0.9.0 (5f4e762)."""


@pytest.mark.parametrize(
    ("worker", "detector", "waiting"),
    [
        ("{pool: gpus}", ("utilization-detector", {"queueDepthThreshold": 5}), {}),
        # KEDA starts a replica once 6 wait: the picker lets more through.
        (
            "{pool: gpus, replicas: 1..4, scale: {queue: 6}}",
            ("utilization-detector", {"queueDepthThreshold": 12}),
            {},
        ),
        # Each of two routers has its share of a replica.
        (
            "{pool: gpus, replicas: 3, max_requests: 9}",
            ("concurrency-detector", {"maxConcurrency": 4}),
            {"maxRequests": 12},
        ),
    ],
)
def test_requests_wait_in_the_picker_by_class_and_in_turn_for_each_caller(
    tmp_path: Path, worker: str, detector: tuple[str, object], waiting: dict[str, int]
) -> None:
    text = format_blueprint("tuning: {priority: on}\n", worker=f"{worker}\n  router: {{replicas: 2}}")
    fleet = FLEET.replace("add_ons: {gateway: on}", "add_ons: {gateway: on, operators: on, observability: on}")
    deployment = resolving.resolve_files(tmp_path, text, fleet, "eks")
    picker = get_picker(deployment)
    config, (name, parameters) = picker["config"], detector
    assert config["featureGates"] == ["flowControl"]
    assert config["flowControl"] == {"saturationDetector": {"pluginRef": name}, "defaultPriorityBand": BAND, **waiting}
    assert [*config["plugins"]][-2:] == [{"type": name, "parameters": parameters}, FAIRNESS]
    assert config["schedulingProfiles"][0]["plugins"][0] == {"pluginRef": name}, "no full engine is chosen"
    assert picker["objectives"] == {"high": 1, "low": -1}
    told = describe_for_others(deployment)
    assert told.traits.classes == {
        class_: {"x-llm-d-inference-objective": f"{deployment.name}-{class_}"} for class_ in ("high", "low")
    }
    assert told.traits.caller_header == "x-llm-d-inference-fairness-id"


def test_without_classes_and_limit_the_picker_holds_nothing_back(tmp_path: Path) -> None:
    picker = get_picker(resolve(tmp_path, format_blueprint()))
    assert not {"featureGates", "flowControl"} & picker["config"].keys() and not picker["objectives"]
    limited = get_picker(resolve(tmp_path, format_blueprint(worker="{pool: gpus, max_requests: 8}")))
    assert limited["config"]["featureGates"] == ["flowControl"] and not limited["objectives"]
    assert describe_for_others(resolve(tmp_path, format_blueprint())).traits.classes == {}


def test_engines_run_as_without_a_framework_and_the_router_is_nginx_before_a_proxy(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, format_blueprint())
    plain = resolve(tmp_path, format_blueprint().replace("framework: llm-d\n", ""))
    assert deployment.workers == plain.workers
    [router] = deployment.entries
    assert router.command == (
        "router-front",
        "--listen=0.0.0.0:8080",
        "--router=127.0.0.1:8081",
        "--",
        "sleep",
        "infinity",
    )
    assert get_picker(deployment)["proxyPort"] == 8081


MODELS = "  models: {small: {pool: gpus, model: Qwen/Qwen3-0.6B, context: 2k}}"


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        (
            format_blueprint("engine: sglang\n"),
            "eks",
            'framework: "llm-d": its endpoint picker was compared with the metrics of vllm, and not with those of sglang. '
            "Fix: set engine: vllm, or another framework.",
        ),
        (
            format_blueprint(pattern="multi-model", roles=MODELS),
            "eks",
            'framework: "llm-d": an InferencePool of llm-d has replicas of one model. '
            "Fix: use another framework, or a blueprint for each model.",
        ),
        (
            format_blueprint(worker="{pool: on-ecs}"),
            "ecs",
            'framework: "llm-d": the framework does not run on the target ecs. '
            "Fix: use --target eks, or another framework.",
        ),
        (
            format_blueprint(roles="  router: {policy: kv-aware}\n  worker: {pool: gpus}").replace(
                "roles:", "model: Qwen/Qwen3-0.6B\ncontext: 2k\nroles:"
            ),
            "eks",
            'roles.router.policy: "kv-aware": llm-d\'s picker finds what engines say they cached by the tokens of each prompt, '
            "from a vLLM beside it (`vllm launch render`) that is not rendered; cache-aware follows prompts by their text. "
            "Fix: use one of cache-aware, load-aware.",
        ),
    ],
)
def test_what_llm_d_does_not_run_is_refused_by_name(tmp_path: Path, text: str, target: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, target)
    assert message in str(error.value)


def test_a_fleet_without_its_kinds_of_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, format_blueprint(), FLEET.replace("add_ons: {gateway: on}\n", ""), "eks")
    assert (
        'blueprint.yaml:3:12: framework: "llm-d": it has kinds of objects of its own, which the fleet installs with gateway. '
        "Fix: set add_ons: {gateway: on} in the fleet and apply it, or use another framework." in str(error.value)
    )
