"""The ECS stack: cluster, namespaces, and a capacity provider for each machine group."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from infra.constructs import capacity_providers, container_instances, ecs_cluster, ecs_fallback, network
from infra.constructs.account import account
from infra.constructs.efa_group import efa_group
from infra.stacks import stack as stacks
from llm_serving.catalog import instances
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document

NAME = "ecs"


def add(app: Any, document: Document[Fleet]) -> None:
    """Adds the stack to the app. Outputs: cluster_name, namespaces (service_connect, peers: ids or ARNs), strategies
    (by pool, by service in the order to fall back in: capacity providers with their weights).
    """
    fleet, catalogue = document.value, instances.load()
    stack = stacks.new(app, NAME, document)
    here, where = account(stack, fleet), network.found(stack, fleet)
    made = [group for group in groups.groups(fleet, catalogue) if group.orchestrator == "ecs"]
    pools = {pool: list(of_pool) for pool, of_pool in groupby(made, key=lambda group: group.pool)}
    cluster = ecs_cluster.cluster(stack, fleet, account=here, functions=[ecs_fallback.NAME])
    peers = ecs_cluster.peers(stack, fleet, vpc_id=where.vpc_id)
    place = capacity_providers.Place(
        fleet=fleet,
        account=here,
        cluster=cluster.resource,
        profile=container_instances.profile(stack, fleet, account=here),
        subnets=where.private_subnets,
        security_group_id=container_instances.security_group(stack, fleet, vpc_id=where.vpc_id).id,
        efa_group=(
            efa_group(stack, fleet=fleet.name, vpc_id=where.vpc_id) if any(group.efa for group in made) else None
        ),
    )
    providers = [capacity_providers.capacity_provider(stack, place, group) for group in made]
    if pools:
        capacity_providers.associate(stack, place, list(pools.values()), providers)
    if any(len(groups.strategies(of_pool)) > 1 for of_pool in pools.values()):
        ecs_fallback.fallback(stack, fleet, key=cluster.key, account=here)
    stacks.output(stack, "cluster_name", cluster.resource.name, "The cluster")
    stacks.output(
        stack,
        "namespaces",
        {"service_connect": cluster.resource.service_connect_defaults.namespace, "peers": peers.id},
        "Cloud Map namespaces: the cluster's default, by ARN, and the private DNS one, by id",
    )
    strategies = {pool: _strategies(fleet, of_pool) for pool, of_pool in pools.items()}
    stacks.output(stack, "strategies", strategies, "Capacity provider strategies, one a choice, by pool")


def _strategies(fleet: Fleet, pool: list[Group]) -> list[list[dict[str, Any]]]:
    """One strategy for each choice, of the service that takes its tasks there."""
    return [
        [{"capacity_provider": groups.provider_name(fleet, group), "weight": 1} for group in peers]
        for peers in groups.strategies(pool)
    ]
