"""Replaces instances of an ECS cluster whose GPUs fail or whose agent is lost. ECS does so for Managed Instances only.
It starts those of a Capacity Block no sooner than the block, and drains them before its end.

The watcher on each instance is ECS's own agent: on the AMIs with NVIDIA's driver it reads DCGM, and ECS then reports
the instance's check ACCELERATED_COMPUTE as IMPAIRED, with the XID as its reason. An agent that is itself lost, as where
Docker hangs, starts and stops no task, and EC2's own checks see nothing of it. XIDS and CONDITIONS say what a fault
asks for, here and for EKS's node repair (`infra.constructs.node_group_settings`). Nothing on ECS resets a GPU or
reboots an instance, so whatever asks for one of them is replaced: the instance is drained, then reported unhealthy to
its Auto Scaling group, which ends it once it has no task left (managed draining) and starts another.

Each call reads the whole cluster anew and finishes what an earlier one began. An event may come ten times, late or not
at all, and a call may die at any line. Calls come one after the other, from a FIFO queue, so no two count at once.

Of a pool or a zone, no more than `compute_limit` instances drain at a time, for whatever reason they do. A storm, in
which many fail within minutes, is not the GPUs' fault: nothing is replaced from then on, until a person takes the
cluster's tag STOP_TAG away.

A Capacity Block has instances from its start on. Before it every start fails, and Auto Scaling gives up a group for
which none succeeds in a day (an administrative suspension): so it is told to wait. EC2 ends the instances itself, from
30 minutes before the block's end on, and neither ECS nor Auto Scaling drains them. So END_MARGIN before it, as EKS
does, none starts any more, and they drain. Their tasks stop at once: nothing else has room for them, for a pool that a
block pays for buys nothing beside it.

Records of the queue have the body {"cluster": NAME, ...}, and for a fleet with Capacity Blocks
"blocks": [{"id": ID, "pool": NAME, "group": NAME of the Auto Scaling group}, ...]. Each decision is a line of JSON in
the log; the metric `unrepaired`, which is logged here, has an alarm.

Sources, read 2026-11-26: ECS developer guide, "Amazon ECS container instance health change events" and "GPU auto repair
for Amazon ECS managed instances"; EC2 Auto Scaling user guide, "Suspend and resume Amazon EC2 Auto Scaling processes";
aws/amazon-ecs-agent#5070, which brings the check to instances of one's own.
"""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple


class Verdict(IntEnum):
    """What a fault asks for, the least first."""

    IGNORE = 0
    WATCH = 1
    RESET = 2
    REBOOT = 3
    REPLACE = 4


class Rule(NamedTuple):
    """What one sign means, and who says so."""

    verdict: Verdict
    meaning: str
    source: str


_XID = "aws/eks-node-monitoring-agent at 51af549, monitors/nvidia/dcgm/dcgm_policies.go"
_REASON = "aws/eks-node-monitoring-agent at 51af549, pkg/reasons/reasons.go"

