"""The data of the stack streaming-NAME: the job on Managed Service for Apache Flink, its Kafka, its cache."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llm_serving.services.service import Secret
from llm_serving.settings.document import AllowSingleItem, Settings
from llm_serving.settings.units import Switch

KAFKA_VERSION = "3.9.x"
"""A version that MSK offers, that of images/stream-job/servers. Source: MSK developer guide, "Supported Apache Kafka
versions", 2026-11."""

FLINK_RUNTIME = "FLINK-1_20"
"""The runtime of the job's Flink. Source: botocore 1.44.5, kinesisanalyticsv2, RuntimeEnvironment."""

SETTINGS_GROUP, PLACE_GROUP = "settings", "place"
"""Groups of properties that images/stream-job reads: its settings in parts, and the addresses that the stack knows."""

DRIVER_ROLE = "send"
"""Part of the purpose of the role that the driver of a validation acts as."""

CACHE_NODES = 2
"""Nodes of the cache: one, and one that takes over."""

ZONES = 3
"""Zones of the brokers: with three copies of each event, one may be away."""


class AnswerFiles(Settings):
    """Answers in S3 as Parquet, and the database of their table in the Glue Data Catalog."""

    bucket: str
    """The results bucket, whose objects expire."""

    prefix: str
    database: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,255}$")]


class StreamStack(Settings):
    """What the stack makes."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,39}$")]
    """FLEET-NAME: name of the job, of the Kafka cluster and of the cache."""

    zones: Annotated[tuple[str, ...], AllowSingleItem(), Field(min_length=ZONES, max_length=ZONES)]
    brokers: Annotated[int, Field(ge=ZONES)]
    broker_type: str
    broker_gib: Annotated[int, Field(ge=1, le=16_384)]
    cache_type: str
    parallelism: Annotated[int, Field(ge=1)]
    checkpoint_ms: Annotated[int, Field(ge=1)]
    events_topic: str
    results_topic: str
    dead_letters_topic: str
    endpoint_port: Annotated[int, Field(ge=1, le=65535)]
    endpoint_in_network: Annotated[bool, Switch()]
    """Whether the endpoint is a deployment in the fleet's network."""

    archive: str
    """The job's jar on this machine, which the stack uploads."""

    bucket: str
    """The model bucket, whose objects do not expire."""

    archive_key: str
    """Its name in the bucket, which changes with its code."""

    settings: Annotated[tuple[str, ...], AllowSingleItem(), Field(min_length=1, max_length=50)]
    """The job's settings, in parts that a property can hold."""

    secrets: Annotated[tuple[Secret, ...], AllowSingleItem()] = ()
    """What the job reads of Secrets Manager."""

    answer_files: AnswerFiles | None = None
    """None where answers are not written to S3."""

    lag_alarm_s: Annotated[int, Field(ge=1)]
    """Consumer lag at which the alarm rings."""

    log_level: Literal["INFO", "WARN"] = "WARN"
    """Of the job's log, in which a line for each request is INFO."""

    dead_alarm: Annotated[float, Field(ge=0, le=1)]
    """Share of events without an answer at which the alarm rings."""


def format_clients_group(stack: StreamStack) -> str:
    """Return the name of the security group of whoever reaches Kafka and the cache."""
    return f"{stack.name}-clients"
