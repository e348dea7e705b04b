"""A cache: ElastiCache for Valkey in two zones."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack

VERSION = "8.0"


def add_cache(
    stack: TerraformStack,
    *,
    name: str,
    description: str,
    node_type: str,
    nodes: int,
    port: int,
    subnets: Sequence[str],
    security_group: str,
    key: aws.kms_key.KmsKey,
    snapshot_days: int | None = None,
) -> aws.elasticache_replication_group.ElasticacheReplicationGroup:
    """Add a cache whose second node, in another zone, takes over; it is reached over TLS alone."""
    group = aws.elasticache_subnet_group.ElasticacheSubnetGroup(
        stack, "cache-subnets", name=name, subnet_ids=list(subnets)
    )
    return aws.elasticache_replication_group.ElasticacheReplicationGroup(
        stack,
        "cache",
        replication_group_id=name,
        description=description,
        engine="valkey",
        engine_version=VERSION,
        node_type=node_type,
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
