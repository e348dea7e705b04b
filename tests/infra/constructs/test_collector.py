"""Where a task's collector reads metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.constructs import sidecars
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: ecs
pools: {gpus: {types: g6e.2xlarge, size: 0..4}}
"""
BLUEPRINT = """\
name: mine
pattern: aggregated
engine: tensorrt-llm
model: Qwen/Qwen3-0.6B
context: 8k
roles: {worker: {pool: gpus}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: {}
"""


def test_metrics_are_read_at_the_path_of_each_programs_page(tmp_path: Path) -> None:
    stream = sidecars.MetricStream(fleet="demo", deployment="mine", region="us-west-2", log_group="logs")
    paths = {}
    for service in resolving.resolve_files(tmp_path, BLUEPRINT, FLEET, "ecs").services:
        configuration: dict[str, Any] = sidecars.build_configuration(service, stream)
        [scrape] = configuration["receivers"]["prometheus"]["config"]["scrape_configs"]
        paths[service.role] = scrape["metrics_path"]
    assert paths == {"worker": "/prometheus/metrics", "router": "/metrics"}
