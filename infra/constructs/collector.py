"""What brings a task's own metrics to CloudWatch: AWS's OpenTelemetry collector beside the engine or router.

It reads Prometheus' page on the task's loopback and writes CloudWatch's embedded metric format into a log group, of
which CloudWatch makes metrics. Only the few that scaling and alarms read are sent: each is paid for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llm_serving.targets.ecs.manifest import Service

IMAGE = "public.ecr.aws/aws-observability/aws-otel-collector:v0.48.0"

CPU_UNITS, MEMORY_MIB = 128, 256

METRICS = {
    # Source: vLLM 0.32.0's and vllm-router 0.1.17's own /metrics, 2026-11.
    "engine": {"queue": "vllm:num_requests_waiting", "kv-usage": "vllm:kv_cache_usage_perc"},
    "router": {"requests": "vllm_router_requests_total", "errors": "vllm_router_request_errors_total"},
    "router of halves": {"requests": "vllm_router_pd_requests_total", "errors": "vllm_router_pd_errors_total"},
}
"""The engine's and the router's own names of what is sent, by ours. A router before prefill and decode has others."""

OF_SLEEPERS = {"engine": {"running": "vllm:num_requests_running", "up": "up"}, "router": {"up": "up"}}
"""What is sent too where a role may have no replica; `up` is Prometheus' own: 1 where a page was read, else 0."""

EVERY_S = 15

_NOBODY = "127.0.0.1:9"
"""Where nothing listens: to read it is a 0 of `up`."""


@dataclass(frozen=True)
class Stream:
    """Where metrics go."""

    deployment: str
    region: str
    log_group: str
    sleepers: tuple[str, ...] = ()
    """Roles that may have no replica."""

    @property
    def namespace(self) -> str:
        """CloudWatch's namespace of the deployment."""
        return f"Serving/{self.deployment}"


def sent(service: Service, stream: Stream) -> dict[str, str]:
    """The names of what is sent of a service's tasks, by ours."""
    halves = "--vllm-pd-disaggregation" in service.command
    names = METRICS["router of halves" if halves else service.kind]
    watched = stream.sleepers if service.kind == "router" else service.role in stream.sleepers
    return {**names, **OF_SLEEPERS[service.kind]} if watched else dict(names)


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
    names = list(sent(service, stream).values())
    scrapes = [_scrape(service.role, f"127.0.0.1:{service.metrics_port}", stream, names)]
    if service.kind == "router":
        # So that the sum of a role's `up` is there, and 0, while it has no replica: what is missing wakes nobody.
        scrapes += [_scrape(role, _NOBODY, stream, names) for role in stream.sleepers]
    export = {
        "namespace": stream.namespace,
        "region": stream.region,
        "log_group_name": stream.log_group,
        "log_stream_name": service.name,
        # A counter that comes into being with its first request says so, instead of with its second.
        "retain_initial_value_of_delta_metric": True,
        # Tasks of one role are one series: an average over them is one over replicas.
        "dimension_rollup_option": "NoDimensionRollup",
        "metric_declarations": [
            {"dimensions": [["deployment", "role"]], "metric_name_selectors": [f"^{name}$" for name in names]}
        ],
    }
    return {
        "receivers": {"prometheus": {"config": {"scrape_configs": scrapes}}},
        "processors": {"batch": {"timeout": f"{EVERY_S}s"}},
        "exporters": {"awsemf": export},
        "service": {
            # A page that cannot be read is no news while an engine loads: `up` says it.
            "telemetry": {"logs": {"level": "error"}},
            "pipelines": {"metrics": {"receivers": ["prometheus"], "processors": ["batch"], "exporters": ["awsemf"]}},
        },
    }


def _scrape(role: str, target: str, stream: Stream, names: list[str]) -> dict[str, Any]:
    return {
        "job_name": role,
        "scrape_interval": f"{EVERY_S}s",
        "metrics_path": "/metrics",
        "static_configs": [{"targets": [target], "labels": {"deployment": stream.deployment, "role": role}}],
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": "|".join(names), "action": "keep"}],
    }