XIDS: Mapping[int, Rule] = MappingProxyType(
    {
        46: Rule(Verdict.RESET, "GPU stopped processing: RESET_GPU", _XID),
        48: Rule(Verdict.RESET, "double-bit ECC error: WORKFLOW_XID_48", _XID),
        54: Rule(Verdict.REPLACE, "auxiliary power is not connected: CHECK_MECHANICALS", _XID),
        62: Rule(Verdict.RESET, "micro-controller halt: RESET_GPU", _XID),
        63: Rule(Verdict.REPLACE, "memory row remapped: NVIDIA ignores it, EC2 replaces the instance", _XID),
        64: Rule(Verdict.RESET, "memory row not remapped: RESET_GPU", _XID),
        74: Rule(Verdict.RESET, "NVLink error: WORKFLOW_NVLINK_ERR", _XID),
        79: Rule(Verdict.REPLACE, "GPU has fallen off the bus: RESTART_BM, which no instance can do", _XID),
        95: Rule(Verdict.RESET, "uncontained memory error: RESET_GPU", _XID),
        109: Rule(Verdict.RESET, "context switch timeout: RESET_GPU", _XID),
        110: Rule(Verdict.RESET, "security fault: RESET_GPU", _XID),
        119: Rule(Verdict.RESET, "GSP RPC timeout: RESET_GPU", _XID),
        120: Rule(Verdict.RESET, "GSP error: RESET_GPU", _XID),
        136: Rule(Verdict.RESET, "link training failed: RESET_GPU", _XID),
        140: Rule(Verdict.RESET, "unrecoverable ECC error: RESET_GPU", _XID),
        142: Rule(Verdict.REPLACE, "NVENC3 error: CONTACT_SUPPORT", _XID),
        143: Rule(Verdict.RESET, "GPU initialization error: RESET_GPU", _XID),
        151: Rule(Verdict.REBOOT, "key rotation error: RESTART_VM", _XID),
        155: Rule(Verdict.RESET, "NVLink error of software: RESET_GPU", _XID),
        156: Rule(Verdict.RESET, "resource retirement: RESET_GPU", _XID),
        158: Rule(Verdict.RESET, "GPU fatal timeout: RESET_GPU", _XID),
    }
)
"""Faults of the hardware; any other number, such as 13, 31, 43 and 45, is an application's."""

OTHER_XID = Rule(Verdict.WATCH, "an application's fault", _XID)

AGENT_LIMIT = datetime.timedelta(minutes=15)
"""Time after which a disconnected agent is a fault: it disconnects several times an hour, for minutes at the most.

Source: ECS developer guide, "Amazon ECS container instance state change events", 2026-11.
"""

CONDITIONS: Mapping[str, Rule] = MappingProxyType(
    {
        "NeuronSRAMUncorrectableError": Rule(Verdict.REPLACE, "parity error of on-chip SRAM", _REASON),
        "NeuronNCUncorrectableError": Rule(Verdict.REPLACE, "uncorrectable memory error of a NeuronCore", _REASON),
        "NeuronHBMUncorrectableError": Rule(Verdict.REPLACE, "uncorrectable error of HBM", _REASON),
        "NeuronDMAError": Rule(Verdict.REPLACE, "unrecoverable error of a DMA engine", _REASON),
        "ACCELERATED_COMPUTE": Rule(
            Verdict.REPLACE,
            "DCGM's health check fails, with no XID",
            "aws/amazon-ecs-agent#5088: a failed DCGM_HEALTH_RESULT has no reason",
        ),
        "agentConnected": Rule(
            Verdict.REPLACE,
            f"ECS's agent has been disconnected for {AGENT_LIMIT.seconds // 60} minutes",
            'AWS re:Post, "How do I troubleshoot a disconnected Amazon ECS agent?"',
        ),
    }
)
"""What the agents on the instances report beside XIDs: of Neuron, EKS's by its reasons; and ECS's check and field.

Of NVIDIA's GPUs EKS's agent has further reasons, of which EKS decides.
"""


@dataclass(frozen=True)
class Signals:
    """What is known of an instance's accelerators."""

    xids: tuple[int, ...] = ()

    conditions: tuple[str, ...] = ()
    """Keys of CONDITIONS."""


class Decision(NamedTuple):
    """What to do, and the meanings of the signs that say so."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


def decide(signals: Signals) -> Decision:
    """Decide what an instance needs: the worst that a sign asks for."""
    rules = list(_list_rules(signals))
    verdict = max((rule.verdict for rule in rules), default=Verdict.IGNORE)
    return Decision(verdict, tuple(dict.fromkeys(rule.meaning for rule in rules if rule.verdict == verdict)))


def _list_rules(signals: Signals) -> Iterator[Rule]:
    for xid in signals.xids:
        yield XIDS.get(xid, OTHER_XID)
    for condition in signals.conditions:
        yield CONDITIONS[condition]


MAX_COUNT, MAX_SHARE = 20, 0.05
"""Most instances of a pool or a zone that drain at a time: the lesser of both, and one in any case.

ECS itself drains at most 20% of its Managed Instances, and one where there are fewer than nine.
"""

STORM_SHARE, STORM_COUNT, STORM_MINUTES = 0.2, 3, 10
"""A storm: more than this share of the cluster, and so many instances at least, fail within so many minutes.

