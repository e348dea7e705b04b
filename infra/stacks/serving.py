"""A deployment on ECS: its task definitions and services, who reaches them, what they may do, and who watches them."""

from __future__ import annotations

from typing import Any

from infra.bindings import aws
from infra.constructs import network, role, task, task_network, task_roles, task_scaling, task_service, task_watch
from infra.constructs.account import Account, account
from infra.constructs.collector import Stream
from infra.constructs.key import for_log_group, key
from infra.stacks import stack as stacks
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.targets.ecs.manifest import Service, Serving, choices, log_group, name_of

_LOGS_KEPT_DAYS = 90


def stack_of(deployment: str) -> str:
    """Name of the stack."""
    return f"serving-{deployment}"


def add(app: Any, document: Document[Fleet], serving: Serving) -> None:
    """Adds the stack to the app; the stacks ecs and storage must be applied before.

    Outputs: url, log_group, services (names of the ECS services, by role), definitions (task definitions, by service),
    ask (what runs the question that proves an answer).
    """
    fleet = document.value
    stack = stacks.new(app, stack_of(serving.name), document)
    here, where = account(stack, fleet), network.found(stack, fleet)
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "range", id=where.vpc_id)
    namespace = aws.data_aws_service_discovery_dns_namespace.DataAwsServiceDiscoveryDnsNamespace(
        stack, "peers", name=names.namespace(fleet), type="DNS_PRIVATE"
    )
    logs, stream = _logs(stack, fleet, serving, here)
    roles = _roles(stack, fleet, serving, here, logs)
    doors = task_network.doors(stack, fleet, serving, vpc_id=where.vpc_id, vpc_cidr=vpc.cidr_block)
    alarm = task_watch.errors(stack, fleet, serving, stream)
    registries = {
        one.name: task_network.registry(stack, serving, one, namespace_id=namespace.id)
        for one in task_network.registered(serving)
    }
    setting = task_service.Setting(
        fleet=fleet,
        serving=serving,
        cluster_arn=here.arn("ecs", f"cluster/{names.cluster(fleet)}"),
        subnets=dict(where.private_subnets),
        alarm=alarm.alarm_name,
    )
    made: dict[str, list[str]] = {}
    definitions: dict[str, str] = {}
    written = task.Logs(log_group(fleet, serving.name), fleet.region)
    for service in serving.services:
        definition = task.definition(
            stack,
            service,
            family=f"{fleet.name}-{serving.name}-{service.name}",
            roles=roles[service.kind],
            logs=written,
            stream=stream,
        )
        ecs_services = task_service.services(
            stack,
            setting,
            service,
            definition=definition,
            group=doors.of(service),
            registry=registries.get(service.name),
            after=[alarm, *logs, *roles[service.kind].rights],
        )
        _watch(stack, fleet, serving, service, stream, ecs_services)
        definitions[service.name] = definition.arn
        made.setdefault(service.role, []).extend(one.name for one in ecs_services)
    url = f"http://{serving.name}-{serving.router.name}.{names.namespace(fleet)}:{serving.router.port}"
    family = f"{fleet.name}-{serving.name}-ask"
    ask = task.asking(stack, serving.router, family=family, url=url, roles=roles["router"], logs=written)
    stacks.output(stack, "url", url, "Base URL for clients in the VPC")
    stacks.output(stack, "log_group", written.group, "Log group of all tasks; streams begin with the role")
    stacks.output(stack, "services", made, "Names of the ECS services, by role, in the order to fall back in")
    stacks.output(stack, "definitions", definitions, "Task definitions, by service: what runs unless ECS went back")
    stacks.output(
        stack,
        "ask",
        {"task_definition": ask.arn, "subnets": list(where.private_subnets.values()), "group": doors.router.id},
        "What runs the question that proves an answer",
    )


def _logs(stack: Any, fleet: Fleet, serving: Serving, here: Account) -> tuple[list[Any], Stream]:
    """The log groups of tasks and of metrics, with the key that encrypts both."""
    tasks = log_group(fleet, serving.name)
    groups = {"tasks": tasks, "metrics": f"{tasks}/metrics"}
    encryption = key(
        stack,
        "logs-key",
        alias=f"{fleet.name}-serving-{serving.name}",
        description=f"Logs of {serving.name}",
        account=here,
        grants=tuple(for_log_group(here, group, name.capitalize()) for name, group in groups.items()),
    )
    made = [
        aws.cloudwatch_log_group.CloudwatchLogGroup(
            stack, f"{name}-logs", name=group, retention_in_days=_LOGS_KEPT_DAYS, kms_key_id=encryption.arn
        )
        for name, group in groups.items()
    ]
    sleepers = tuple(service.role for service in serving.sleepers)
    return made, Stream(serving.name, fleet.region, groups["metrics"], sleepers)


def _roles(stack: Any, fleet: Fleet, serving: Serving, here: Account, logs: list[Any]) -> dict[str, task.Roles]:
    keys = {
        of: aws.data_aws_kms_alias.DataAwsKmsAlias(stack, f"{of}-key", name=f"alias/{fleet.name}-{of}").target_key_arn
        for of in ("ecs", "storage")
    }
    tasks, metrics = logs
    starts = task_roles.execution(stack, fleet, serving, account=here, log_group=tasks)
    shared = {"account": here, "metrics": metrics, "cluster_key": keys["ecs"]}
    engine = task_roles.engine(stack, fleet, serving, storage_key=keys["storage"], **shared)
    router = task_roles.router(stack, fleet, serving, **shared)
    rights = {part: role.rights(stack, names.of_deployment(serving.name, part)) for part in ("start", "read", "route")}
    return {
        "engine": task.Roles(starts, engine, (*rights["start"], *rights["read"])),
        "router": task.Roles(starts, router, (*rights["start"], *rights["route"])),
    }


def _watch(
    stack: Any, fleet: Fleet, serving: Serving, service: Service, stream: Stream, ecs_services: list[Any]
) -> None:
    ecs_names = [name_of(serving, service, one) for one in choices(fleet, service)]
    if not service.sleeps:
        task_watch.running(stack, fleet, serving, service, ecs_names)
    if service.kind == "engine" and (service.member is None or (service.member.replica, service.member.rank) == (0, 0)):
        task_watch.queue(stack, fleet, serving, stream, service)
    if service.scale:
        task_scaling.scaling(stack, fleet, serving, service, stream, ecs_services[0])
