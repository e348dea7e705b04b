"""A stream on AWS: its job on Managed Service for Apache Flink, its Kafka (MSK) and its cache (ElastiCache)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs import alarm, iam, network, task_network, task_roles, valkey
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import Statement, add_role, list_policies
from infra.constructs.network import Network
from infra.constructs.security_group import ANYWHERE, HTTPS, Peer, SecurityGroups, add_rule, add_security_group
from llm_serving.catalog.registry import format_endpoint_service
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_load_secrets
from llm_serving.kinds.streaming.stack import (
    CACHE_NODES,
    DRIVER_ROLE,
    FLINK_RUNTIME,
    KAFKA_VERSION,
    PLACE_GROUP,
    SETTINGS_GROUP,
    StreamStack,
    format_clients_group,
)

KAFKA_PORT, CACHE_PORT = 9098, 6379
"""Kafka's port for clients that log in with a role. Source: MSK developer guide, "Port information", 2026-11."""

# Each checkpoint of each task has a transaction of a new name, which brokers would remember for seven days.
_BROKER_SETTINGS = """\
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
transaction.max.timeout.ms=3600000
transactional.id.expiration.ms=7200000
"""


@dataclass(frozen=True)
class StreamContext:
    """The stream and the resources that its parts use."""

    stack: FleetStack
    name: str
    """The deployment's."""

    stream: StreamStack
    network: Network
    key: aws.kms_key.KmsKey
    log_group: aws.cloudwatch_log_group.CloudwatchLogGroup
    storage_key: str
    """ARN of the key of the bucket."""

    @property
    def subnets(self) -> list[str]:
        """Subnets of the brokers, one in each zone."""
        return [self.network.private_subnets[zone] for zone in self.stream.zones]


def add_groups(context: StreamContext) -> SecurityGroups:
    """Add the groups: whoever is in `clients` reaches Kafka and the cache, and nobody else does.

    In it are producers of events and readers of answers, and the job.
    """
    stream, vpc_id = context.stream, context.network.vpc_id
    parts = {
        "clients": (format_clients_group(stream), f"Producers and readers of {context.name}, and its job"),
        "kafka": (f"{stream.name}-kafka", f"Kafka of {context.name}"),
        "cache": (f"{stream.name}-cache", f"Cache of {context.name}"),
    }
    groups = {
        part: add_security_group(context.stack, f"{part}-group", name=name, description=description, vpc_id=vpc_id)
        for part, (name, description) in parts.items()
    }
    clients = groups["clients"]
    for part, port in (("kafka", KAFKA_PORT), ("cache", CACHE_PORT)):
        add_rule(context.stack, f"{part}-from-clients", groups[part], "in", "Clients", port, peer=clients)
        add_rule(context.stack, f"clients-to-{part}", clients, "out", part, port, peer=groups[part])
    return groups


def add_job_group(context: StreamContext) -> aws.security_group.SecurityGroup:
    """Add the group of the job, which reaches the endpoint too."""
    stream = context.stream
    group = add_security_group(
        context.stack,
        "job-group",
        name=f"{stream.name}-job",
        description=f"The job of {context.name}",
        vpc_id=context.network.vpc_id,
    )
    stack, port = context.stack, stream.endpoint_port
    peer = network.find_ranges(stack, context.network.vpc_id) if stream.endpoint_in_network else ANYWHERE
    add_rule(stack, "job-to-endpoint", group, "out", "Endpoint", port, peer=peer)
    if stream.secrets and (stream.endpoint_in_network or port != HTTPS):
        add_rule(stack, "job-to-secrets", group, "out", "Secrets", HTTPS, peer=ANYWHERE)
    if stream.answer_files:
        name = format_endpoint_service("s3", context.stack.fleet.region)
        prefixes = aws.data_aws_prefix_list.DataAwsPrefixList(context.stack, "s3-addresses", name=name)
        add_rule(context.stack, "job-to-s3", group, "out", "S3", HTTPS, peer=Peer(prefix_list_id=prefixes.id))
    return group


