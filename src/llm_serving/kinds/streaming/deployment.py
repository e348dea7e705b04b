"""A streaming blueprint resolved: the job, its servers and its endpoint. Frozen data, every number decided."""

from __future__ import annotations

from llm_serving.catalog.frameworks import Workload
from llm_serving.kinds.streaming.blueprint import Limits, Sample, StreamSlo
from llm_serving.kinds.streaming.stack import StreamStack
from llm_serving.services.deployment import Deployment
from llm_serving.settings.plain import PlainData

JOB_MANAGER, TASK_MANAGER, ENDPOINT, GENERATOR = "jobmanager", "taskmanager", "endpoint", "generator"
"""Roles of its services."""


class Topics(PlainData):
    """Topics of Kafka."""

    events: str
    results: str
    dead_letters: str


class OperatorStream(PlainData):
    """What operators run on EKS; values of charts/streaming."""

    image: str
    state_class: str
    broker_class: str
    brokers: int
    broker_gib: int
    parallelism: int
    endpoint_port: int
    cache_port: int
    settings: str
    """The job's, as JSON."""

    logs: str
    """`text` or `json`."""

    is_monitored: bool
    """Whether the fleet has Prometheus and its operator."""

    lag_alarm_s: int
    dead_alarm: float
    """Share of events without an answer at which an alert fires."""

    stall_alarm_s: int
    """Seconds without a checkpoint after which one fires."""


class StreamingDeployment(Deployment):
    """A resolved stream. `url` is Flink's page on this machine."""

    kind: str = "streaming"
    chart: str = "streaming"
    workload: Workload | None = Workload(
        # Its operator gives an object one condition. Source: flink-kubernetes-operator 1.15.0, ConditionsUtils.
        api_version="flink.apache.org/v1beta1",
        kind="FlinkDeployment",
        operator="the Flink operator",
        condition="Running",
    )
    pattern: str
    brokers: str
    """Addresses of Kafka; empty on ECS, where the stack's outputs have them."""

    topics: Topics
    endpoint_url: str
    """Base URL of the endpoint, without /v1."""

    model: str
    cache_url: str
    """Empty on ECS, as `brokers`."""

    answer_files: str = ""
    """Folder of S3 with the answers as Parquet; empty for none."""

    stack: StreamStack | None = None
    """None but on ECS."""

    operators: OperatorStream | None = None
    """None but on EKS."""

    cost: str = ""
    """What the stack costs an hour; empty without."""

    checkpoint_s: float
    deadline_s: float
    limits: Limits
    sample: Sample
    slo: StreamSlo
