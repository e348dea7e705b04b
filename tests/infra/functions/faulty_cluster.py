"""An ECS cluster of the embedded AWS, whose GPUs and agents fail as the test says.

moto knows no health of container instances, loses no agent, replaces none and has no Capacity Blocks: all is added
here, at the client.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from infra.functions import gpu_repair

REGION = "us-west-2"


@dataclass
class FaultyCluster:
    """A cluster with an Auto Scaling group for each pool and zone."""

    clients: Mapping[str, Any]
    health: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The check ACCELERATED_COMPUTE of what failed, by the instance's id."""

    lost: set[str] = field(default_factory=set)
    """Instances whose agent is disconnected, by their ids."""

    blocks: dict[str, tuple[str, datetime.datetime]] = field(default_factory=dict)
    """State and end of each Capacity Block, by its id."""

    drained: Counter[str] = field(default_factory=Counter)
    """Calls that drained an instance, by its container instance."""

    def __post_init__(self) -> None:
        events = self.clients["ecs"].meta.events
        events.register("after-call.ecs.DescribeContainerInstances", self._add_health)
        events.register("before-parameter-build.ecs.UpdateContainerInstancesState", self._count)
        ec2_events = self.clients["ec2"].meta.events
        ec2_events.register("before-call.ec2.DescribeCapacityReservations", self._describe_blocks)

    def handle(self, body: str = '{"cluster": "demo", "at": "2026-11-26T04:00:00Z"}') -> list[dict[str, Any]]:
        """Call the function as its queue does."""
        return gpu_repair.handler({"Records": [{"body": body}]})

    def add_group(self, name: str, *, pool: str, zone: str, size: int) -> None:
        """Make a group with its instances, which join the cluster."""
        self.clients["autoscaling"].create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchTemplate={"LaunchTemplateName": "gpu"},
            MinSize=size,
            MaxSize=size,
            AvailabilityZones=[zone],
            Tags=[{"Key": "pool", "Value": pool, "PropagateAtLaunch": True}],
        )
        for instance_id in self.list_group(name):
            self.join(instance_id, pool)

    def list_group(self, name: str) -> list[str]:
        """Return the ids of a group's instances."""
        described = self.clients["autoscaling"].describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return [one["InstanceId"] for one in described["AutoScalingGroups"][0]["Instances"]]

    def join(self, instance_id: str, pool: str) -> None:
        """Register an instance as ECS's agent does."""
        ecs = self.clients["ecs"]
        registered = ecs.register_container_instance(
            cluster="demo", instanceIdentityDocument=json.dumps({"instanceId": instance_id})
        )["containerInstance"]
        mark = {"name": "fleet/pool", "value": pool, "targetId": registered["containerInstanceArn"]}
        ecs.put_attributes(cluster="demo", attributes=[mark])

    def fail(
        self, instance_id: str, reason: str | None = "XID_79", *, ago: datetime.timedelta = datetime.timedelta()
    ) -> None:
        """Have the agent report the GPUs of an instance as impaired."""
        changed = datetime.datetime.now(datetime.UTC) - ago
        check = {"type": "ACCELERATED_COMPUTE", "status": "IMPAIRED", "lastStatusChange": changed}
        self.health[instance_id] = {**check, **({"statusReason": reason} if reason else {})}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return what ECS says of each instance, by its id."""
        ecs = self.clients["ecs"]
        arns = ecs.list_container_instances(cluster="demo")["containerInstanceArns"]
        described = [
            one
            for first in range(0, len(arns), 100)
            for one in ecs.describe_container_instances(cluster="demo", containerInstances=arns[first : first + 100])[
                "containerInstances"
            ]
        ]
        return {one["ec2InstanceId"]: one for one in described}

    def list_draining(self) -> list[str]:
        """Return the ids of the instances that drain."""
        return sorted(name for name, one in self.describe().items() if one["status"] == "DRAINING")

    def list_unhealthy(self) -> list[str]:
        """Return the ids of the instances that Auto Scaling was told to replace."""
        states = self.clients["autoscaling"].describe_auto_scaling_instances()["AutoScalingInstances"]
        return sorted(one["InstanceId"] for one in states if one["HealthStatus"].upper() == "UNHEALTHY")

    def start_tasks(self, *instance_ids: str) -> dict[str, str]:
        """Start a task on each of the instances, and return its ARN by the instance's id."""
        ecs, described = self.clients["ecs"], self.describe()
        container = {"name": "vllm", "image": "vllm", "memory": 1}
        ecs.register_task_definition(family="vllm", containerDefinitions=[container])
        arns = {name: described[name]["containerInstanceArn"] for name in instance_ids}
        return {
            name: ecs.start_task(cluster="demo", taskDefinition="vllm", containerInstances=[arn])["tasks"][0]["taskArn"]
            for name, arn in arns.items()
        }

    def read_status(self, task: str) -> str:
        """Return what ECS wants a task to be: RUNNING or STOPPED."""
        return str(self.clients["ecs"].describe_tasks(cluster="demo", tasks=[task])["tasks"][0]["desiredStatus"])

    def list_suspended(self) -> dict[str, list[str]]:
        """Return the processes that are suspended, by the group that has any."""
        described = self.clients["autoscaling"].describe_auto_scaling_groups()["AutoScalingGroups"]
        names = {one["AutoScalingGroupName"]: one["SuspendedProcesses"] for one in described}
        return {name: [row["ProcessName"] for row in rows] for name, rows in names.items() if rows}

    def end(self, instance_id: str) -> None:
        """Take an instance away, as its group does once it has no task."""
        described = self.describe()[instance_id]
        self.clients["ecs"].deregister_container_instance(
            cluster="demo", containerInstance=described["containerInstanceArn"], force=True
        )
        self.clients["autoscaling"].terminate_instance_in_auto_scaling_group(
            InstanceId=instance_id, ShouldDecrementDesiredCapacity=False
        )
        self.health.pop(instance_id, None)

    def replace_unhealthy(self) -> int:
        """Do what Auto Scaling does: end what is unhealthy, and start as many; return how many."""
        unhealthy = self.list_unhealthy()
        described = self.describe()
        for instance_id in unhealthy:
            self.end(instance_id)
        joined = set(described) - set(unhealthy)
        for group in self.clients["autoscaling"].describe_auto_scaling_groups()["AutoScalingGroups"]:
            pool = next(tag["Value"] for tag in group["Tags"] if tag["Key"] == "pool")
            for instance in group["Instances"]:
                if instance["InstanceId"] not in joined:
                    self.join(instance["InstanceId"], pool)
        return len(unhealthy)

    def _add_health(self, parsed: dict[str, Any], **_: Any) -> None:
        for one in parsed.get("containerInstances", ()):
            one["agentConnected"] = one["ec2InstanceId"] not in self.lost
            check = self.health.get(one["ec2InstanceId"])
            one["healthStatus"] = {
                "overallStatus": "IMPAIRED" if check else "OK",
                "details": [check or {"type": "ACCELERATED_COMPUTE", "status": "OK"}],
            }

    def _describe_blocks(self, params: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        """Answer as EC2 does (API reference, DescribeCapacityReservations), which forgets blocks that have ended."""
        assert params["body"].keys() == {"Action", "Version"}
        rows = [
            {"CapacityReservationId": name, "ReservationType": "capacity-block", "State": state, "EndDate": end}
            for name, (state, end) in self.blocks.items()
        ]
        on_demand = {"CapacityReservationId": "cr-open", "ReservationType": "default", "State": "active"}
        return AWSResponse("", 200, {}, None), {"CapacityReservations": [on_demand, *rows]}

    def _count(self, params: dict[str, Any], **_: Any) -> None:
        self.drained.update(params["containerInstances"])


def open_cluster(monkeypatch: pytest.MonkeyPatch, create_client: Callable[[str], Any]) -> FaultyCluster:
    """Make a cluster without instances, which the function's own clients see as this one's do."""
    clients = {service: create_client(service) for service in ("ecs", "autoscaling", "ec2")}
    monkeypatch.setattr(boto3, "client", clients.__getitem__)
    return FaultyCluster(clients)
