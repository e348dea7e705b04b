"""A streaming blueprint resolved: the job, its servers and its endpoint. Frozen data, every number decided."""

from __future__ import annotations

from llm_serving.kinds.streaming.blueprint import Limits, Sample, StreamSlo
from llm_serving.kinds.streaming.stack import StreamStack
from llm_serving.services.deployment import Deployment
from llm_serving.services.service import ResolvedData

JOB_MANAGER, TASK_MANAGER, ENDPOINT, GENERATOR = "jobmanager", "taskmanager", "endpoint", "generator"
"""Roles of its services."""


class Topics(ResolvedData):
    """Topics of Kafka."""

    events: str
    results: str
    dead_letters: str


class StreamingDeployment(Deployment):
    """A resolved stream. `url` is Flink's page on this machine."""

    kind: str = "streaming"
    pattern: str
    brokers: str
    """Addresses of Kafka; empty on AWS, where the stack's outputs have them."""

    topics: Topics
    endpoint_url: str
    """Base URL of the endpoint, without /v1."""

    model: str
    cache_url: str
    """Empty on AWS, as `brokers`."""

    answer_files: str = ""
    """Folder of S3 with the answers as Parquet; empty for none."""

    stack: StreamStack | None = None
    """None on this machine."""

    cost: str = ""
    """What the stack costs an hour; empty on this machine."""

    checkpoint_s: float
    deadline_s: float
    limits: Limits
    sample: Sample
    slo: StreamSlo
