"""Gives a managed node group what Terraform's AWS provider 5.100 has no field for, and the size of its pool.

- Caps of node repair: at how many broken nodes it stops, how many at a time (hashicorp/terraform-provider-aws#44603).
- The update strategy MINIMAL, which replaces a node where no capacity is left for another one beside it. Provider 6.26
  knows both; see `infra.constructs.node_group_settings` for why this is a function.
- The least and most nodes. An autoscaler moves how many there are, so Terraform must leave that alone; and EKS takes no
  least above it, nor a most below (terraform-aws-modules/terraform-aws-eks#3306, with this provider).
- Starts again. Auto Scaling gives up a group for which no start succeeds in a day, as of accelerators that nobody has:
  it suspends the group's processes, and neither EKS nor an autoscaler resumes them. What a person suspended stays so.
- A Capacity Block has machines from its start on. Until then the group has none; a scheduled action of its Auto Scaling
  group starts them. EKS itself drains and ends them 40 minutes before the block's end.

Terraform calls it, once for each node group and its settings, and a rule each hour, with the cluster alone. The archive
brings EKS's API model along, since the runtime's own boto3 may be older than a setting.

Event: {"cluster": NAME, "group": NAME, "config": parameters of EKS's UpdateNodegroupConfig,
        "scaling": {"minSize": LEAST, "maxSize": MOST}, "block": ID of a Capacity Block or null}
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import botocore.session

MODELS = Path(__file__).with_name("models")

END_MARGIN = datetime.timedelta(minutes=40)
"""EKS scales the group to zero this long before the block's end. Source: EKS user guide, "Create a managed node group
with Capacity Blocks for ML", 2026-11."""

_UPCOMING_STATES = ("scheduled", "pending", "assessing", "payment-pending", "delayed")


BY_PERSON = "User suspended"
"""How the reason begins of processes that somebody suspended. Sources: as of `ecs_fallback`."""


class BlockEnded(Exception):
    """The block starts no machine any more."""


def handler(event: Mapping[str, Any], _context: Any = None) -> dict[str, Any]:
    """Apply the settings, or resume starts; returns what was changed. Called again it changes nothing."""
    if "group" not in event:
        return {"resumed": dict(_resume_starts(event["cluster"]))}
    eks = _connect("eks")
    identifiers = {"clusterName": event["cluster"], "nodegroupName": event["group"]}
    node_group = eks.describe_nodegroup(**identifiers)["nodegroup"]
    config, block = dict(event["config"]), event.get("block")
    start = _find_start(block) if block else None
    if not start:
        config["scalingConfig"] = _fit(event["scaling"], node_group["scalingConfig"]["desiredSize"])
    changes = {name: value for name, value in config.items() if not _includes(node_group.get(name, {}), value)}
    if changes:
        eks.update_nodegroup_config(**identifiers, **changes)
        eks.get_waiter("nodegroup_active").wait(**identifiers, WaiterConfig={"Delay": 5, "MaxAttempts": 10})
    if start:
        _schedule(node_group, start, event["scaling"])
    return {"group": event["group"], "changed": sorted(changes), "starts": start.isoformat() if start else None}


def _resume_starts(cluster: str) -> Iterator[tuple[str, list[str]]]:
    """Have Auto Scaling try again; yields the name of each group that it gave up, and its processes."""
    autoscaling, of_cluster = _connect("autoscaling"), [{"Name": "tag:eks:cluster-name", "Values": [cluster]}]
    for page in autoscaling.get_paginator("describe_auto_scaling_groups").paginate(Filters=of_cluster):
        for described in page["AutoScalingGroups"]:
            given_up = [
                process["ProcessName"]
                for process in described["SuspendedProcesses"]
                if not process["SuspensionReason"].startswith(BY_PERSON)
            ]
            if given_up:
                group = described["AutoScalingGroupName"]
                autoscaling.resume_processes(AutoScalingGroupName=group, ScalingProcesses=given_up)
                print(json.dumps({"group": group, "resumed": given_up}))
                yield group, given_up


def _connect(service: str) -> Any:
    session = botocore.session.get_session()
    session.set_config_variable("data_path", str(MODELS))
    return boto3.Session(botocore_session=session).client(service)


def _includes(current: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return expected.items() <= current.items()


def _fit(bounds: Mapping[str, int], desired: int) -> dict[str, int]:
    """Return the bounds with as many nodes as there are, or as few more or less as they need."""
    return {**bounds, "desiredSize": min(max(desired, bounds["minSize"]), bounds["maxSize"])}


def _find_start(block_id: str) -> datetime.datetime | None:
    """When the block starts; None where it has started.

    Raises:
        BlockEnded: it has ended, or is about to.
    """
    (block,) = _connect("ec2").describe_capacity_reservations(CapacityReservationIds=[block_id])["CapacityReservations"]
    state, end = block["State"], block.get("EndDate")
    if state in _UPCOMING_STATES:
        start: datetime.datetime = block["StartDate"]
        return start
    if state != "active":
        raise BlockEnded(
            f"The Capacity Block {block_id} is {state}. Fix: write another block's id, in `buy` of the pool"
        )
    if end and end - datetime.datetime.now(datetime.UTC) <= END_MARGIN:
        raise BlockEnded(f"The Capacity Block {block_id} ends at {end}, and its last 40 minutes start no node")
    return None


def _schedule(node_group: Mapping[str, Any], start: datetime.datetime, scaling: Mapping[str, int]) -> None:
    """Have the node group's Auto Scaling group start its machines at the block's start."""
    (auto_scaling_group,) = node_group["resources"]["autoScalingGroups"]
    _connect("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName=auto_scaling_group["name"],
        ScheduledActionName="capacity-block-start",
        StartTime=start,
        MinSize=scaling["minSize"],
        MaxSize=scaling["maxSize"],
        DesiredCapacity=scaling["minSize"],
    )
