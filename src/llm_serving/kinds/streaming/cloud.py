"""A stream on AWS: the job on Managed Service for Apache Flink, MSK and ElastiCache, all made by its stack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.streaming import programs
from llm_serving.kinds.streaming.blueprint import Blueprint
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.stack import CACHE_NODES, ZONES, AnswerFiles, StreamStack
from llm_serving.services import addresses, team_keys
from llm_serving.services.environment import Environment
from llm_serving.services.rendered import split_location
from llm_serving.services.service import MAX_VARIABLE
from llm_serving.settings.document import Conflict

MAX_PROPERTY, MAX_PROPERTIES = 2048, 50
"""Maximum characters of a property, and of properties of a group. Source: botocore 1.44.5, kinesisanalyticsv2,
PropertyValue and PropertyMap."""

SETTINGS_VARIABLE = "STREAM_SETTINGS"
"""The job's settings, as `Settings` of images/stream-job reads them."""

_MAX_SETTINGS = MAX_VARIABLE - len(f"{SETTINGS_VARIABLE}=")

KAFKA_PROPERTIES: Mapping[str, str] = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
"""What a client of Kafka needs to log in with its role. Source: aws-msk-iam-auth 2.3.2, README."""

REPLICAS = 3

_PRODUCER_BYTES, _REMEMBERED_S = 250, 86_400
"""Bytes of heap that a broker takes for a producer in each partition, and how long it does: MSK has no such setting for
a cluster. Each task has another producer after each checkpoint. Measured on Kafka 3.9.1; producer.id.expiration.ms."""

_MUCH_HEAP_BYTES = 3e9
"""What is much for a broker of 8 GiB of memory, as the default kafka.m7g.large has."""


def check(settings: Blueprint, fleet: Fleet, environment: Environment, name: str) -> Iterator[Conflict]:
    """Yield what AWS's managed services refuse, or do not have."""
    yield from check_job(settings, environment.conventions.title)
    yield from team_keys.check_region(settings.endpoint.api_key, ("endpoint", "api_key"), environment, "the job")
    if len(fleet.zones) < ZONES:
        reason = f"the brokers take {ZONES} zones, and the fleet {fleet.name} has {len(fleet.zones)}"
        yield Conflict(("aws", "brokers"), reason, "add zones to the fleet", settings.aws.brokers)
    yield from names.check_cache_name(fleet, name)  # the strictest of the three services


def check_job(settings: Blueprint, title: str) -> Iterator[Conflict]:
    """Yield what no job away from this machine can do."""
    if settings.endpoint.mock:
        reason, fix = f"on {title} no mock runs", "set deployment: NAME, or url: https://HOST and model: NAME"
        yield Conflict(("endpoint",), reason, fix, "mock")
    who = f"the job on {title} does not reach"
    yield from addresses.check_reachable(settings.endpoint.url, ("endpoint", "url"), who)
    if settings.aws.parallelism > settings.partitions:
        reason = f"further instances than partitions ({settings.partitions}) get no events"
        fix = "raise partitions, or lower it"
        yield Conflict(("aws", "parallelism"), reason, fix, settings.aws.parallelism)


def resolve(settings: Blueprint, fleet: Fleet, deployment: StreamingDeployment, job: str) -> StreamStack:
    """Resolve the data of the stack.

    Args:
        job: the job's settings as JSON, without the addresses that the stack knows.
    """
    environment = deployment.environment
    archive = programs.locate_archive()
    name = names.format_deployment_name(fleet, deployment.name)
    bucket, prefix = split_location(deployment.answer_files)
    return StreamStack(
        name=name,
        zones=tuple(fleet.zones[:ZONES]),
        brokers=settings.aws.brokers,
        broker_type=settings.aws.broker_type,
        broker_gib=math.ceil(settings.aws.broker_storage / 2**30),
        cache_type=settings.aws.cache_type,
        parallelism=settings.aws.parallelism,
        checkpoint_ms=round(1000 * settings.checkpoint),
        events_topic=deployment.topics.events,
        results_topic=deployment.topics.results,
        dead_letters_topic=deployment.topics.dead_letters,
        endpoint_port=addresses.find_port(deployment.endpoint_url),
        endpoint_in_network=settings.endpoint.deployment is not None,
        archive=str(archive),
        bucket=environment.bucket,
        archive_key=f"streaming/{deployment.name}/{archive.name}",
        settings=tuple(job[start : start + MAX_PROPERTY] for start in range(0, len(job), MAX_PROPERTY)),
        secrets=team_keys.list_read(settings.endpoint.api_key),
        answer_files=AnswerFiles(bucket=bucket, prefix=prefix, database=name.replace("-", "_")) if bucket else None,
        # What is answered counts as lag until a checkpoint commits it.
        lag_alarm_s=math.ceil(settings.aws.lag_alarm + settings.checkpoint),
        log_level="INFO" if settings.logs == "json" else "WARN",
        dead_alarm=get_dead_alarm(settings),
    )


def get_dead_alarm(settings: Blueprint) -> float:
    """Return the share of events without an answer at which an alarm rings."""
    return settings.slo.dead_events or 0.01


def list_notes(settings: Blueprint) -> Iterator[str]:
    """Say what producers of checkpoints take of each broker's heap where that is much."""
    producers = _REMEMBERED_S * settings.aws.parallelism / settings.checkpoint
    heap_bytes = _PRODUCER_BYTES * producers * settings.partitions * REPLICAS / settings.aws.brokers
    if heap_bytes > _MUCH_HEAP_BYTES:
        yield (
            f"Each broker remembers the producers of a day's checkpoints, which take {heap_bytes / 1e9:.0f} GB of its "
            "heap: raise checkpoint, or let brokers forget them sooner, as the pattern's README says."
        )


def list_units(stack: StreamStack) -> Iterator[Units]:
    """Yield what the stack rents by the hour, used or not."""
    for service, count in (
        (stack.broker_type, stack.brokers),
        ("kafka-storage-gib", stack.brokers * stack.broker_gib),
        ("flink-kpu", stack.parallelism + 1),  # one manages the others, and has no storage
        ("flink-storage", stack.parallelism),
        (stack.cache_type, CACHE_NODES),
        ("kms-key", 1),
    ):
        yield Units(service, count, stack.name)


def find_large_files(settings: Blueprint, job: str, environment: Environment) -> Iterator[Conflict]:
    """Yield a prompt or a schema that the job's properties, or elsewhere its variable, cannot hold."""
    is_managed = environment.conventions.runs_tasks
    holder, limit = ("Managed Flink", MAX_PROPERTY * MAX_PROPERTIES) if is_managed else ("a variable", _MAX_SETTINGS)
    if len(job) > limit:
        reason = f"with the schema of events it takes {len(job)} characters, and {holder} {limit}"
        yield Conflict(("prompt",), reason, "write a shorter prompt, or a shorter schema", settings.prompt)
