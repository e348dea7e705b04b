"""`status` of a gateway on AWS: its database and its cache, as AWS has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from llm_serving.kinds.gateway import managed
from llm_serving.kinds.gateway.stack import GatewayStack

STACK = GatewayStack(
    orchestrator="ecs", name="cotton-edge", place="/cotton/gateway/edge", database_type="db.t4g.medium",
    database_gib=20, backup_days=7, cache_type="cache.t4g.small",
)  # fmt: skip


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "mocked")
    with mock_aws():
        yield lambda service: boto3.client(service, region_name="us-west-2")


def test_a_gateway_that_is_not_deployed_has_no_rows(connect: Any) -> None:
    assert managed.list_rows(STACK, connect) == []


def test_the_database_and_the_cache_have_a_row_each(connect: Any) -> None:
    connect("rds").create_db_instance(
        DBInstanceIdentifier=STACK.name, DBInstanceClass=STACK.database_type, Engine="postgres", AllocatedStorage=20
    )
    connect("elasticache").create_replication_group(
        ReplicationGroupId=STACK.name,
        ReplicationGroupDescription="counts",
        Engine="valkey",
        CacheNodeType=STACK.cache_type,
    )
    assert [(row["role"], row["state"], row["machine"]) for row in managed.list_rows(STACK, connect)] == [
        ("database", "ready", "db.t4g.medium"),
        ("cache", "ready", "cache.t4g.small"),
    ]
