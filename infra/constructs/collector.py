"""What brings a task's own metrics to CloudWatch: AWS's OpenTelemetry collector beside the engine or router.

It reads Prometheus' page on the task's loopback and writes CloudWatch's embedded metric format into a log group, of
which CloudWatch makes metrics. Only the few that scaling and alarms read are sent: each is paid for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from infra.serving import Service

IMAGE = "public.ecr.aws/aws-observability/aws-otel-collector:v0.48.0"

CPU_UNITS, MEMORY_MIB = 128, 256

METRICS = {
    # Source: vLLM 0.32.0's and vllm-router 0.1.17's own /metrics, 2026-11.
    "engine": {"queue": "vllm:num_requests_waiting", "kv-usage": "vllm:kv_cache_usage_perc"},
    "router": {"requests": "vllm_router_requests_total", "errors": "vllm_router_request_errors_total"},
}
"""The engine's and the router's own names of what is sent, by ours."""

_EVERY_S = 15


@dataclass(frozen=True)
class Stream:
    """Where metrics go."""

    deployment: str
    region: str
    log_group: str

    @property
    def namespace(self) -> str:
        """CloudWatch's namespace of the deployment."""
        return f"Serving/{self.deployment}"


def container(service: Service, stream: Stream, logs: dict[str, Any]) -> dict[str, Any]:
    """The collector's container definition; the task lives on without it."""
    return {
        "name": "collector",
        "image": IMAGE,
        "essential": False,
        "cpu": CPU_UNITS,
        "memory": MEMORY_MIB,
        "environment": [{"name": "AOT_CONFIG_CONTENT", "value": json.dumps(configuration(service, stream))}],
        "logConfiguration": logs,
    }


def configuration(service: Service, stream: Stream) -> dict[str, Any]:
    """The collector's configuration; JSON is YAML."""
    names = list(METRICS[service.kind].values())
    scrape = {
        "job_name": service.role,
        "scrape_interval": f"{_EVERY_S}s",
        "metrics_path": "/metrics",
        "static_configs": [
            {
                "targets": [f"127.0.0.1:{service.metrics_port}"],
                "labels": {"deployment": stream.deployment, "role": service.role},
            }
        ],
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": "|".join(names), "action": "keep"}],
    }
    export = {
        "namespace": stream.namespace,
        "region": stream.region,
        "log_group_name": stream.log_group,
        "log_stream_name": service.name,
        # Tasks of one role are one series: an average over them is one over replicas.
        "dimension_rollup_option": "NoDimensionRollup",
        "metric_declarations": [
            {"dimensions": [["deployment", "role"]], "metric_name_selectors": [f"^{name}$" for name in names]}
        ],
    }
    return {
        "receivers": {"prometheus": {"config": {"scrape_configs": [scrape]}}},
        "processors": {"batch": {"timeout": f"{_EVERY_S}s"}},
        "exporters": {"awsemf": export},
        "service": {
            "pipelines": {"metrics": {"receivers": ["prometheus"], "processors": ["batch"], "exporters": ["awsemf"]}}
        },
    }
