"""A fleet's resources in the embedded AWS, asked of its services: Terraform's state may know fewer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llm_serving.aws import session
from llm_serving.rehearsal import emulator

ClientFactory = Callable[[str], Any]


@dataclass(frozen=True, order=True)
class Resource:
    """A resource by the id that Terraform uses too."""

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def list_resources(endpoint: str, region: str, fleet: str) -> list[Resource]:
    """Return everything with the fleet's tag, or with its name for kinds without tags."""

    def create_client(service: str) -> Any:
        return emulator.create_client(service, endpoint, region)

    return sorted(
        {
            *_list_ec2(create_client, fleet),
            *_list_kms(create_client, fleet),
            *_list_ecs(create_client, fleet),
            *_list_by_name(create_client, fleet),
        }
    )


_EC2_CALLS = (
    ("describe_vpcs", "Vpcs", "VpcId"),
    ("describe_subnets", "Subnets", "SubnetId"),
    ("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    ("describe_nat_gateways", "NatGateways", "NatGatewayId"),
    ("describe_addresses", "Addresses", "AllocationId"),
    ("describe_route_tables", "RouteTables", "RouteTableId"),
    ("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    ("describe_security_groups", "SecurityGroups", "GroupId"),
    ("describe_flow_logs", "FlowLogs", "FlowLogId"),
    ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
)


def _list_ec2(client: ClientFactory, fleet: str) -> Iterator[Resource]:
    """Yield one call a kind, since moto keeps the tags of deleted resources."""
    ec2 = client("ec2")
    for call, list_key, id_key in _EC2_CALLS:
        for resource in getattr(ec2, call)()[list_key]:
            is_deleted = resource.get("State") in ("deleting", "deleted")  # shown for a while after
            if not is_deleted and {"Key": "fleet", "Value": fleet} in resource.get("Tags", []):
                yield Resource(id_key.removesuffix("Id"), resource[id_key])


def _list_kms(client: ClientFactory, fleet: str) -> Iterator[Resource]:
    kms = client("kms")
    for key in session.list_all(kms, "list_keys", "Keys"):
        state = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if state["KeyManager"] != "CUSTOMER" or state["KeyState"] == "PendingDeletion":
            continue  # a deleted key waits for its window to end, in AWS as here
        tags = kms.list_resource_tags(KeyId=key["KeyId"])["Tags"]
        if {"TagKey": "fleet", "TagValue": fleet} in tags:
            yield Resource("key", key["KeyId"])
    for alias in session.list_all(kms, "list_aliases", "Aliases"):
        if alias["AliasName"].startswith(f"alias/{fleet}-"):
            yield Resource("alias", alias["AliasName"])


def _list_ecs(client: ClientFactory, fleet: str) -> Iterator[Resource]:
    ecs = client("ecs")
    for cluster in ecs.describe_clusters(clusters=[fleet])["clusters"]:
        if cluster["status"] == "ACTIVE":  # a deleted one is shown for a while after
            yield Resource("cluster", cluster["clusterArn"])
    for provider in ecs.describe_capacity_providers()["capacityProviders"]:
        if provider["name"].startswith(f"cp-{fleet}-") and provider["status"] == "ACTIVE":
            yield Resource("capacity provider", provider["capacityProviderArn"])
    for group in session.list_all(client("autoscaling"), "describe_auto_scaling_groups", "AutoScalingGroups"):
        if {"fleet": fleet}.items() <= {tag["Key"]: tag["Value"] for tag in group["Tags"]}.items():
            yield Resource("Auto Scaling group", group["AutoScalingGroupName"])
    for namespace in session.list_all(client("servicediscovery"), "list_namespaces", "Namespaces"):
        if namespace["Name"] in (fleet, f"{fleet}.internal"):
            yield Resource("namespace", namespace["Id"])


_NAMED = (
    ("ecr", "describe_repositories", "repositories", "repositoryName", "repository", "{}/"),
    ("lambda", "list_functions", "Functions", "FunctionName", "function", "{}-"),
    ("iam", "list_roles", "Roles", "RoleName", "role", "{}-"),
    ("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName", "instance profile", "{}-"),
    ("logs", "describe_log_groups", "logGroups", "logGroupName", "log group", ".*/{}/"),
)
"""Service, call, keys of the resources and of their names, kind, and what names of the fleet's begin with, a regex."""


def _list_by_name(client: ClientFactory, fleet: str) -> Iterator[Resource]:
    for bucket in client("s3").list_buckets()["Buckets"]:
        # Not by the fleet's name alone: a bucket that the user created is not the fleet's.
        if bucket["Name"].startswith((f"{fleet}-models-", f"{fleet}-results-", f"{fleet}-flows-")):
            yield Resource("bucket", bucket["Name"])
    for cluster in client("eks").list_clusters()["clusters"]:
        if cluster == fleet:
            yield Resource("cluster", cluster)
    for queue in client("sqs").list_queues(QueueNamePrefix=f"{fleet}-").get("QueueUrls", []):
        yield Resource("queue", queue)
    for service, call, list_key, name_key, kind, prefix in _NAMED:
        for resource in session.list_all(client(service), call, list_key):
            if re.match(prefix.format(re.escape(fleet)), resource[name_key]):
                yield Resource(kind, resource[name_key])
