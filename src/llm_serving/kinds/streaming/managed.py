"""What AWS says of a stream's job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_serving.kinds.streaming.deployment import StreamingDeployment


def list_rows(deployment: StreamingDeployment, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return the row of the job on Managed Service for Apache Flink; none where it is not deployed.

    Args:
        connect: returns a client of a service.
    """
    assert deployment.stack
    client = connect("kinesisanalyticsv2")
    try:
        detail = client.describe_application(ApplicationName=deployment.stack.name)["ApplicationDetail"]
    except client.exceptions.ResourceNotFoundException:
        return []
    status = detail["ApplicationStatus"]
    return [
        {
            "name": detail["ApplicationName"],
            "role": "job",
            "state": "ready" if status == "RUNNING" else status.lower(),
            "restarts": 0,
            "machine": f"{deployment.stack.parallelism} KPUs",
        }
    ]
