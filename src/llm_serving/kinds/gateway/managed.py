"""What AWS says of a gateway's database and cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llm_serving.kinds.gateway.stack import GatewayStack

_READY = "available"


def list_rows(stack: GatewayStack, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return the rows of the database and of the cache; none of what is not deployed.

    Args:
        connect: returns a client of a service.
    """
    return [*_list_databases(stack, connect("rds")), *_list_caches(stack, connect("elasticache"))]


def _list_databases(stack: GatewayStack, client: Any) -> Iterator[dict[str, Any]]:
    try:
        found = client.describe_db_instances(DBInstanceIdentifier=stack.name)["DBInstances"]
    except client.exceptions.DBInstanceNotFoundFault:
        return
    for row in found:
        yield _build_row(stack.name, "database", row["DBInstanceStatus"], row["DBInstanceClass"])


def _list_caches(stack: GatewayStack, client: Any) -> Iterator[dict[str, Any]]:
    try:
        found = client.describe_replication_groups(ReplicationGroupId=stack.name)["ReplicationGroups"]
    except client.exceptions.ReplicationGroupNotFoundFault:
        return
    for row in found:
        yield _build_row(stack.name, "cache", row["Status"], stack.cache_type)


def _build_row(name: str, role: str, status: str, machine: str) -> dict[str, Any]:
    state = "ready" if status == _READY else status
    return {"name": name, "role": role, "state": state, "restarts": 0, "machine": machine}
