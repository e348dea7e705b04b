"""The containers beside an engine or a router: AWS's OpenTelemetry collector, and what ends a task whose engine hangs.

The collector reads Prometheus' page on the task's loopback and writes CloudWatch's embedded metric format into a log
group, of which CloudWatch makes metrics. Only the few that scaling and alarms read are sent: each is paid for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.constructs.task import NO_CAPABILITIES, ContainerDefinition, LogDestination
from llm_serving import paths
from llm_serving.catalog import images, signals
from llm_serving.catalog.routers import REFUSED
from llm_serving.services.service import Service
from llm_serving.settings import own_yaml

IMAGE = images.pin(images.COLLECTOR)

CPU_UNITS, MEMORY_MIB = 128, 256

METRICS = {"engine": signals.list_scaling(), "router": signals.list_of_role("router")}
"""What is sent of a service's tasks, by kind, and drawn; a service has the Prometheus names."""

UP = "up"
"""Prometheus' own: 1 after a successful scrape, else 0. Routers send it, whose counters begin with requests."""

TRANSFERS = "failed-transfers"
"""What is sent of tasks that hand on KV caches, which others call by their addresses."""

SCALE_TO_ZERO_METRICS = ("running", UP)
"""What is sent too of a role that may have no replica."""

INTERVAL_S = 15

_COLLECTOR = own_yaml.read(Path(__file__).with_name("collector.yaml"))

_UNREACHABLE = "127.0.0.1:9"
"""Where nothing listens: to read it is a 0 of `up`."""


@dataclass(frozen=True)
class MetricStream:
    """Where metrics go."""

    fleet: str
    deployment: str
    region: str
    log_group: str
    scale_to_zero_roles: tuple[str, ...] = ()
    """Roles that may have no replica."""

    @property
    def owner(self) -> str:
        """What the names of the deployment's alarms begin with."""
        return f"{self.fleet}-{self.deployment}"

    @property
    def namespace(self) -> str:
        """CloudWatch's namespace of the deployment: another fleet of the region may have one of its name."""
        return f"Serving/{self.fleet}/{self.deployment}"


def select_metrics(service: Service, stream: MetricStream) -> dict[str, str]:
    """Return the Prometheus names of what is sent of a service's tasks, by the catalog's names."""
    concepts = (*METRICS["router"], UP) if service.is_entry else METRICS["engine"]
    concepts += SCALE_TO_ZERO_METRICS if service.role in stream.scale_to_zero_roles else ()
    concepts += (TRANSFERS,) if service.address_variables else ()
    names = {**service.metrics, UP: signals.load()[UP].name}
    return {concept: names[concept] for concept in concepts if concept in names}


def format_endpoint(service: Service) -> str:
    """Return where a service's metrics are, within its task."""
    return f"127.0.0.1:{service.ports.get('metrics', service.port)}"


def find_path(service: Service) -> str:
    return service.metrics_path or "/metrics"


def build_collector(service: Service, stream: MetricStream, logs: dict[str, object]) -> dict[str, object]:
    """Build the collector's container definition; the task lives on without it.

    Of itself ECS starts no container again, and alarms that read nothing are silent. Source: ECS developer guide,
    "Restart individual containers in Amazon ECS tasks with container restart policies", 2026-11.
    """
    return {
        "name": "collector",
        "image": IMAGE,
        "essential": False,
        # How long it must have run to be started again: the least that ECS takes.
        "restartPolicy": {"enabled": True, "restartAttemptPeriod": 60},
        "cpu": CPU_UNITS,
        "memory": MEMORY_MIB,
        "linuxParameters": NO_CAPABILITIES,
        "environment": [{"name": "AOT_CONFIG_CONTENT", "value": json.dumps(build_configuration(service, stream))}],
        "logConfiguration": logs,
    }


def build_configuration(service: Service, stream: MetricStream) -> dict[str, object]:
    """Return the collector's configuration; JSON is YAML."""
    metrics = select_metrics(service, stream)
    names = [name for metric in metrics.values() for name in metric.split("|")]
    scrapes = [_build_scrape(service.role, format_endpoint(service), stream, names, find_path(service))]
    if service.is_entry:
        # The sum of a role's `up` is 0 while it has no replica: a missing metric never triggers the alarm.
        scrapes += [_build_scrape(role, _UNREACHABLE, stream, names) for role in stream.scale_to_zero_roles]
    processors = _build_processors(metrics)
    values = {
        "scrapes": scrapes,
        "processors": processors,
        "processor_names": list(processors),
        "namespace": stream.namespace,
        "region": stream.region,
        "log_group": stream.log_group,
        "service": service.name,
        "selectors": [f"^{name}$" for name in names],
    }
    configuration: dict[str, object] = own_yaml.fill_values(_COLLECTOR["collector"], values)
    return configuration


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
    values = {
        "role": role,
        "deployment": stream.deployment,
        "interval": f"{INTERVAL_S}s",
        "path": path,
        "targets": [endpoint],
        "names": "|".join(names),
        "refused": REFUSED,
    }
    scrape: dict[str, object] = own_yaml.fill_values(_COLLECTOR["scrape"], values)
    return scrape


GROUP_PROGRAM = (paths.CHARTS / "inference" / "files" / "group.py").read_text(encoding="utf-8")
"""The program, as `python3 -c GROUP_PROGRAM ...`."""

WATCH = "watch"
"""The container that runs it."""

_WATCH_MEMORY_MIB, _WATCH_STOP_S = 128, 10

_GROUP_PORT = 5701
"""Where a leader waits for its followers; engines reach one another by any port."""


def build_watch(service: Service, logs: LogDestination, *, leader: str, followers: int) -> ContainerDefinition:
    """Return the container definition. It is essential, so that its end is the task's.

    ECS stops containers in the reverse order of `dependsOn`: a follower's engine runs on until the program has ended.
    Source: ECS API reference, ContainerDefinition, dependsOn, and Task, healthStatus (every essential container counts,
    and one without a health check is UNKNOWN), 2026-11.

    Args:
        leader: name of the node of the replica that answers requests; empty for that node itself.
        followers: its further nodes.
    """
    return {
        "name": WATCH,
        "image": service.image,
        "essential": True,
        "cpu": 32,
        "memory": _WATCH_MEMORY_MIB,
        "entryPoint": ["python3", "-c", GROUP_PROGRAM],
        "command": list(_list_arguments(service, leader, followers)),
        "dependsOn": [{"containerName": service.role, "condition": "START"}],
        "healthCheck": {"command": ["CMD", "python3", "-c", ""], "interval": 30, "timeout": 10, "retries": 3},
        "stopTimeout": service.stop.stop_s if leader else _WATCH_STOP_S,
        "readonlyRootFilesystem": True,
        "linuxParameters": NO_CAPABILITIES,
        "logConfiguration": logs.build_configuration(WATCH),
    }


def _list_arguments(service: Service, leader: str, followers: int) -> Iterator[str]:
    if leader:
        yield from ("follow", "--leader", leader, "--port", str(_GROUP_PORT))
        yield from ("--requests", str(service.port), "--drain", str(service.stop.stop_s - _WATCH_STOP_S))
        return
    assert service.probe
    yield from ("lead", "--health", f"http://127.0.0.1:{service.port}{service.probe.health}")
    if service.metrics.keys() >= {"running", "steps"}:
        yield from ("--metrics", f"http://{format_endpoint(service)}{find_path(service)}")
        yield from ("--running", service.metrics["running"], "--steps", service.metrics["steps"])
    if followers:
        yield from ("--port", str(_GROUP_PORT), "--followers", str(followers))
