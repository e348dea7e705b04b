"""The kind `streaming`: answers to events within seconds."""

# ruff: noqa: ARG002 - a kind takes what others need

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from llm_serving.catalog import images
from llm_serving.fleet import image_cache
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.streaming import cloud, operators, programs
from llm_serving.kinds.streaming import resolve as resolving
from llm_serving.kinds.streaming.blueprint import Blueprint
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.servers import Cache, Kafka
from llm_serving.kinds.streaming.stack import CACHE_NODES, DRIVER_ROLE, PLACE_GROUP, StreamStack, format_clients_group
from llm_serving.services import rendered
from llm_serving.services.kinds import Kind
from llm_serving.services.load_program import ARCHIVE_FILE, LoadProgram, MountedSecret
from llm_serving.services.local_server import LocalServer
from llm_serving.services.rendered import Rendered
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Unavailable

_JOB_FILE = "/opt/flink/usrlib/stream-job.jar"
"""Where the image of the job has it, as charts/streaming says."""

_DRIVER_MB = 1024

_STATES = {"RUNNING": "ready", "READY": "stopped"}
"""By ApplicationStatus, where another word says more. Source: terraform-provider-aws, waitApplicationStarted and
waitApplicationStopped of kinesisanalyticsv2/application.go, 2026-11."""


class StreamingKind(Kind[Blueprint, StreamingDeployment]):
    """Events to answers; each method is described in `Kind`."""

    NAME = "streaming"
    SETTINGS = Blueprint
    DEPLOYMENT = StreamingDeployment
    VALIDATOR = "llm_serving.kinds.streaming.validation.validate"
    REFRESHED = ("sample", "slo")

    resolve = staticmethod(resolving.resolve)
    list_port_names = staticmethod(resolving.list_port_names)

    def list_local_servers(self, blueprint: Blueprint) -> tuple[LocalServer, ...]:
        return (Kafka(), Cache())

    def can_fork(self, blueprint: Blueprint) -> bool:
        return False

    def build_load_program(self, deployment: StreamingDeployment) -> LoadProgram | None:
        """Build what sends a validation's events: images/stream-job's own driver, in the fleet's network.

        On EKS it runs in the image of the job; on ECS in one of Java, with the jar that the stack uploaded.
        """
        name, stack, environment = deployment.name, deployment.stack, deployment.environment
        if operator_stream := deployment.operators:
            return LoadProgram(
                image=operator_stream.image,
                command=_build_driver(_JOB_FILE),
                secrets={
                    operators.CERTIFICATE_FILE: MountedSecret(f"{name}-cluster-ca-cert", "ca.crt"),
                    operators.LOGIN_FILE: MountedSecret(f"{name}-{operators.DRIVER}", operators.LOGIN_KEY),
                },
            )
        if stack is None:
            return None
        return LoadProgram(
            image=image_cache.rewrite(images.pin(images.JAVA, environment.image_digests), environment.image_prefixes),
            command=_build_driver(ARCHIVE_FILE),
            archive=f"s3://{stack.bucket}/{stack.archive_key}",
            role=DRIVER_ROLE,
            security_groups=(format_clients_group(stack),),
        )

    def prepare(self, deployment: StreamingDeployment) -> None:
        if deployment.stack:
            programs.build_archive()

    def list_managed(self, deployment: StreamingDeployment, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
        detail = _describe_job(deployment.stack, connect) if deployment.stack else None
        if not deployment.stack or detail is None:
            return []
        status = detail["ApplicationStatus"]
        return [
            {
                "name": detail["ApplicationName"],
                "role": "job",
                "state": _STATES.get(status) or status.lower(),
                "restarts": 0,
                "machine": f"{deployment.stack.parallelism} KPUs",
            }
        ]

    def find_addresses(self, deployment: StreamingDeployment, connect: Callable[[str], Any]) -> StreamingDeployment:
        if deployment.stack is None:
            return deployment
        detail = _describe_job(deployment.stack, connect)
        if detail is None:
            raise Unavailable(f"{deployment.name}: not deployed on ecs. Fix: run blueprint deploy.")
        configuration = detail["ApplicationConfigurationDescription"]
        groups = configuration["EnvironmentPropertyDescriptions"]["PropertyGroupDescriptions"]
        properties = {group["PropertyGroupId"]: group["PropertyMap"] for group in groups}
        return deployment.model_copy(update={"brokers": str(properties[PLACE_GROUP]["brokers"])})

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        return cloud.list_units(rendered.read(file, fleet, Rendered[StreamStack]).value.stack)

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


def _describe_job(stack: StreamStack, connect: Callable[[str], Any]) -> dict[str, Any] | None:
    """Return what AWS says of the job; None where it is not deployed."""
    client = connect("kinesisanalyticsv2")
    try:
        answer: dict[str, dict[str, Any]] = client.describe_application(ApplicationName=stack.name)
    except client.exceptions.ResourceNotFoundException:
        return None
    return answer["ApplicationDetail"]


def _build_driver(archive: str) -> tuple[str, ...]:
    return ("java", f"-Xmx{_DRIVER_MB}m", "-cp", archive, "stream.load.RemoteDriver")


KIND = StreamingKind()