EKS's node repair stops where more than a fifth of a group is broken, by our setting.
"""

DRAIN_LIMIT = datetime.timedelta(minutes=15)
"""Time after which the tasks that are left are stopped: a service may wait for a replacement, which has no instance
before this one ends."""

END_LIMIT = 2 * DRAIN_LIMIT
"""Time after which it ends with the tasks that no signal stops: a process that waits for a dead GPU takes none.

Managed draining would hold the instance for 48 hours, and with it the limit of its pool and zone; and so it does with a
broken one that a refresh ends. Source: AWS, "Easier EC2 instance maintenance with managed draining for Amazon ECS
capacity providers", community.aws, 2024-01-26.
"""

MAX_DRAINED = 10
"""Container instances of one call. Source: ECS API reference, UpdateContainerInstancesState, 2026-11."""

DRAIN_HOOK = "ecs-managed-draining-termination-hook"
"""By which ECS holds an instance of a group while it drains. Source: ECS developer guide, "Turn on managed instance
draining", 2026-11."""

END_MARGIN = datetime.timedelta(minutes=40)
"""How long before its end a Capacity Block's instances are drained. EC2 announces the end then. Sources: EC2 user
guide, "Monitor Capacity Blocks using EventBridge"; EKS user guide, "Create a managed node group with Capacity Blocks
for ML"; 2026-11."""

STOP_TAG = "gpu-repair"
"""Tag of the cluster; with the value `stopped` nothing is replaced. An Auto Scaling group has it, of any value, while
this function and no person suspends its starts."""

DRAIN_ATTRIBUTE = "gpu-repair-drains-since"
"""Attribute of a container instance: when this function drained it, or saw a broken one that its group ends, in seconds
since 1970."""

LOST_ATTRIBUTE = "gpu-repair-agent-lost-since"
"""Attribute of a container instance: when its agent was seen disconnected, in seconds since 1970; 0 once it is back."""

METRIC_NAMESPACE, METRIC = "Fleet/ECS", "unrepaired"
"""CloudWatch's namespace and name of the number of instances that wait to be replaced."""


@dataclass(frozen=True)
class Instance:
    """An instance of the cluster."""

    arn: str
    instance_id: str
    pool: str
    zone: str
    draining: bool = False
    signals: Signals = Signals()
    failed_at: datetime.datetime | None = None
    """When it failed; None for one that is well."""

    drains_since: datetime.datetime | None = None
    """When this function drained it."""

    agent_connected: bool = True
    agent_lost_since: datetime.datetime | None = None
    """When this function saw its agent disconnected."""

    @property
    def places(self) -> tuple[str, str]:
        """What the limits count by."""
        return f"pool {self.pool}", f"zone {self.zone}"


class Choice(NamedTuple):
    """What is done with an instance that needs to be replaced."""

    instance: Instance
    hold: str = ""
    """What it waits for; empty where it is replaced now."""


def choose(instances: Sequence[Instance], *, stopped: bool) -> list[Choice]:
    """Choose what is replaced now, the longest broken first: never more of a pool or a zone than its limit."""
    sizes = Counter(place for instance in instances for place in instance.places)
    draining = Counter(place for instance in instances if instance.draining for place in instance.places)
    limits = {place: compute_limit(size) for place, size in sizes.items()}
    choices = []
    for instance in sorted(filter(_is_broken, instances), key=lambda one: (str(one.failed_at), one.instance_id)):
        if instance.draining:
            continue
        full = next((place for place in instance.places if draining[place] >= limits[place]), None)
        if stopped:
            choices.append(Choice(instance, f"the cluster has the tag {STOP_TAG}=stopped"))
        elif full:
            choices.append(Choice(instance, f"{draining[full]} of at most {limits[full]} of {full} are draining"))
        else:
            draining.update(instance.places)
            choices.append(Choice(instance))
    return choices


def compute_limit(size: int) -> int:
    """Return how many instances of a pool or a zone of this size may drain at a time."""
    return max(1, min(MAX_COUNT, int(size * MAX_SHARE)))


