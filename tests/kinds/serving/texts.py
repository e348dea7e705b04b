"""Texts of blueprints, and a fleet with pools for them: EFA or none, in one zone or another, on EKS or ECS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: both
add_ons: {observability: on, schedulers: on, operators: on}
pools:
  general: {types: g6e.12xlarge, size: 0..4}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  p5en: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on}
  p5en-apart: {types: p5en.48xlarge, zones: us-west-2a, size: 4, efa: on}
  p5en-without: {types: p5en.48xlarge, zones: us-west-2c, size: 4}
  single: {types: g6e.xlarge, size: 0..4}
  small: {types: g6.xlarge, size: 0..4}
  b300: {types: p6-b300.48xlarge, zones: us-west-2b, size: 2, efa: on}
"""

AGGREGATED = "pattern: aggregated\nmodel: MODEL\nroles:\n  worker: {WORKER}\n"
DISTRIBUTED = AGGREGATED.replace("aggregated", "distributed")
DISAGGREGATED = "pattern: disaggregated\nmodel: MODEL\nroles:\n  prefill: {PREFILL}\n  decode: {DECODE}\n"
MULTI_MODEL = "pattern: multi-model\nroles:\n  models: {one: {model: tiny, pool: general}}\n"
TRAFFIC_AND_SLO = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
SURGE = "disruption: {surge: on}\n"

SMALL, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B-FP8"
GENERAL, P5EN, B300 = {"pool": "general"}, {"pool": "p5en"}, {"pool": "b300"}


def resolve_blueprint(folder: Path, text: str, target: str = "eks", cores: int = 2) -> ServingDeployment:
    folder = folder / "mine"
    folder.mkdir(exist_ok=True)
    return resolving.resolve_files(folder, text, FLEET, target, cores=cores)


def get_error(folder: Path, text: str, target: str = "eks", cores: int = 2) -> str:
    with pytest.raises(InputError) as error:
        resolve_blueprint(folder, text, target, cores)
    return str(error.value).replace(f"{folder}/mine/", "")


def format_aggregated(model: str = SMALL, extra: str = "", **worker: Any) -> str:
    return AGGREGATED.replace("MODEL", model).replace("{WORKER}", format_flow(worker)) + extra + TRAFFIC_AND_SLO


def format_distributed(model: str = LARGE, extra: str = "", **worker: Any) -> str:
    return DISTRIBUTED.replace("MODEL", model).replace("{WORKER}", format_flow(worker)) + extra + TRAFFIC_AND_SLO


def format_disaggregated(prefill: dict[str, Any], decode: dict[str, Any], model: str = SMALL, extra: str = "") -> str:
    text = (
        DISAGGREGATED.replace("MODEL", model)
        .replace("{PREFILL}", format_flow(prefill))
        .replace("{DECODE}", format_flow(decode))
    )
    return text + extra + TRAFFIC_AND_SLO


def format_flow(settings: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


def get_flag(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]
