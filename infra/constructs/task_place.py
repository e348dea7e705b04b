"""Where the tasks of a deployment run: the fleet's network, cluster and names, looked up; and its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws, cdktf
from infra.constructs import network, task
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import find_key
from infra.constructs.network import Network
from infra.constructs.security_group import VpcRanges
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.services.rendered import Rendered


@dataclass(frozen=True)
class TaskPlace:
    """What all tasks of a deployment share."""

    cluster_arn: str
    cluster_key: str
    """ARN of the key that encrypts the cluster's ECS Exec."""

    network: Network
    vpc: VpcRanges
    namespace_id: str
    """The private DNS namespace."""


def find_place(stack: FleetStack) -> TaskPlace:
    fleet_network = network.find_network(stack)
    namespace = aws.data_aws_service_discovery_dns_namespace.DataAwsServiceDiscoveryDnsNamespace(
        stack, "peers", name=names.format_namespace(stack.fleet), type="DNS_PRIVATE"
    )
    return TaskPlace(
        cluster_arn=stack.account.build_arn("ecs", f"cluster/{stack.cluster_name}"),
        cluster_key=find_key(stack, "ecs"),
        network=fleet_network,
        vpc=network.find_ranges(stack, fleet_network.vpc_id),
        namespace_id=namespace.id,
    )


@dataclass(frozen=True)
class AddedService:
    """What the outputs say of a service."""

    definition: str
    """ARN of its task definition."""

    names: Sequence[str]
    """Names of its ECS services, in order of preference."""


def add_outputs(
    stack: FleetStack,
    deployment: Rendered[Any],
    place: TaskPlace,
    services: Mapping[str, AddedService],
    *,
    roles: task.TaskRoles,
    security_group: aws.security_group.SecurityGroup,
) -> None:
    """Add the test request, and the outputs by which `llm_serving.targets.ecs.readiness` waits for a deployment.

    `services` are by name; `roles` and `security_group` are the entry's, which the test request has too.
    """
    entry, log_group = deployment.entry, format_log_group(stack.fleet, deployment.kind, deployment.name)
    url = f"http://{deployment.name}-{entry.name}.{names.format_namespace(stack.fleet)}:{entry.port}"
    test_request = task.add_test_request_definition(
        stack,
        entry,
        family=f"{stack.fleet.name}-{deployment.name}_ask",  # no service's: those have no underscore
        url=url,
        roles=roles,
        logs=task.LogDestination(log_group, stack.fleet.region),
    )
    service_names: dict[str, list[str]] = {}
    for service in deployment.services:
        service_names.setdefault(service.role, []).extend(services[service.name].names)
    ask = {"task_definition": test_request.arn, "subnets": place.network.subnets, "group": security_group.id}
    definitions = {name: service.definition for name, service in services.items()}
    rows: dict[str, tuple[Any, str]] = {
        "log_group": (log_group, "Log group of all tasks; streams begin with the role"),
        "services": (service_names, "Names of the ECS services, by role, in order of preference"),
        "definitions": (definitions, "Task definitions, by service: what runs unless ECS rolled back"),
        "url": (url, "Base URL for clients in the VPC"),
        "ask": (ask, "Task that sends a test request"),
    }
    for name, (value, description) in rows.items():
        cdktf.TerraformOutput(stack, name, value=value, description=description)
