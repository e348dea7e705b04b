"""Alarms of a gateway's servers: what fills up before requests fail, and who is told."""

from __future__ import annotations

from infra.constructs import alarm, valkey
from infra.constructs.gateway import GatewayContext
from llm_serving.catalog import signals
from llm_serving.kinds.gateway.stack import CACHE_NODES

MAX_PERCENT = 80.0
"""Of CPU and of memory."""

MIN_SPACE = 0.08
"""Free share of the storage that the database began with. At a tenth of what it has RDS makes it larger, unless it may
grow no more."""

PERIODS = 15
"""Minutes in a row: an instance of the family t may work above its baseline for a while."""


def add_alarms(context: GatewayContext) -> None:
    gateway = context.gateway
    database = [("DBInstanceIdentifier", gateway.name)]
    nodes = valkey.list_node_dimensions(gateway.name, CACHE_NODES)
    space_bytes = MIN_SPACE * gateway.database_gib * 2**30
    _add_alarm(context, "database-cpu", database, "Maximum", MAX_PERCENT)
    _add_alarm(context, "database-space", database, "Minimum", space_bytes, comparison="LessThanThreshold")
    _add_alarm(context, "cache-memory", nodes, "Maximum", MAX_PERCENT)


def _add_alarm(
    context: GatewayContext,
    name: str,
    servers: list[tuple[str, str]],
    stat: str,
    threshold: float,
    comparison: str = "GreaterThanThreshold",
) -> None:
    """Add the alarm on a signal of the worst of some servers, each a dimension and its value."""
    queries = [
        alarm.build_signal_query(f"m{number}", name, dict([server]), stat) for number, server in enumerate(servers)
    ]
    function = "MIN" if stat == "Minimum" else "MAX"
    alarm.add_alarm(
        context.stack,
        f"{name}-alarm",
        name=f"{context.gateway.name}-{name}",
        description=f"{signals.load()[name].meaning}: {context.name}",
        signal=name,
        threshold=threshold,
        comparison=comparison,
        periods=PERIODS,
        metric_query=[*queries, alarm.build_expression_query("e", f"{function}(METRICS())", name)],
    )