def is_storm(instances: Sequence[Instance], now: datetime.datetime) -> bool:
    """Whether so many instances have just failed that the GPUs are not to blame."""
    start = now - datetime.timedelta(minutes=STORM_MINUTES)
    failed = sum(one.failed_at is not None and one.failed_at > start for one in filter(_is_broken, instances))
    return failed >= STORM_COUNT and failed > STORM_SHARE * len(instances)


def _is_broken(instance: Instance) -> bool:
    return instance.failed_at is not None and decide(instance.signals).verdict >= Verdict.RESET


def handler(event: Mapping[str, Any], _context: Any = None) -> list[dict[str, Any]]:
    """Replace what may be replaced; returns the lines of the log."""
    import boto3  # what describes stacks reads the tables above, and asks AWS nothing

    body = json.loads(event["Records"][0]["body"])
    cluster, blocks = body["cluster"], body.get("blocks", ())
    ecs = boto3.client("ecs")
    autoscaling = boto3.client("autoscaling")
    now = datetime.datetime.now(datetime.UTC)
    listed = list(_list_instances(ecs, cluster))
    ending_pools: set[str] = set()
    if blocks:
        ec2 = boto3.client("ec2")
        ending_pools = _watch_blocks(ec2, autoscaling, blocks, now)
    _clear(ecs, cluster, [instance for instance in listed if instance.pool in ending_pools])
    remaining = [instance for instance in listed if instance.pool not in ending_pools]
    instances = [_watch_agent(ecs, cluster, instance, now) for instance in remaining]
    stopped = _is_stopped(ecs, cluster, instances, now)
    choices = choose(instances, stopped=stopped)
    chosen = [choice.instance for choice in choices if not choice.hold]
    for instance in chosen:
        _drain(ecs, cluster, instance, now)
        _end_instance(autoscaling, instance)
    for instance in instances:
        is_unmarked = instance.draining and not instance.drains_since and _is_broken(instance)
        if is_unmarked and _list_held(autoscaling, instance):
            _put_time(ecs, cluster, instance, DRAIN_ATTRIBUTE, now)
        if instance.draining and instance.drains_since:
            _end_instance(autoscaling, instance)
            if now - instance.drains_since > DRAIN_LIMIT:
                _stop_tasks(ecs, cluster, instance, f"{instance.instance_id} is replaced: it is broken")
            if now - instance.drains_since > END_LIMIT:
                _release(autoscaling, instance)
    lines = [_build_line(cluster, choice) for choice in choices]
    for line in lines:
        print(json.dumps(line))
    _log_metric(cluster, sum(bool(choice.hold) for choice in choices), now)
    return lines


def _is_stopped(ecs: Any, cluster: str, instances: Sequence[Instance], now: datetime.datetime) -> bool:
    """Whether nothing may be replaced; a storm sets the tag, and only a person takes it away."""
    (described,) = ecs.describe_clusters(clusters=[cluster], include=["TAGS"])["clusters"]
    if {"key": STOP_TAG, "value": "stopped"} in described.get("tags", ()):
        return True
    if not is_storm(instances, now):
        return False
    ecs.tag_resource(resourceArn=described["clusterArn"], tags=[{"key": STOP_TAG, "value": "stopped"}])
    print(json.dumps({"cluster": cluster, "action": f"stop: more than {STORM_SHARE:.0%} failed at once"}))
    return True


def _list_instances(ecs: Any, cluster: str) -> Iterator[Instance]:
    pages = ecs.get_paginator("list_container_instances").paginate(cluster=cluster)
    arns = [arn for page in pages for arn in page["containerInstanceArns"]]
    for first in range(0, len(arns), 100):
        described = ecs.describe_container_instances(
            cluster=cluster, containerInstances=arns[first : first + 100], include=["CONTAINER_INSTANCE_HEALTH"]
        )
        yield from map(_read_instance, described["containerInstances"])


