"""The container beside an engine that ends its task where the engine hangs, or its replica lost a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.constructs import collector
from infra.constructs.task import NO_CAPABILITIES, ContainerDefinition, LogDestination
from llm_serving import paths
from llm_serving.services.service import Service

GROUP_PROGRAM = (paths.CHARTS / "inference" / "files" / "group.py").read_text(encoding="utf-8")
"""The program, as `python3 -c GROUP_PROGRAM ...`."""

WATCH = "watch"
"""The container that runs it."""

_WATCH_MEMORY_MIB, _WATCH_STOP_S = 128, 10

_GROUP_PORT = 5701
"""Where a leader waits for its followers; engines reach one another by any port."""


@dataclass(frozen=True)
class Replica:
    """The other nodes of a replica that spans several."""

    leader: str = ""
    """Name of the node that answers requests; empty for that node itself."""

    followers: int = 0
    """Its further nodes."""


def build_container(service: Service, replica: Replica, logs: LogDestination) -> ContainerDefinition:
    """Return the container definition. It is essential, so that its end is the task's.

    ECS stops containers in the reverse order of `dependsOn`: a follower's engine runs on until the program has ended.
    Source: ECS API reference, ContainerDefinition, dependsOn, and Task, healthStatus (every essential container counts,
    and one without a health check is UNKNOWN), 2026-11.
    """
    return {
        "name": WATCH,
        "image": service.image,
        "essential": True,
        "cpu": 32,
        "memory": _WATCH_MEMORY_MIB,
        "entryPoint": ["python3", "-c", GROUP_PROGRAM],
        "command": list(_list_arguments(service, replica)),
        "dependsOn": [{"containerName": service.role, "condition": "START"}],
        "healthCheck": {"command": ["CMD", "python3", "-c", ""], "interval": 30, "timeout": 10, "retries": 3},
        "stopTimeout": service.stop.stop_s if replica.leader else _WATCH_STOP_S,
        "readonlyRootFilesystem": True,
        "linuxParameters": NO_CAPABILITIES,
        "logConfiguration": logs.build_configuration(WATCH),
    }


def _list_arguments(service: Service, replica: Replica) -> Iterator[str]:
    if replica.leader:
        yield from ("follow", "--leader", replica.leader, "--port", str(_GROUP_PORT))
        yield from ("--requests", str(service.port), "--drain", str(service.stop.stop_s - _WATCH_STOP_S))
        return
    assert service.probe
    yield from ("lead", "--health", f"http://127.0.0.1:{service.port}{service.probe.health}")
    if service.metrics.keys() >= {"running", "steps"}:
        yield from ("--metrics", f"http://{collector.format_endpoint(service)}{collector.find_path(service)}")
        yield from ("--running", service.metrics["running"], "--steps", service.metrics["steps"])
    if replica.followers:
        yield from ("--port", str(_GROUP_PORT), "--followers", str(replica.followers))
