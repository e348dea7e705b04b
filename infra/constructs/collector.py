"""What brings a task's own metrics to CloudWatch: AWS's OpenTelemetry collector beside the engine or router.

It reads Prometheus' page on the task's loopback and writes CloudWatch's embedded metric format into a log group, of
which CloudWatch makes metrics. Only the few that scaling and alarms read are sent: each is paid for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from llm_serving.catalog import images, signals
from llm_serving.services.service import Service

IMAGE = images.pin(images.COLLECTOR)

CPU_UNITS, MEMORY_MIB = 128, 256

METRICS = {"engine": signals.list_scaling(), "router": signals.list_of_role("router")}
"""What is sent of a service's tasks, by kind; a service has the Prometheus names."""

TRANSFERS = "failed-transfers"
"""What is sent of tasks that hand on KV caches, which others call by their addresses."""

SCALE_TO_ZERO_METRICS = {"engine": ("running", "up"), "router": ("up",)}
"""What is sent too if a role may have no replica; `up` is Prometheus' own: 1 after a successful scrape, else 0."""

INTERVAL_S = 15

MAX_SAMPLES = 2000
"""Most series of those metrics on a page: beyond them the collector takes nothing of it, and keeps its memory."""

_UNREACHABLE = "127.0.0.1:9"
"""Where nothing listens: to read it is a 0 of `up`."""


@dataclass(frozen=True)
class MetricStream:
    """Where metrics go."""

    deployment: str
    region: str
    log_group: str
    scale_to_zero_roles: tuple[str, ...] = ()
    """Roles that may have no replica."""

    @property
    def namespace(self) -> str:
        """CloudWatch's namespace of the deployment."""
        return f"Serving/{self.deployment}"


def select_metrics(service: Service, stream: MetricStream) -> dict[str, str]:
    """Return the Prometheus names of what is sent of a service's tasks, by the catalog's names."""
    is_router, part = service.is_entry, "router" if service.is_entry else "engine"
    scales_to_zero = stream.scale_to_zero_roles if is_router else service.role in stream.scale_to_zero_roles
    concepts = METRICS[part] + (SCALE_TO_ZERO_METRICS[part] if scales_to_zero else ())
    concepts += (TRANSFERS,) if service.address_variables else ()
    names = {**service.metrics, "up": signals.load()["up"].name}
    return {concept: names[concept] for concept in concepts if concept in names}


def build_container(service: Service, stream: MetricStream, logs: dict[str, object]) -> dict[str, object]:
    """Build the collector's container definition; the task lives on without it."""
    return {
        "name": "collector",
        "image": IMAGE,
        "essential": False,
        "cpu": CPU_UNITS,
        "memory": MEMORY_MIB,
        "environment": [{"name": "AOT_CONFIG_CONTENT", "value": json.dumps(build_configuration(service, stream))}],
        "logConfiguration": logs,
    }


def build_configuration(service: Service, stream: MetricStream) -> dict[str, object]:
    """Return the collector's configuration; JSON is YAML."""
    names = list(select_metrics(service, stream).values())
    endpoint = f"127.0.0.1:{service.ports.get('metrics', service.port)}"
    scrapes = [_build_scrape(service.role, endpoint, stream, names, service.metrics_path or "/metrics")]
    if service.is_entry:
        # The sum of a role's `up` is 0 while it has no replica: a missing metric never triggers the alarm.
        scrapes += [_build_scrape(role, _UNREACHABLE, stream, names) for role in stream.scale_to_zero_roles]
    processors = _build_processors(select_metrics(service, stream))
    exporter = {
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
        "processors": processors,
        "exporters": {"awsemf": exporter},
        "service": {
            # A page that cannot be read is no news while an engine loads: `up` says it.
            "telemetry": {"logs": {"level": "error"}},
            "pipelines": {
                "metrics": {"receivers": ["prometheus"], "processors": list(processors), "exporters": ["awsemf"]}
            },
        },
    }


def _build_processors(metrics: dict[str, str]) -> dict[str, object]:
    """Build the processors in their order; a router's metrics need no summary.

    Source: open-telemetry/opentelemetry-collector-contrib, processor/metricstransformprocessor, README.md;
    aws-observability/aws-otel-collector v0.48.0, pkg/defaultcomponents/defaults.go, has it.
    """
    transforms = [
        {
            "include": metrics[concept],
            "action": "update",
            "operations": [
                {
                    "action": "aggregate_labels",
                    "label_set": ["deployment", "role"],
                    "aggregation_type": signal.over_ranks,
                }
            ],
        }
        for concept, signal in signals.load().items()
        if signal.role == "engine" and concept in metrics
    ]
    summaries = {"metricstransform": {"transforms": transforms}} if transforms else {}
    return {**summaries, "batch": {"timeout": f"{INTERVAL_S}s"}}


def _build_scrape(
    role: str, endpoint: str, stream: MetricStream, names: list[str], path: str = "/metrics"
) -> dict[str, object]:
    return {
        "job_name": role,
        "scrape_interval": f"{INTERVAL_S}s",
        "metrics_path": path,
        "sample_limit": MAX_SAMPLES,
        "static_configs": [{"targets": [endpoint], "labels": {"deployment": stream.deployment, "role": role}}],
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": "|".join(names), "action": "keep"}],
    }
