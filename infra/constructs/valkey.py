"""A cache: ElastiCache for Valkey in two zones."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack

VERSION, FAMILY = "8.2", "valkey8"
"""From this version on nodes search vectors. Source: ElastiCache user guide, "Search features and limits", 2026-11."""


def add_cache(
    stack: FleetStack,
    name: str,
    *,
    description: str,
    node_type: str,
    nodes: int,
    port: int,
    subnets: Sequence[str],
    security_group: str,
    key: aws.kms_key.KmsKey,
    snapshot_days: int | None = None,
    reserve_percent: int | None = None,
) -> aws.elasticache_replication_group.ElasticacheReplicationGroup:
    """Add a cache whose second node, in another zone, takes over; it is reached over TLS only.

    Args:
        reserve_percent: the share of its memory that it sets aside; ElastiCache's own where left out.
    """
    group = aws.elasticache_subnet_group.ElasticacheSubnetGroup(
        stack, "cache-subnets", name=name, subnet_ids=list(subnets)
    )
    parameters = _add_parameters(stack, name, description, reserve_percent) if reserve_percent else None
    return aws.elasticache_replication_group.ElasticacheReplicationGroup(
        stack,
        "cache",
        replication_group_id=name,
        description=description,
        engine="valkey",
        engine_version=VERSION,
        node_type=node_type,
        # Else a larger type waits for the maintenance window of the week, full or not.
        apply_immediately=True,
        parameter_group_name=parameters.name if parameters else None,
        num_cache_clusters=nodes,
        automatic_failover_enabled=True,
        multi_az_enabled=True,
        at_rest_encryption_enabled="true",
        transit_encryption_enabled=True,
        kms_key_id=key.arn,
        port=port,
        subnet_group_name=group.name,
        security_group_ids=[security_group],
        snapshot_retention_limit=snapshot_days,
    )


def _add_parameters(
    stack: FleetStack, name: str, description: str, reserve_percent: int
) -> aws.elasticache_parameter_group.ElasticacheParameterGroup:
    parameter_group = aws.elasticache_parameter_group
    reserve = parameter_group.ElasticacheParameterGroupParameter(
        name="reserved-memory-percent", value=str(reserve_percent)
    )
    return parameter_group.ElasticacheParameterGroup(
        stack,
        "cache-parameters",
        name=name,
        family=FAMILY,
        description=description,
        parameter=[reserve],
    )


def list_node_dimensions(name: str, nodes: int) -> list[tuple[str, str]]:
    """Return CloudWatch's dimension of each node, and its value, as ElastiCache names a replication group's nodes."""
    return [("CacheClusterId", f"{name}-{number:03}") for number in range(1, nodes + 1)]
