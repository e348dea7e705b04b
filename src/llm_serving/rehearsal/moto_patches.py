"""moto's own server, which says in its log what each request asks for, with eight things put right, seen in moto 5.2.5:

- It takes a denial under a condition for a denial under every condition, so a bucket that refuses plain HTTP would
  refuse everything. Here that statement is applied as if the request had come over TLS, which is what the loopback
  stands for; every other statement stays moto's own.
- Emptying a bucket whose versioning was taken away before, as Terraform's destroy does, fails at the first deletion
  marker.
- A cluster of EKS has no security group, where AWS makes one that its nodes stand in.
- An Auto Scaling group that was to shrink and whose machines were protected does not do so when that protection is
  lifted, which is how Terraform's destroy empties one.
- Asked for all capacity providers of ECS, it fails.
- It lists services of ECS that were deleted, and AWS does not.
- It answers several requests at once on data that bear one: now and then a dictionary changed while it was read, and
  the answer was 500.
- Asked again by a client that an answer did not reach, it does a second time what it was asked, where AWS knows that
  it is done: an endpoint of a VPC that nobody knows of, a rule of a security group that is not there to revoke.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from moto import server
from moto.autoscaling.models import AutoScalingBackend
from moto.core.responses import BaseResponse
from moto.ec2.utils import random_security_group_id
from moto.ecs.models import EC2ContainerServiceBackend
from moto.eks.models import Cluster, EKSBackend
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket, FakeDeleteMarker

_WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}


def get_permission(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
    """What the bucket's policy says of an action on a resource when the request came over TLS."""
    if bucket.policy is None:
        return PermissionResult.NEUTRAL
    policy = json.loads(bucket.policy)
    applicable = [
        statement for statement in _ensure_list(policy["Statement"]) if statement.get("Condition") != _WITHOUT_TLS
    ]
    if not applicable:
        return PermissionResult.NEUTRAL
    return IAMPolicy(json.dumps({**policy, "Statement": applicable})).is_action_permitted(action, resource)


def _ensure_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def dispose(_: FakeDeleteMarker) -> None:
    """A deletion marker holds no data to let go of."""


_create_cluster = EKSBackend.create_cluster


def create_cluster(backend: EKSBackend, *args: Any, **settings: Any) -> Cluster:
    """A cluster as moto makes it, with the id of a security group."""
    cluster: Cluster = _create_cluster(backend, *args, **settings)
    cluster.resources_vpc_config.setdefault("clusterSecurityGroupId", random_security_group_id())
    return cluster


_set_instance_protection = AutoScalingBackend.set_instance_protection


def set_instance_protection(
    backend: AutoScalingBackend, group_name: str, instance_ids: list[str], protected_from_scale_in: bool | None
) -> None:
    """Protects machines from scale-in, or lifts that and lets the group go to the size that it should have."""
    _set_instance_protection(backend, group_name, instance_ids, protected_from_scale_in)
    if not protected_from_scale_in:
        group = backend.autoscaling_groups[group_name]
        group.set_desired_capacity(group.desired_capacity)


_describe_capacity_providers = EC2ContainerServiceBackend.describe_capacity_providers


def describe_capacity_providers(backend: EC2ContainerServiceBackend, names: list[str] | None) -> Any:
    """The capacity providers of these names; all where none are given."""
    return _describe_capacity_providers(backend, list(backend.capacity_providers) if names is None else names)


_list_services = EC2ContainerServiceBackend.list_services


def list_services(backend: EC2ContainerServiceBackend, cluster: str, *args: Any, **settings: Any) -> list[str]:
    """The services of a cluster that are there."""
    active = {service.arn for service in backend.services.values() if service.status != "INACTIVE"}
    return [arn for arn in _list_services(backend, cluster, *args, **settings) if arn in active]


_call_action = BaseResponse.call_action
_lock = threading.Lock()
_results: dict[str, Any] = {}
"""Answers to what changed something, by the id that AWS's SDKs give to a call and keep when they repeat it."""

_READ_ACTIONS = ("Describe", "Get", "List")
_MAX_RESULTS = 1000


def call_action(response: BaseResponse) -> Any:
    """Answers one request at a time, and a repeated one as before.

    It says for what: most services are asked at the same path, so the server's own line does not tell.
    """
    action, invocation_id = response._get_action(), response.headers.get("Amz-Sdk-Invocation-Id")
    with _lock:
        repeated = _results.get(invocation_id)
        result = repeated or _call_action(response)
        if invocation_id and result[0] < 400 and not action.startswith(_READ_ACTIONS):
            _results[invocation_id] = result
            if len(_results) > _MAX_RESULTS:
                del _results[next(iter(_results))]
    # One write: threads ask.
    sys.stdout.write(f"{response.service_name} {action} {result[0]}{' once more' if repeated else ''}\n")
    status, headers, body = result
    return status, dict(headers), body


def main() -> None:
    """Serves until it is ended, with moto's own arguments."""
    BaseResponse.call_action = call_action
    FakeBucket.get_permission = get_permission
    FakeDeleteMarker.dispose = dispose
    EKSBackend.create_cluster = create_cluster
    AutoScalingBackend.set_instance_protection = set_instance_protection
    EC2ContainerServiceBackend.describe_capacity_providers = describe_capacity_providers
    EC2ContainerServiceBackend.list_services = list_services
    server.main()
