"""Alarms of a gateway's servers: what fills up before requests fail, or is gone, and who is told."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import alarm, valkey
from infra.constructs.gateway import GatewayContext, Servers
from llm_serving.catalog import signals
from llm_serving.kinds.gateway.stack import CACHE_NODES

MAX_PERCENT = 80.0
"""Of CPU and of memory."""

MIN_SPACE = 0.08
"""Free share of the storage that the database began with. At a tenth of what it has RDS makes it larger, unless it may
grow no more."""

PERIODS = 15
"""Minutes in a row: an instance of the family t may work above its baseline for a while."""


def add_alarms(context: GatewayContext, servers: Servers) -> None:
    """Add the alarms. CPU and memory are measured as long as a server runs: where they are not, it is gone."""
    gateway = context.gateway
    database = [("DBInstanceIdentifier", gateway.name)]
    nodes = valkey.list_node_dimensions(gateway.name, CACHE_NODES)
    space_bytes = MIN_SPACE * gateway.database_gib * 2**30
    cpu = _add_alarm(context, "database-cpu", database, "Maximum", MAX_PERCENT, missing="breaching")
    _add_alarm(context, "database-space", database, "Minimum", space_bytes, comparison="LessThanThreshold")
    memory = _add_alarm(context, "cache-memory", nodes, "Maximum", MAX_PERCENT, missing="breaching")
    # Or they ring while the servers are made.
    for resource, server in ((cpu, servers.database), (memory, servers.cache)):
        resource.add_override("depends_on", [f"{server.terraform_resource_type}.{server.friendly_unique_id}"])


def _add_alarm(
    context: GatewayContext,
    name: str,
    servers: list[tuple[str, str]],
    stat: str,
    threshold: float,
    comparison: str = "GreaterThanThreshold",
    missing: str = "notBreaching",
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm:
    """Add the alarm on a signal of the worst of some servers, each a dimension and its value."""
    queries = [
        alarm.build_signal_query(f"m{number}", name, dict([server]), stat) for number, server in enumerate(servers)
    ]
    function = "MIN" if stat == "Minimum" else "MAX"
    gone = ", or it does not run" if missing == "breaching" else ""
    return alarm.add_alarm(
        context.stack,
        f"{name}-alarm",
        name=f"{context.gateway.name}-{name}",
        description=f"{signals.load()[name].meaning}{gone}: {context.name}",
        signal=name,
        threshold=threshold,
        comparison=comparison,
        periods=PERIODS,
        missing=missing,
        metric_query=[*queries, alarm.build_expression_query("e", f"{function}(METRICS())", name)],
    )
