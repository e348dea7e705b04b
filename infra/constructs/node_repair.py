"""The cap of EKS's node repair: a function that sets it, called by Terraform for each node group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs.account import Account
from infra.constructs.function import add_function
from infra.constructs.policy import Statement
from llm_serving.fleet import names
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet

NAME = "node-repair"

SMALL_GROUP_NODES = 9
"""Below so many nodes a fifth is less than two: then one broken node is repaired, and two are not the nodes' fault."""

_TIMEOUT_S = 90


def build_repair_config(group: Group) -> dict[str, object]:
    """EKS's NodeRepairConfig for a group: one node at a time, and none where more than a fifth are broken."""
    threshold = (
        {"maxUnhealthyNodeThresholdCount": 1}
        if group.max_size < SMALL_GROUP_NODES
        else {"maxUnhealthyNodeThresholdPercentage": 20}
    )
    return {"enabled": True, **threshold, "maxParallelNodesRepairedCount": 1}


def add_repair_caps(
    stack: TerraformStack,
    fleet: Fleet,
    node_groups: Sequence[tuple[Group, Any]],
    *,
    key: aws.kms_key.KmsKey,
    account: Account,
) -> None:
    """Add the function, and a call of it for each group with its node group's resource."""
    cluster = names.format_cluster_name(fleet)
    repair_function = add_function(
        stack,
        NAME,
        fleet=fleet,
        account=account,
        key=key,
        source="node_repair",
        description="Caps the repair of nodes",
        statements=_build_statements(cluster, account),
        timeout_s=_TIMEOUT_S,
    )
    for group, node_group in node_groups:
        aws.lambda_invocation.LambdaInvocation(
            stack,
            f"{group.name}-repair",
            function_name=repair_function.function_name,
            input=json.dumps({"cluster": cluster, "group": group.name, "repair": build_repair_config(group)}),
            # A group that is made anew has a new one.
            triggers={"group": node_group.arn},
        )


def _build_statements(cluster: str, account: Account) -> list[Statement]:
    return [
        {
            "Sid": "NodeGroups",
            "Effect": "Allow",
            "Action": ["eks:DescribeNodegroup", "eks:UpdateNodegroupConfig"],
            "Resource": account.build_arn("eks", f"nodegroup/{cluster}/*"),
        }
    ]