def _read_instance(described: Mapping[str, Any]) -> Instance:
    attributes = {attribute["name"]: attribute.get("value", "") for attribute in described["attributes"]}
    signals, failed_at = _read_health(described.get("healthStatus", {}))
    return Instance(
        arn=described["containerInstanceArn"],
        instance_id=described["ec2InstanceId"],
        pool=attributes.get("fleet/pool", ""),
        zone=attributes.get("ecs.availability-zone", ""),
        draining=described["status"] == "DRAINING",
        signals=signals,
        failed_at=failed_at,
        drains_since=_read_time(attributes, DRAIN_ATTRIBUTE),
        agent_connected=described["agentConnected"],
        agent_lost_since=_read_time(attributes, LOST_ATTRIBUTE),
    )


def _read_time(attributes: Mapping[str, str], name: str) -> datetime.datetime | None:
    seconds = int(attributes.get(name, 0))
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC) if seconds else None


def _read_health(health: Mapping[str, Any]) -> tuple[Signals, datetime.datetime | None]:
    for check in health.get("details", ()):
        if check["type"] == "ACCELERATED_COMPUTE" and check["status"] == "IMPAIRED":
            xids = tuple(int(number) for number in re.findall(r"XID_(\d+)", check.get("statusReason") or ""))
            return Signals(xids=xids, conditions=() if xids else ("ACCELERATED_COMPUTE",)), check["lastStatusChange"]
    return Signals(), None


def _watch_agent(ecs: Any, cluster: str, instance: Instance, now: datetime.datetime) -> Instance:
    """Mark since when its agent is disconnected; returns the instance as broken once that is too long."""
    if instance.agent_connected:
        if instance.agent_lost_since:
            _put_time(ecs, cluster, instance, LOST_ATTRIBUTE, None)
        return instance
    if not instance.agent_lost_since:
        _put_time(ecs, cluster, instance, LOST_ATTRIBUTE, now)
        return instance
    failed_at = instance.agent_lost_since + AGENT_LIMIT
    if now < failed_at:
        return instance
    signals = replace(instance.signals, conditions=(*instance.signals.conditions, "agentConnected"))
    return replace(instance, signals=signals, failed_at=instance.failed_at or failed_at)


def _put_time(ecs: Any, cluster: str, instance: Instance, name: str, time: datetime.datetime | None) -> bool:
    """Set an attribute of an instance, 0 where there is no time; returns whether the instance is still there."""
    mark = {"name": name, "value": str(int(time.timestamp()) if time else 0), "targetId": instance.arn}
    try:
        ecs.put_attributes(cluster=cluster, attributes=[mark])
    except ecs.exceptions.TargetNotFoundException:
        return False
    return True


def _drain(ecs: Any, cluster: str, instance: Instance, now: datetime.datetime) -> None:
    """Place no task there any more, and have services move theirs; an instance that has gone is left out."""
    if _put_time(ecs, cluster, instance, DRAIN_ATTRIBUTE, now):
        ecs.update_container_instances_state(cluster=cluster, containerInstances=[instance.arn], status="DRAINING")


def _end_instance(autoscaling: Any, instance: Instance) -> None:
    """Have the Auto Scaling group replace an instance that was drained, whichever call drained it."""
    described = autoscaling.describe_auto_scaling_instances(InstanceIds=[instance.instance_id])
    for state in described["AutoScalingInstances"]:  # none where it has gone
        if state["LifecycleState"] == "InService" and state["HealthStatus"].upper() == "HEALTHY":
            autoscaling.set_instance_health(
                InstanceId=instance.instance_id, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
            )


def _stop_tasks(ecs: Any, cluster: str, instance: Instance, reason: str) -> None:
    for page in ecs.get_paginator("list_tasks").paginate(cluster=cluster, containerInstance=instance.arn):
        for task in page["taskArns"]:
            ecs.stop_task(cluster=cluster, task=task, reason=reason)


def _list_held(autoscaling: Any, instance: Instance) -> list[Any]:
    """Return the instance's state in its Auto Scaling group, where that ends it and managed draining holds it."""
    described = autoscaling.describe_auto_scaling_instances(InstanceIds=[instance.instance_id])
    return [state for state in described["AutoScalingInstances"] if state["LifecycleState"] == "Terminating:Wait"]


