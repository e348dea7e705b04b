"""What AWS says of a stream's job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.stack import PLACE_GROUP
from llm_serving.settings.errors import Unavailable

_STATES = {"RUNNING": "ready", "READY": "stopped"}
"""By ApplicationStatus, where another word says more. Source: terraform-provider-aws, waitApplicationStarted and
waitApplicationStopped of kinesisanalyticsv2/application.go, 2026-11."""


def list_rows(deployment: StreamingDeployment, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return the row of the job on Managed Service for Apache Flink; none where it is not deployed."""
    assert deployment.stack
    detail = _describe(deployment, connect)
    if detail is None:
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


def find_brokers(deployment: StreamingDeployment, connect: Callable[[str], Any]) -> str:
    """Return the addresses of Kafka that the job was given.

    Raises:
        Unavailable: it is not deployed.
    """
    detail = _describe(deployment, connect)
    if detail is None:
        raise Unavailable(f"{deployment.name}: not deployed on ecs. Fix: run blueprint deploy.")
    configuration = detail["ApplicationConfigurationDescription"]
    groups = configuration["EnvironmentPropertyDescriptions"]["PropertyGroupDescriptions"]
    properties = {group["PropertyGroupId"]: group["PropertyMap"] for group in groups}
    return str(properties[PLACE_GROUP]["brokers"])


def _describe(deployment: StreamingDeployment, connect: Callable[[str], Any]) -> dict[str, Any] | None:
    """Return what AWS says of the job; None where it is not deployed."""
    assert deployment.stack
    client = connect("kinesisanalyticsv2")
    try:
        answer = client.describe_application(ApplicationName=deployment.stack.name)
    except client.exceptions.ResourceNotFoundException:
        return None
    detail: dict[str, Any] = answer["ApplicationDetail"]
    return detail
