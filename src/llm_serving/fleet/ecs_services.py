"""ECS services of a fleet: where the tasks of a pool may run, and by which names stacks and commands find them."""

from __future__ import annotations

from llm_serving.fleet import groups, names
from llm_serving.fleet.model import Fleet


def list_choices(fleet: Fleet, pool: str, replica: int | None = None) -> list[list[str]]:
    """List the capacity providers of each choice of a pool, in order of preference; one choice with none for Fargate.

    Args:
        replica: index of the replica of several nodes that the tasks are a node of: all of its nodes are next to each
            other, so it has one provider of the first choice.
    """
    if not pool:
        return [[]]
    strategies = groups.group_by_choice(groups.resolve_pool(fleet, pool))
    if replica is not None:
        peers = strategies[0]
        return [[groups.format_provider_name(fleet, peers[replica % len(peers)])]]
    return [[groups.format_provider_name(fleet, group) for group in peers] for peers in strategies]


def format_service_name(deployment: str, service: str, choice: int) -> str:
    """Return the name of the ECS service of a choice, a place in the pool's order of preference from 0."""
    return f"{deployment}-{service}-{choice}" if choice else f"{deployment}-{service}"


def format_log_group(fleet: Fleet, kind: str, deployment: str) -> str:
    """Return the log group of a deployment's tasks; the streams begin with the role."""
    return f"/aws/ecs/{names.format_cluster_name(fleet)}/{kind}/{deployment}"


def format_driver_group_name(fleet: Fleet, deployment: str) -> str:
    """Return the name of the security group of a deployment's load drivers."""
    return f"{fleet.name}-{deployment}-driver"


def format_load_secrets(fleet: Fleet, deployment: str) -> str:
    """Return the prefix of the names of a deployment's secrets, each of one load."""
    return f"{fleet.name}/{deployment}/load-tests/"
