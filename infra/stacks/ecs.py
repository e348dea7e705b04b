"""The ECS stack: cluster, namespaces, and a capacity provider for each instance group."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.bindings.cdktf import App
from infra.constructs import capacity_providers, dashboard, ecs_cluster, ecs_fallback, gpu_repair, network
from infra.constructs import network_test as network_tests
from infra.constructs.alarm import add_topic_rule, build_cluster_dimensions, find_metric
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.machines import add_efa_group
from infra.stacks import base
from llm_serving.fleet import groups, network_test
from llm_serving.fleet.ecs_services import list_choices
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document

NAME = "ecs"
NEEDS = ("network",)

_ENDS = [
    {"stoppedReason": [{"prefix": "Task failed container health checks"}]},
    {"stopCode": ["EssentialContainerExited"]},
]
"""How tasks of services end that nobody ends: not in a rollout, not for fewer replicas, not with their instance.

Source: ECS developer guide, "View Amazon ECS stopped task errors" and "Amazon ECS task state change events", 2026-11.
"""


def is_enabled(fleet: Fleet) -> bool:
    """Return whether a pool of the fleet runs on ECS."""
    return NAME in fleet.orchestrators


def add(app: App, document: Document[Fleet]) -> None:
    """Add the stack to the app. Outputs: cluster_name, namespaces (service_connect, peers: ids or ARNs), strategies
    (by pool, by service in the order to fall back in: capacity providers with their weights).
    """
    fleet = document.value
    stack = base.create_stack(app, NAME, document)
    fleet_network = network.find_network(stack)
    machine_groups = [group for group in groups.resolve_all(fleet) if group.orchestrator == "ecs"]
    tested_groups = network_test.list_task_groups(machine_groups)
    cluster, key = ecs_cluster.add_cluster(
        stack,
        functions=[ecs_fallback.NAME, gpu_repair.NAME],
        log_groups={"NetworkTest": network_test.format_log_group(fleet)} if tested_groups else {},
    )
    peers_namespace = ecs_cluster.add_peers_namespace(stack, vpc_id=fleet_network.vpc_id)
    _add_providers(stack, cluster, fleet_network, machine_groups)
    watched = []
    if machine_groups:
        ecs_fallback.add_fallback(stack, machine_groups, key=key)
        watched.append("waiting-tasks")
    if any(group.variant != "standard" for group in machine_groups):  # they have accelerators
        gpu_repair.add_gpu_repair(stack, machine_groups, key=key)
        watched.append("waiting-repairs")
    _add_task_rule(stack, cluster.arn)
    if watched and fleet.add_ons.observability:
        dimensions = build_cluster_dimensions(fleet)
        graphs = {signal: [find_metric("cluster", signal, dimensions, "Maximum")] for signal in watched}
        dashboard.add_dashboard(stack, graphs)
    if tested_groups:
        network_tests.add_network_tests(stack, tested_groups, key=key)
    base.add_output(stack, "cluster_name", cluster.name, "The cluster")
    base.add_output(
        stack,
        "namespaces",
        {"service_connect": cluster.service_connect_defaults.namespace, "peers": peers_namespace.id},
        "Cloud Map namespaces: the cluster's default, by ARN, and the private DNS one, by id",
    )
    strategies = {group.pool: _build_strategies(fleet, group.pool) for group in machine_groups}
    base.add_output(stack, "strategies", strategies, "Capacity provider strategies, one a choice, by pool")


def _add_providers(
    stack: FleetStack,
    cluster: aws.ecs_cluster.EcsCluster,
    fleet_network: network.Network,
    machine_groups: Sequence[Group],
) -> None:
    """Add a capacity provider for each machine group.

    Tasks that name no strategy go to the first pool's first choice, or to Fargate where no pool is on ECS.
    """
    context = capacity_providers.CapacityProviderContext(
        stack=stack,
        cluster=cluster,
        instance_profile=capacity_providers.add_instance_profile(stack),
        subnets=fleet_network.private_subnets,
        security_group_id=capacity_providers.add_security_group(stack, vpc_id=fleet_network.vpc_id).id,
        efa_group=(
            add_efa_group(stack, vpc_id=fleet_network.vpc_id) if any(group.efa for group in machine_groups) else None
        ),
    )
    providers = [capacity_providers.add_capacity_provider(context, group) for group in machine_groups]
    default = list_choices(stack.fleet, machine_groups[0].pool)[0] if machine_groups else ["FARGATE"]
    capacity_providers.add_association(context, providers, default)


def _build_strategies(fleet: Fleet, pool: str) -> list[list[dict[str, object]]]:
    """Return the strategy of each choice of a pool, in the order to fall back in."""
    return [[{"capacity_provider": name, "weight": 1} for name in providers] for providers in list_choices(fleet, pool)]


def _add_task_rule(stack: FleetStack, cluster_arn: str) -> None:
    """Let the topic hear of each task that ended by itself: ECS starts another, again and again where it crashes."""
    detail = {
        "clusterArn": [cluster_arn],
        "lastStatus": ["STOPPED"],
        "group": [{"prefix": "service:"}],
        "$or": _ENDS,
    }
    add_topic_rule(
        stack,
        "task-ended",
        "A task ended by itself, and ECS starts another",
        {"source": ["aws.ecs"], "detail-type": ["ECS Task State Change"], "detail": detail},
        detail="<service>, <reason>. To do: read the last lines of its log, and look whether it happens again; <task>",
        fields={"service": "$.detail.group", "reason": "$.detail.stoppedReason", "task": "$.detail.taskArn"},
    )
