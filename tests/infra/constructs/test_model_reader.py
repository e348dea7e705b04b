"""What engines may read: on EKS the fleet's own model bucket and those that it names, on ECS what is theirs of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from infra.constructs import model_reader, task_roles
from infra.constructs.fleet_stack import Account
from llm_serving.fleet.model import Fleet, TierBucket

FLEET = {
    "name": "demo",
    "region": "us-west-2",
    "zones": ["us-west-2a", "us-west-2b"],
    "pools": {"general": {"types": "g6e.2xlarge", "size": "0..2"}},
}
KEY = "arn:aws:kms:us-west-2:210987654321:key/12345678-1234-1234-1234-123456789012"


def _build_stack(settings: dict[str, Any]) -> Any:
    account = Account("123456789012", "123456789012", "caller", "aws", "amazonaws.com", "us-west-2")
    return SimpleNamespace(account=account, cluster_name="demo", fleet=Fleet.model_validate(settings))


def test_engines_write_to_buckets_of_cached_prompts_alone() -> None:
    rows = [TierBucket(bucket="ours-kv"), TierBucket(bucket="their-kv", key=KEY)]
    listing, keeping, encrypting = model_reader.build_tier_statements(_build_stack(FLEET), rows)
    assert listing["Resource"] == ["arn:aws:s3:::ours-kv", "arn:aws:s3:::their-kv"]
    assert "s3:PutObject" in keeping["Action"]
    assert keeping["Resource"] == ["arn:aws:s3:::ours-kv/*", "arn:aws:s3:::their-kv/*"]
    assert (encrypting["Action"], encrypting["Resource"]) == (["kms:Decrypt", "kms:GenerateDataKey"], [KEY])
    assert model_reader.build_tier_statements(_build_stack(FLEET), []) == []


@pytest.mark.parametrize(
    ("model_buckets", "further_arns", "keys"),
    [
        ([], [], []),
        ([{"bucket": "ours"}], ["arn:aws:s3:::ours"], []),
        ([{"bucket": "ours"}, {"bucket": "theirs", "key": KEY}], ["arn:aws:s3:::ours", "arn:aws:s3:::theirs"], [KEY]),
    ],
)
def test_engines_read_the_buckets_that_the_fleet_names_and_no_other(
    model_buckets: list[dict[str, str]], further_arns: list[str], keys: list[str]
) -> None:
    statements: list[Any] = model_reader.build_statements(
        _build_stack({**FLEET, "storage": {"model_buckets": model_buckets}})
    )
    arns = ["arn:aws:s3:::demo-models-123456789012-us-west-2", *further_arns]
    by_action = {statement["Action"][0]: statement["Resource"] for statement in statements[:2]}
    assert by_action == {"s3:ListBucket": arns, "s3:GetObject": [f"{arn}/*" for arn in arns]}
    assert [statement["Resource"] for statement in statements[3:]] == [keys] * bool(keys)


@pytest.mark.parametrize(("count", "whole"), [(2, False), (200, True)])
def test_what_engines_on_ecs_read_fits_a_role_however_many_adapters_they_have(count: int, whole: bool) -> None:
    stack = _build_stack(FLEET)
    bucket = "demo-models-123456789012-us-west-2"
    reads = [f"s3://{bucket}/adapters/of-a-team/number-{number}/" for number in range(count)]
    statements = task_roles.build_engine_statements(stack, reads, [], KEY)
    assert len(json.dumps(statements)) < 10_240
    objects = f"arn:aws:s3:::{bucket}" + ("/*" if whole else "/adapters/of-a-team/number-1/*")
    assert any(objects in statement["Resource"] for statement in statements), statements