def add_kafka(context: StreamContext, groups: SecurityGroups) -> aws.msk_cluster.MskCluster:
    """Add the cluster: clients log in with their role, over TLS only."""
    stream = context.stream
    configuration = aws.msk_configuration.MskConfiguration(
        context.stack,
        "kafka-configuration",
        name=stream.name,
        kafka_versions=[KAFKA_VERSION],
        server_properties=_BROKER_SETTINGS,
    )
    cluster = aws.msk_cluster.MskCluster(
        context.stack,
        "kafka",
        cluster_name=stream.name,
        kafka_version=KAFKA_VERSION,
        number_of_broker_nodes=stream.brokers,
        broker_node_group_info={
            "instance_type": stream.broker_type,
            "client_subnets": context.subnets,
            "security_groups": [groups["kafka"].id],
            "storage_info": {"ebs_storage_info": {"volume_size": stream.broker_gib}},
        },
        configuration_info={"arn": configuration.arn, "revision": configuration.latest_revision},
        client_authentication={"sasl": {"iam": True}, "unauthenticated": False},
        # Brokers are replaced one after the other, here with twice the time that each usually takes. The provider's own
        # two hours are over before the last of many, and the apply would fail while MSK goes on. Source:
        # hashicorp/terraform-provider-aws 5.100, msk_cluster, Timeouts.
        timeouts={"update": f"{max(120, 30 * stream.brokers)}m"},
        encryption_info={
            "encryption_at_rest_kms_key_arn": context.key.arn,
            "encryption_in_transit": {"client_broker": "TLS", "in_cluster": True},
        },
        logging_info={
            "broker_logs": {"cloudwatch_logs": {"enabled": True, "log_group": context.log_group.name}},
        },
    )
    # Brokers stay in their subnets: another zone at the beginning of the fleet's would replace them, with all events.
    cluster.add_override("lifecycle.ignore_changes", ["broker_node_group_info[0].client_subnets"])
    return cluster


def format_cache_url(cache: aws.elasticache_replication_group.ElasticacheReplicationGroup) -> str:
    """Return the URL of the node that takes writes."""
    return f"rediss://{cache.primary_endpoint_address}:{CACHE_PORT}"


def add_job(
    context: StreamContext,
    groups: SecurityGroups,
    kafka: aws.msk_cluster.MskCluster,
    cache: aws.elasticache_replication_group.ElasticacheReplicationGroup,
) -> aws.kinesisanalyticsv2_application.Kinesisanalyticsv2Application:
    """Upload the job, and run it: it keeps its state in savepoints while it is stopped or changed."""
    stream = context.stream
    archive = aws.s3_object.S3Object(
        context.stack,
        "job-archive",
        bucket=stream.bucket,
        key=stream.archive_key,
        source=stream.archive,
        # Without the fleet's tags, of which S3 takes ten at the most on an object.
        override_provider={"default_tags": {"tags": {}}},
    )
    log_stream = aws.cloudwatch_log_stream.CloudwatchLogStream(
        # Logs of tasks are found by the role that their stream begins with.
        context.stack,
        "job-logs",
        name=f"job/flink/{stream.name}",
        log_group_name=context.log_group.name,
    )
    role = _add_job_role(context)
    return aws.kinesisanalyticsv2_application.Kinesisanalyticsv2Application(
        context.stack,
        "job",
        name=stream.name,
        description=f"Answers the events of {context.name}",
        runtime_environment=FLINK_RUNTIME,
        service_execution_role=role.arn,
        start_application=True,
        cloudwatch_logging_options={"log_stream_arn": log_stream.arn},
        application_configuration=_build_job_configuration(
            context,
            archive_key=archive.key,
            place={"brokers": kafka.bootstrap_brokers_sasl_iam, "cache": format_cache_url(cache)},
            security_groups=[groups["clients"].id, add_job_group(context).id],
        ),
        depends_on=list_policies(role),
    )


def _add_job_role(context: StreamContext) -> aws.iam_role.IamRole:
    stack, secrets = context.stack, context.stream.secrets
    secret_arns = iam.find_secret_arns(stack, secrets)
    return add_role(
        stack,
        names.format_deployment_purpose(context.name, "job"),
        description=f"The job of {context.name}",
        trust=iam.build_trust_policy(
            "kinesisanalytics.amazonaws.com", StringEquals={"aws:SourceAccount": stack.account.id}
        ),
        statements=(
            *_list_job_statements(context),
            *iam.build_secret_statements(stack, secrets, secret_arns),
        ),
    )


