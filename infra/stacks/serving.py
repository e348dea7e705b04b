"""A deployment on ECS: its task definitions and services, who reaches them, what they may do, and who watches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.bindings import aws, cdktf
from infra.bindings.cdktf import TerraformStack
from infra.constructs import (
    image_cache,
    network,
    role,
    task,
    task_load_balancer,
    task_network,
    task_roles,
    task_scaling,
    task_service,
    task_watch,
)
from infra.constructs.account import Account, read_account
from infra.constructs.collector import MetricStream
from infra.constructs.key import add_key, build_log_group_grant
from infra.constructs.vpc import Network
from infra.stacks import base
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.targets.ecs import manifest
from llm_serving.targets.ecs.manifest import EcsDeployment, Service, format_log_group, format_service_name, list_choices
from llm_serving.targets.eks import manifest as eks_manifest
from llm_serving.targets.on_aws.rendered import format_stack_name

_LOG_RETENTION_DAYS = 90


def list_stacks(document: Document[Fleet], manifest_files: Sequence[Path]) -> list[ServingStack]:
    """Return the stack of each deployment that is rendered for ECS.

    Raises:
        InputError: a rendered file is wrong.
    """
    values = [manifest.read(file, document).value for file in manifest_files if file.name != eks_manifest.FILE]
    return [ServingStack(value) for value in values if isinstance(value, EcsDeployment)]


class ServingStack:
    """The stack of one deployment."""

    NEEDS = ("ecs", "storage")

    def __init__(self, deployment: EcsDeployment) -> None:
        self.NAME = format_stack_name(deployment.kind, deployment.name)
        self._deployment = deployment

    def is_enabled(self, fleet: Fleet) -> bool:
        """Whether a pool of the fleet runs on ECS."""
        return "ecs" in fleet.orchestrators

    def add(self, app: cdktf.App, document: Document[Fleet]) -> None:
        """Add the stack to the app.

        Outputs: url, log_group, services (names of the ECS services, by role), definitions (task definitions, by
        service), ask (what runs the test request).
        """
        _add_resources(base.create_stack(app, self.NAME, document), document.value, self._deployment)


def _add_resources(stack: cdktf.TerraformStack, fleet: Fleet, serving: EcsDeployment) -> None:
    account, fleet_network = read_account(stack, fleet), network.find_network(stack, fleet)
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "range", id=fleet_network.vpc_id)
    namespace = aws.data_aws_service_discovery_dns_namespace.DataAwsServiceDiscoveryDnsNamespace(
        stack, "peers", name=names.format_namespace(fleet), type="DNS_PRIVATE"
    )
    task_service.add_force_variable(stack)
    logs, stream = _add_logs(stack, fleet, serving, account)
    roles = _add_roles(stack, fleet, serving, account, logs)
    security_groups = task_network.add_security_groups(
        stack, fleet, serving, vpc_id=fleet_network.vpc_id, vpc_cidr=vpc.cidr_block
    )
    load_balancer = _add_load_balancer(stack, fleet, serving, fleet_network, vpc.cidr_block, security_groups)
    errors_alarm = task_watch.add_errors_alarm(stack, fleet, serving, stream)
    registries = {
        entry.name: task_network.add_discovery_service(stack, serving, entry, namespace_id=namespace.id)
        for entry in task_network.select_registered_services(serving)
    }
    context = task_service.ServiceContext(
        fleet=fleet,
        serving=serving,
        cluster_arn=account.build_arn("ecs", f"cluster/{names.format_cluster_name(fleet)}"),
        subnets=dict(fleet_network.private_subnets),
        alarm_name=errors_alarm.alarm_name,
        image_prefixes=image_cache.build_prefixes(fleet, account),
        load_balancer=load_balancer,
    )
    services = {
        service.name: _add_service(
            stack, context, service, roles[service.kind], stream, security_groups, registries, [errors_alarm, *logs]
        )
        for service in serving.services
    }
    _add_outputs(stack, context, services, security_groups.router, roles["router"])


def _add_load_balancer(
    stack: cdktf.TerraformStack,
    fleet: Fleet,
    serving: EcsDeployment,
    fleet_network: Network,
    vpc_cidr: str,
    security_groups: task_network.TaskSecurityGroups,
) -> task_load_balancer.TaskLoadBalancer | None:
    """Add the load balancer, and the output with its name; None where the deployment has none."""
    if serving.load_balancer is None:
        return None
    load_balancer = task_load_balancer.add_load_balancer(
        stack,
        fleet,
        serving,
        serving.load_balancer,
        vpc_id=fleet_network.vpc_id,
        vpc_cidr=vpc_cidr,
        subnet_ids=list(fleet_network.private_subnets.values()),
        router_group=security_groups.router,
    )
    name = load_balancer.balancer.dns_name
    base.add_output(stack, "load_balancer", name, "Where a name of the certificate should lead: a CNAME or alias")
    return load_balancer


def _add_service(
    stack: cdktf.TerraformStack,
    context: task_service.ServiceContext,
    service: Service,
    roles: task.TaskRoles,
    stream: MetricStream,
    security_groups: task_network.TaskSecurityGroups,
    registries: Mapping[str, aws.service_discovery_service.ServiceDiscoveryService],
    dependencies: Sequence[Any],
) -> tuple[str, list[str]]:
    """Add a service with its task definition, alarms and scaling; return the definition's ARN and ECS service names."""
    fleet, serving = context.fleet, context.serving
    definition = task.add_definition(
        stack,
        service,
        family=f"{fleet.name}-{serving.name}-{service.name}",
        replica=_find_replica(fleet, serving, service),
        roles=roles,
        logs=_build_log_destination(fleet, serving),
        stream=stream,
        image_prefixes=context.image_prefixes,
    )
    ecs_services = task_service.add_services(
        stack,
        context,
        service,
        definition=definition,
        security_group=security_groups.select_group(service),
        registry=registries.get(service.name),
        dependencies=[*dependencies, *roles.policies],
    )
    _add_monitoring(stack, fleet, serving, service, stream, ecs_services)
    return definition.arn, [entry.name for entry in ecs_services]