def _release(autoscaling: Any, instance: Instance) -> None:
    """Have the Auto Scaling group end an instance that managed draining holds."""
    for state in _list_held(autoscaling, instance):
        autoscaling.complete_lifecycle_action(
            AutoScalingGroupName=state["AutoScalingGroupName"],
            LifecycleHookName=DRAIN_HOOK,
            InstanceId=instance.instance_id,
            LifecycleActionResult="CONTINUE",
        )


def _watch_blocks(ec2: Any, autoscaling: Any, blocks: Sequence[Mapping[str, str]], now: datetime.datetime) -> set[str]:
    """Let groups start instances while their Capacity Block has any; returns the pools whose block is about to end.

    What EC2 does not name stays as it is. Asked for by the id of one that is long over, it would refuse to answer.
    """
    pages = ec2.get_paginator("describe_capacity_reservations").paginate()
    reservations = {row["CapacityReservationId"]: row for page in pages for row in page["CapacityReservations"]}
    ending_pools = set()
    for block in blocks:
        if row := reservations.get(block["id"]):
            is_active = row["State"] == "active"
            is_ending = is_active and "EndDate" in row and row["EndDate"] - now <= END_MARGIN
            _allow_starts(autoscaling, block["group"], allowed=is_active and not is_ending)
            if is_ending:
                ending_pools.add(block["pool"])
    return ending_pools


def _allow_starts(autoscaling: Any, group: str, *, allowed: bool) -> None:
    """Suspend a group's starts, or resume them where this function suspended them; AWS does not say who did."""
    starts = {"AutoScalingGroupName": group, "ScalingProcesses": ["Launch"]}
    mark = {"ResourceId": group, "ResourceType": "auto-scaling-group", "Key": STOP_TAG}
    for described in autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]:
        is_marked = any(tag["Key"] == STOP_TAG for tag in described["Tags"])
        is_suspended = any(process["ProcessName"] == "Launch" for process in described["SuspendedProcesses"])
        if allowed and is_marked:
            autoscaling.resume_processes(**starts)
            autoscaling.delete_tags(Tags=[mark])
        elif not allowed and not is_suspended:  # what is and has no mark, a person suspended
            autoscaling.create_or_update_tags(Tags=[{**mark, "Value": "waits", "PropagateAtLaunch": False}])
            autoscaling.suspend_processes(**starts)


def _clear(ecs: Any, cluster: str, instances: Sequence[Instance]) -> None:
    """Drain instances that EC2 is about to end, and stop their tasks."""
    active = [instance for instance in instances if not instance.draining]
    for first in range(0, len(active), MAX_DRAINED):
        arns = [instance.arn for instance in active[first : first + MAX_DRAINED]]
        ecs.update_container_instances_state(cluster=cluster, containerInstances=arns, status="DRAINING")
    for instance in active:
        line = {"cluster": cluster, "instance": instance.instance_id, "pool": instance.pool}
        print(json.dumps({**line, "action": "drain: its Capacity Block ends"}))
    for instance in instances:
        _stop_tasks(ecs, cluster, instance, f"the Capacity Block of {instance.instance_id} ends")


def _build_line(cluster: str, choice: Choice) -> dict[str, Any]:
    instance, (verdict, reasons) = choice.instance, decide(choice.instance.signals)
    return {
        "cluster": cluster,
        "instance": instance.instance_id,
        "pool": instance.pool,
        "zone": instance.zone,
        "verdict": verdict.name.lower(),
        "reasons": reasons,
        "action": f"wait: {choice.hold}" if choice.hold else "replace",
    }


def _log_metric(cluster: str, waiting_count: int, now: datetime.datetime) -> None:
    """Print it in CloudWatch's embedded metric format, of which CloudWatch makes a metric."""
    metrics = {"Namespace": METRIC_NAMESPACE, "Dimensions": [["cluster"]], "Metrics": [{"Name": METRIC}]}
    envelope = {"Timestamp": int(now.timestamp() * 1000), "CloudWatchMetrics": [metrics]}
    print(json.dumps({"_aws": envelope, "cluster": cluster, METRIC: waiting_count}))
