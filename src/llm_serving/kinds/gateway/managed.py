"""What AWS says of a gateway's database and cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_serving.aws import session
from llm_serving.kinds.gateway.stack import GatewayStack


def list_rows(stack: GatewayStack, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return the rows of the database and of the cache; none of what is not deployed.

    Args:
        connect: returns a client of a service.
    """
    servers: list[tuple[str, str, str]] = []
    with session.ignore_errors("DBInstanceNotFound"):
        databases = connect("rds").describe_db_instances(DBInstanceIdentifier=stack.name)["DBInstances"]
        servers += [("database", row["DBInstanceStatus"], row["DBInstanceClass"]) for row in databases]
    with session.ignore_errors("ReplicationGroupNotFound"):
        caches = connect("elasticache").describe_replication_groups(ReplicationGroupId=stack.name)["ReplicationGroups"]
        servers += [("cache", row["Status"], stack.cache_type) for row in caches]
    states = {"available": "ready"}
    return [
        {"name": stack.name, "role": role, "state": states.get(status, status), "restarts": 0, "machine": machine}
        for role, status, machine in servers
    ]