def _build_job_configuration(
    context: StreamContext, *, archive_key: str, place: Mapping[str, str], security_groups: Sequence[str]
) -> dict[str, Any]:
    """Build what runs and how: the code, its settings and `place`, checkpoints and parallelism, and the network."""
    stream = context.stream
    module = aws.kinesisanalyticsv2_application
    build_group = module.Kinesisanalyticsv2ApplicationApplicationConfigurationEnvironmentPropertiesPropertyGroup
    properties = {
        SETTINGS_GROUP: {f"{index:02}": part for index, part in enumerate(stream.settings)},
        PLACE_GROUP: place,
    }
    bucket_arn = context.stack.account.build_bucket_arn(stream.bucket)
    return {
        "application_code_configuration": {
            "code_content_type": "ZIPFILE",
            "code_content": {"s3_content_location": {"bucket_arn": bucket_arn, "file_key": archive_key}},
        },
        "application_snapshot_configuration": {"snapshots_enabled": True},
        "environment_properties": {
            # Only here jsii wants the class: in a list it leaves dictionaries as they are.
            "property_group": [
                build_group(property_group_id=group, property_map=values) for group, values in properties.items()
            ]
        },
        "flink_application_configuration": _build_flink(stream),
        # Answers that no longer go to files have state there.
        "run_configuration": {"flink_run_configuration": {"allow_non_restored_state": True}},
        "vpc_configuration": {"security_group_ids": security_groups, "subnet_ids": context.subnets},
    }


def _build_flink(stream: StreamStack) -> dict[str, Any]:
    """Build what Flink is told: its checkpoints, its log and metrics, and how many tasks it runs at once."""
    return {
        "checkpoint_configuration": {
            "configuration_type": "CUSTOM",
            "checkpointing_enabled": True,
            "checkpoint_interval": stream.checkpoint_ms,
            "min_pause_between_checkpoints": 0,
        },
        "monitoring_configuration": {
            "configuration_type": "CUSTOM",
            "log_level": stream.log_level,
            "metrics_level": "APPLICATION",
        },
        "parallelism_configuration": {
            "configuration_type": "CUSTOM",
            "auto_scaling_enabled": False,
            "parallelism": stream.parallelism,
            "parallelism_per_kpu": 1,
        },
    }


def _list_job_statements(context: StreamContext) -> list[Statement]:
    """List the job's permissions: its code, its log, its network interfaces, its topics."""
    account, stream = context.stack.account, context.stream
    files = stream.answer_files
    files_bucket = account.build_bucket_arn(files.bucket) if files else ""
    return [
        *iam.read_statements(
            context.stack,
            "stream-job",
            bucket=stream.bucket,
            archive_key=stream.archive_key,
            storage_key=context.storage_key,
            files=f"{files_bucket}/{files.prefix}/*" if files else "",
            files_bucket=files_bucket,
            files_key=context.storage_key if files else "",
            log_group=context.log_group.arn,
            subnets=[account.build_arn("ec2", f"subnet/{subnet}") for subnet in context.subnets],
        ),
        *_list_client_statements(
            context,
            reads=[stream.events_topic],
            writes=[stream.results_topic, stream.dead_letters_topic],
            consumer_group=context.name,
            topic_actions=["kafka-cluster:AlterTopic", "kafka-cluster:CreateTopic"],
            transactions=account.build_arn("kafka", f"transactional-id/{stream.name}/*/{context.name}-*"),
        ),
    ]


def add_driver(context: StreamContext) -> None:
    """Add what the driver of a validation needs, a task on Fargate: who starts it, as whom it acts, its way to AWS."""
    fleet, name, account, stream = context.stack.fleet, context.name, context.stack.account, context.stream
    task_network.add_groups(context.stack, name, ("driver",), context.network.vpc_id)
    secrets_prefix = format_load_secrets(fleet, name)
    task_roles.add_execution_role(context.stack, name, log_group=context.log_group, secrets=secrets_prefix)
    add_role(
        context.stack,
        names.format_deployment_purpose(name, DRIVER_ROLE),
        description=f"Driver of validations of {name}",
        trust=task_roles.build_trust_policy(account),
        statements=_list_client_statements(
            context,
            reads=[stream.results_topic, stream.dead_letters_topic],
            writes=[stream.events_topic],
            consumer_group=f"{name}-driver",
        ),
    )


