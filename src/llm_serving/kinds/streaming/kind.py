"""The kind `streaming`: answers to events within seconds."""

# ruff: noqa: ARG002 - a kind takes what others need

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.streaming import load_program, managed, price, programs
from llm_serving.kinds.streaming import resolve as resolving
from llm_serving.kinds.streaming.blueprint import Blueprint
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.servers import Cache, Kafka
from llm_serving.kinds.streaming.stack import CACHE_NODES, StreamStack
from llm_serving.services import rendered
from llm_serving.services.kinds import Kind
from llm_serving.services.local_server import LocalServer
from llm_serving.services.rendered import Rendered
from llm_serving.settings.document import Document


class StreamingKind(Kind[Blueprint, StreamingDeployment]):
    """Events to answers; each method is described in `Kind`."""

    NAME = "streaming"
    SETTINGS = Blueprint
    DEPLOYMENT = StreamingDeployment
    VALIDATOR = "llm_serving.kinds.streaming.validation.validate"
    REFRESHED = ("sample", "slo")

    resolve = staticmethod(resolving.resolve)
    list_port_names = staticmethod(resolving.list_port_names)
    build_load_program = staticmethod(load_program.build)

    def list_local_servers(self, blueprint: Blueprint) -> tuple[LocalServer, ...]:
        return (Kafka(), Cache())

    def can_fork(self, blueprint: Blueprint) -> bool:
        return False

    def prepare(self, deployment: StreamingDeployment) -> None:
        if deployment.stack:
            programs.build_archive()

    def list_managed(self, deployment: StreamingDeployment, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
        return managed.list_rows(deployment, connect) if deployment.stack else []

    def find_addresses(self, deployment: StreamingDeployment, connect: Callable[[str], Any]) -> StreamingDeployment:
        if deployment.stack is None:
            return deployment
        return deployment.model_copy(update={"brokers": managed.find_brokers(deployment, connect)})

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        return price.list_units(rendered.read(file, fleet, Rendered[StreamStack]).value.stack)

    def describe(self, blueprint: Document[Blueprint], deployment: StreamingDeployment) -> Iterable[tuple[str, str]]:
        settings = blueprint.value
        endpoint = settings.endpoint
        yield "endpoint", f"{deployment.model} at {deployment.endpoint_url}, {endpoint.deadline:g} s for an answer"
        yield "session", f"the latest {settings.session.events} events within {settings.session.timeout:g} s"
        yield "topics", ", ".join(deployment.topics.model_dump().values())
        if deployment.stack:
            stack = deployment.stack
            yield "kafka", f"{stack.brokers} x {stack.broker_type} of MSK, {stack.broker_gib} GiB each"
            yield "job", f"{stack.parallelism} KPUs of Managed Service for Apache Flink, and one to manage them"
            yield "cache", f"{CACHE_NODES} x {stack.cache_type} of ElastiCache for Valkey"
            yield "cost", deployment.cost
        else:
            if deployment.operators:
                operators = deployment.operators
                yield "kafka", f"{operators.brokers} brokers of Strimzi, {operators.broker_gib} GiB each"
                yield "job", f"{operators.parallelism} TaskManagers of the Flink operator"
            yield "cache", deployment.cache_url
        if deployment.answer_files:
            yield "parquet", deployment.answer_files

    def build_summary(self, deployment: StreamingDeployment) -> dict[str, Any]:
        return {
            "endpoint": deployment.endpoint_url,
            "model": deployment.model,
            "brokers": deployment.brokers,
            "topics": deployment.topics.model_dump(),
            "cache": deployment.cache_url,
        }


KIND = StreamingKind()
