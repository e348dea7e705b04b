"""Settings of node groups that Terraform's provider lacks: a function that applies them, called for each node group.

The provider has them from 6.26 on (`update_config.update_strategy`, `node_repair_config`'s thresholds). Bindings of
provider 6 are CDK Terrain's (cdktn), from 6.28 on; the provider's binary comes from Terraform's registry, and neither
PyPI nor npm has it. Rehearsals and tests run 5.100, from a mirror on the machine, and what is applied is what was
rehearsed: so the settings go through EKS's API.

A pool's new size goes the same way: Terraform cannot say it without taking back what an autoscaler did. And each hour
the function has Auto Scaling try again where it gave a node group up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from infra.bindings import aws
from infra.constructs import alarm, iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.function import add_function, add_trigger
from infra.functions.gpu_repair import CONDITIONS, XIDS, Rule, Verdict
from llm_serving.fleet.groups import RESERVED_OPTIONS, Group

NAME = "node-groups"

SMALL_GROUP_NODES = 9
"""Below so many nodes a fifth is less than two: then one broken node is repaired, and two are not the nodes' fault."""

_TIMEOUT_S = 90


def build_config(group: Group) -> dict[str, object]:
    """Parameters of EKS's UpdateNodegroupConfig for a group."""
    config: dict[str, object] = {"nodeRepairConfig": _build_repair_config(group)}
    if _is_full(group):
        config["updateConfig"] = {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}
    return config


def _build_repair_config(group: Group) -> dict[str, object]:
    """One node at a time, and none where more than a fifth are broken."""
    threshold = (
        {"maxUnhealthyNodeThresholdCount": 1}
        if group.max_size < SMALL_GROUP_NODES
        else {"maxUnhealthyNodeThresholdPercentage": 20}
    )
    overrides = {"nodeRepairConfigOverrides": repairs} if (repairs := list(_list_overrides(group))) else {}
    return {"enabled": True, **threshold, "maxParallelNodesRepairedCount": 1, **overrides}


def _list_overrides(group: Group) -> Iterator[dict[str, object]]:
    """Replace at once what neither a reset nor a reboot mends; EKS waits ten minutes before it repairs anything.

    Source: EKS API reference, NodeRepairConfigOverrides; the agent's pkg/reasons/reasons.go, as in `gpu_repair`.
    """
    for reason, rule in _list_reasons(group):
        if rule.verdict == Verdict.REPLACE:
            yield {
                "nodeMonitoringCondition": "AcceleratedHardwareReady",
                "nodeUnhealthyReason": reason,
                "minRepairWaitTimeMins": 1,
                "repairAction": "Replace",
            }


def _list_reasons(group: Group) -> Iterator[tuple[str, Rule]]:
    """Yield what EKS's agent reports of the group's accelerators, by its names.

    Without the number of GPUs, which may be wrong while the driver loads.
    """
    if group.variant == "nvidia":
        yield from ((f"NvidiaXID{xid}Error", rule) for xid, rule in XIDS.items())
    if group.variant == "neuron":
        yield from ((reason, rule) for reason, rule in CONDITIONS.items() if reason.startswith("Neuron"))


def _is_full(group: Group) -> bool:
    """Return whether EC2 may have no further machine for it: then an update ends a node before it starts another."""
    always_full = group.accelerators > 0 and group.min_size == group.max_size
    return always_full or group.purchase_option in RESERVED_OPTIONS


def _build_event(cluster: str, group: Group) -> dict[str, object]:
    return {
        "cluster": cluster,
        "group": group.name,
        "config": build_config(group),
        "scaling": {"minSize": group.min_size, "maxSize": max(1, group.max_size)},
        "block": group.reservation if group.purchase_option == "capacity-block" else None,
    }


def apply_settings(stack: FleetStack, node_groups: Sequence[tuple[Group, Any]], *, key: aws.kms_key.KmsKey) -> None:
    """Add the function, a call of it for each group with its node group's resource, and one each hour."""
    cluster = stack.cluster_name
    has_blocks = any(group.purchase_option == "capacity-block" for group, _ in node_groups)
    policies = ["node-group-settings", *(("capacity-blocks", "capacity-block-starts") if has_blocks else ())]
    settings_function = add_function(
        stack,
        NAME,
        key=key,
        source="node_group",
        description="Applies settings of node groups",
        statements=[statement for name in policies for statement in iam.read_statements(stack, name)],
        timeout_s=_TIMEOUT_S,
        models=("eks",),
    )
    description = "Each hour: node groups that Auto Scaling gave up"
    rule = alarm.add_rule(stack, f"{NAME}-hour", description, schedule="rate(1 hour)")
    add_trigger(stack, settings_function, rule, input=json.dumps({"cluster": cluster}))
    for group, node_group in node_groups:
        aws.lambda_invocation.LambdaInvocation(
            stack,
            f"{group.name}-settings",
            function_name=settings_function.function_name,
            input=json.dumps(_build_event(cluster, group)),
            # A group that is made anew has none of them.
            triggers={"group": node_group.arn},
        )
