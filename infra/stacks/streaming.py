"""A stream: its Kafka, its cache, and the job that answers its events, on AWS's managed services."""

from __future__ import annotations

import functools

from infra.constructs import network, results_table, stream, valkey
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import add_key, add_log_group, build_log_group_grant, find_key
from infra.constructs.stream import StreamContext
from infra.stacks import base
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.kinds.streaming.stack import CACHE_NODES, StreamStack
from llm_serving.services import rendered
from llm_serving.services.rendered import Rendered

KIND = "streaming"

Stream = Rendered[StreamStack]


def _add_resources(stack: FleetStack, deployment: Stream) -> None:
    """Add all; outputs: brokers, cache_url, clients_group, job_name."""
    name = deployment.name
    group_name = format_log_group(stack.fleet, KIND, name)
    key = add_key(
        stack,
        "stream-key",
        alias=f"{stack.fleet.name}-stream-{name}",
        description=f"Events, answers and logs of {name}",
        grants=(build_log_group_grant(stack, group_name),),
    )
    log_group = add_log_group(stack, "logs", group_name, key)
    context = StreamContext(
        stack=stack,
        name=name,
        stream=deployment.stack,
        network=network.find_network(stack),
        key=key,
        log_group=log_group,
        storage_key=find_key(stack, "storage"),
    )
    groups = stream.add_groups(context)
    kafka = stream.add_kafka(context, groups)
    cache = valkey.add_cache(
        stack,
        context.stream.name,
        description=f"Answers of {name}",
        node_type=context.stream.cache_type,
        nodes=CACHE_NODES,
        port=stream.CACHE_PORT,
        subnets=context.subnets,
        security_group=groups["cache"].id,
        key=key,
    )
    job = stream.add_job(context, groups, kafka, cache)
    stream.add_driver(context)
    stream.add_alarms(context)
    if deployment.stack.answer_files:
        results_table.add_answers_table(stack, name, deployment.stack.answer_files)
    base.add_output(stack, "brokers", kafka.bootstrap_brokers_sasl_iam, "Kafka, for clients that log in with a role")
    base.add_output(stack, "cache_url", stream.format_cache_url(cache), "The cache")
    base.add_output(
        stack, "clients_group", groups["clients"].id, "Security group of whoever reaches Kafka and the cache"
    )
    base.add_output(stack, "job_name", job.name, "The job on Managed Service for Apache Flink")


list_stacks = functools.partial(
    base.list_deployments, KIND, lambda file, fleet: rendered.read(file, fleet, Stream).value, _add_resources
)
