from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from infra.constructs import endpoint_policy
from infra.constructs.fleet_stack import Account

BUCKETS: dict[str, str] = yaml.safe_load((Path(__file__).parent / "registry_buckets.yaml").read_text())


@pytest.mark.parametrize("region", BUCKETS)
def test_layers_of_registry_k8s_io_pass_the_s3_endpoint_in_every_region(region: str) -> None:
    stack: Any = SimpleNamespace(
        account=Account("123456789012", "", "", "aws", "amazonaws.com", region),
        cluster_name="demo",
        fleet=SimpleNamespace(name="demo"),
    )
    policy = json.loads(endpoint_policy.build_s3_policy(stack, "account") or "")
    [public] = [statement for statement in policy["Statement"] if statement["Sid"] == "Public"]
    assert f"arn:aws:s3:::{BUCKETS[region]}/*" in public["Resource"]