def _find_replica(fleet: Fleet, serving: EcsDeployment, service: Service) -> task.Replica:
    """The other nodes of the service's replica; none where it runs on one."""
    member = service.member
    if member is None:
        return task.Replica()
    peers = [
        peer
        for peer in serving.services
        if peer.role == service.role and peer.member and peer.member.replica == member.replica and peer != service
    ]
    if member.rank == 0:
        return task.Replica(followers=len(peers))
    [leader] = [peer for peer in peers if peer.member and peer.member.rank == 0]
    return task.Replica(leader=f"{serving.name}-{leader.name}.{names.format_namespace(fleet)}")


def _build_log_destination(fleet: Fleet, serving: EcsDeployment) -> task.LogDestination:
    return task.LogDestination(format_log_group(fleet, serving.name), fleet.region)


def _format_url(fleet: Fleet, serving: EcsDeployment) -> str:
    return f"http://{serving.name}-{serving.router.name}.{names.format_namespace(fleet)}:{serving.router.port}"


def _add_outputs(
    stack: cdktf.TerraformStack,
    context: task_service.ServiceContext,
    services: Mapping[str, tuple[str, list[str]]],
    security_group: aws.security_group.SecurityGroup,
    roles: task.TaskRoles,
) -> None:
    """Add the task definition of the test request, and the outputs with all that runs it."""
    fleet, serving = context.fleet, context.serving
    test_request = task.add_test_request_definition(
        stack,
        serving.router,
        family=f"{fleet.name}-{serving.name}-ask",
        url=_format_url(fleet, serving),
        roles=roles,
        logs=_build_log_destination(fleet, serving),
    )
    service_names: dict[str, list[str]] = {}
    for service in serving.services:
        service_names.setdefault(service.role, []).extend(services[service.name][1])
    base.add_task_outputs(
        stack,
        base.TaskOutputs(
            log_group=format_log_group(fleet, serving.name),
            services=service_names,
            definitions={name: definition for name, (definition, _) in services.items()},
            url=_format_url(fleet, serving),
            test_request=test_request.arn,
            subnets=list(context.subnets.values()),
            security_group=security_group.id,
        ),
    )


def _add_logs(
    stack: TerraformStack, fleet: Fleet, serving: EcsDeployment, account: Account
) -> tuple[list[Any], MetricStream]:
    """The log groups of tasks and of metrics, with the key that encrypts both."""
    task_log_group = format_log_group(fleet, serving.name)
    group_names = {"tasks": task_log_group, "metrics": f"{task_log_group}/metrics"}
    kms_key = add_key(
        stack,
        "logs-key",
        alias=f"{fleet.name}-serving-{serving.name}",
        description=f"Logs of {serving.name}",
        account=account,
        grants=tuple(build_log_group_grant(account, group, name.capitalize()) for name, group in group_names.items()),
    )
    log_groups = [
        aws.cloudwatch_log_group.CloudwatchLogGroup(
            stack, f"{name}-logs", name=group, retention_in_days=_LOG_RETENTION_DAYS, kms_key_id=kms_key.arn
        )
        for name, group in group_names.items()
    ]
    scale_to_zero_roles = tuple(service.role for service in serving.scale_to_zero_services)
    return log_groups, MetricStream(serving.name, fleet.region, group_names["metrics"], scale_to_zero_roles)


def _add_roles(
    stack: TerraformStack, fleet: Fleet, serving: EcsDeployment, account: Account, logs: list[Any]
) -> dict[str, task.TaskRoles]:
    keys = {
        alias: aws.data_aws_kms_alias.DataAwsKmsAlias(
            stack, f"{alias}-key", name=f"alias/{fleet.name}-{alias}"
        ).target_key_arn
        for alias in ("ecs", "storage")
    }
    task_log_group, metrics_log_group = logs
    execution_role = task_roles.add_execution_role(stack, fleet, serving, account=account, log_group=task_log_group)
    shared = {"account": account, "metrics": metrics_log_group, "cluster_key": keys["ecs"]}
    engine_role = task_roles.add_engine_role(stack, fleet, serving, storage_key=keys["storage"], **shared)
    router_role = task_roles.add_router_role(stack, fleet, serving, **shared)
    policies = {
        part: role.list_policies(stack, names.format_deployment_purpose(serving.name, part))
        for part in ("start", "read", "route")
    }
    return {
        "engine": task.TaskRoles(execution_role, engine_role, (*policies["start"], *policies["read"])),
        "router": task.TaskRoles(execution_role, router_role, (*policies["start"], *policies["route"])),
    }


def _add_monitoring(
    stack: TerraformStack,
    fleet: Fleet,
    serving: EcsDeployment,
    service: Service,
    stream: MetricStream,
    ecs_services: list[Any],
) -> None:
    ecs_names = [format_service_name(serving, service, choice) for choice in list_choices(fleet, service)]
    if not service.scales_to_zero:
        task_watch.add_running_alarm(stack, fleet, serving, service, ecs_names)
    if service.kind == "engine" and (service.member is None or (service.member.replica, service.member.rank) == (0, 0)):
        task_watch.add_queue_alarm(stack, fleet, serving, stream, service)
    if service.scale:
        task_scaling.add_scaling(stack, fleet, serving, service, stream, ecs_services[0])