def _list_client_statements(
    context: StreamContext,
    *,
    reads: Sequence[str],
    writes: Sequence[str],
    consumer_group: str,
    topic_actions: Sequence[str] = (),
    transactions: str = "",
) -> list[Statement]:
    """List the permissions of a client of Kafka; `topic_actions` are further ones on all of its topics."""
    account, name = context.stack.account, context.stream.name

    def locate(topics: Sequence[str]) -> list[str]:
        return [account.build_arn("kafka", f"topic/{name}/*/{topic}") for topic in topics]

    return iam.read_statements(
        context.stack,
        "stream-client",
        stream=name,
        reads=locate(reads),
        writes=locate(writes),
        consumer_group=consumer_group,
        topic_actions=topic_actions,
        transactions=transactions,
    )


_FAILED_CHECKPOINTS, _CHECKPOINT_TIMEOUT_S = 3, 600
"""How many fail one after the other, and how long one takes that does not end. Source: Flink 1.20,
execution.checkpointing.timeout, which Managed Service for Apache Flink leaves as it is."""


def add_alarms(context: StreamContext) -> None:
    """Add alarms on what users of the stream feel: events that wait, answers that are missing, a job that stands still.

    Kafka knows as read what a checkpoint has committed, so the lag contains the age of the last checkpoint.
    """
    stream = context.stream
    lag = {"Cluster Name": stream.name, "Consumer Group": context.name, "Topic": stream.events_topic}
    job = {"Application": stream.name}
    _add_alarm(context, "lag", {"m": ("stream-lag", lag)}, "m", "Events wait", alarm.Condition(stream.lag_alarm_s))
    failed = {"m": ("failed-checkpoints", job)}
    longest_s = stream.checkpoint_ms / 1000 + _CHECKPOINT_TIMEOUT_S
    periods = math.ceil(_FAILED_CHECKPOINTS * longest_s / alarm.PERIOD_S)
    is_failing = alarm.Condition(0, periods=periods, breaching=_FAILED_CHECKPOINTS)
    _add_alarm(context, "checkpoints", failed, "RATE(m)", "Checkpoints fail", is_failing)
    outage = {"m": ("job-outage", job)}
    # A job that is stopped reports nothing. Source: AWS's agent-toolkit-for-aws, monitoring-and-metrics.md, 2026-11.
    _add_alarm(context, "down", outage, "m", "The job does not run", alarm.Condition(0, missing="breaching"))
    for name, signal, description in (
        ("dead-letters", "dead-letters", "Events have no answer"),
        ("deadlines", "missed-deadlines", "Answers are late"),
    ):
        metrics = {"m": (signal, job), "n": ("stream-events", job)}
        _add_alarm(context, name, metrics, "RATE(m) / RATE(n)", description, alarm.Condition(stream.dead_alarm))

    nodes = valkey.list_node_dimensions(stream.name, CACHE_NODES)
    is_full = alarm.Condition(alarm.MAX_PERCENT)
    memory = {f"m{number}": ("cache-memory", dict([node])) for number, node in enumerate(nodes)}
    _add_alarm(context, "cache", memory, "MAX(METRICS())", "The cache is nearly full", is_full)
    for first in range(1, stream.brokers + 1, alarm.MAX_METRICS):
        brokers = range(first, min(first + alarm.MAX_METRICS, stream.brokers + 1))
        disks = {
            f"m{number}": ("broker-disk", {"Cluster Name": stream.name, "Broker ID": str(number)}) for number in brokers
        }
        name = "disk" if first == 1 else f"disk-{first}"
        _add_alarm(context, name, disks, "MAX(METRICS())", "Kafka's storage is nearly full", is_full)


def _add_alarm(
    context: StreamContext,
    name: str,
    metrics: Mapping[str, tuple[str, Mapping[str, str]]],
    expression: str,
    description: str,
    condition: alarm.Condition,
) -> None:
    """Add an alarm; `metrics` has signal and dimensions by the metric's name in the expression."""
    # The sum of a minute's samples grows with their number, too, which a ratio of two sums takes off.
    stat = "Sum" if "n" in metrics else "Maximum"
    alarm.add_alarm(
        context.stack,
        context.stream.name,
        name,
        *(alarm.find_metric(key, signal, dimensions, stat) for key, (signal, dimensions) in metrics.items()),
        alarm.Expression("e", expression, description),
        description=f"{description}: {context.name}",
        signal=next(iter(metrics.values()))[0],
        condition=condition,
    )
