"""Names and tags by which stacks, Kubernetes manifests and charts find what another one made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Conflict


def format_deployment_name(fleet: Fleet, deployment: str) -> str:
    """Return the name of what AWS runs for a deployment, unlike those of other fleets."""
    return f"{fleet.name}-{deployment}"


MAX_CACHE_NAME = 40
"""Maximum characters of a cache's name. Source: ElastiCache API reference, CreateReplicationGroup, 2026-11."""


def check_cache_name(fleet: Fleet, deployment: str) -> Iterator[Conflict]:
    """Yield a deployment whose cache or database could not have its name: RDS takes no two hyphens in a row either."""
    name = format_deployment_name(fleet, deployment)
    if len(name) > MAX_CACHE_NAME:
        reason = f"{name} is too long: ElastiCache takes {MAX_CACHE_NAME} characters"
        yield Conflict(("name",), reason, "choose a shorter name of the blueprint or the fleet", deployment)
    if "--" in name:
        reason = f"{name} has two hyphens in a row, which ElastiCache refuses"
        yield Conflict(("name",), reason, "choose another name of the blueprint or the fleet", deployment)


def format_cluster_name(fleet: Fleet) -> str:
    """Return the name of each cluster that the fleet makes."""
    return fleet.name


def find_eks_cluster(fleet: Fleet) -> str:
    """Return the name of the EKS cluster, the fleet's own or one that exists."""
    return fleet.eks.cluster or format_cluster_name(fleet)


def find_partition(region: str) -> str:
    """Return AWS's partition of a region. Source: AWS general reference, "Amazon Resource Names", 2026-11."""
    prefixes = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    return next((partition for prefix, partition in prefixes.items() if region.startswith(prefix)), "aws")


def build_tags(fleet: Fleet) -> dict[str, str]:
    """Return the tags of what controllers and drivers create, like Terraform's default tags."""
    return {**fleet.tags, "fleet": fleet.name}


def build_vpc_tags(fleet: Fleet) -> dict[str, str]:
    """Return the tags that one VPC of the account and region carries."""
    return {"fleet": fleet.name, "Name": fleet.name}


def build_private_subnet_tags(fleet: Fleet, zone: str) -> dict[str, str]:
    """Return the tags that one private subnet of that VPC carries."""
    return {"fleet": fleet.name, "Name": f"{fleet.name}-private-{zone}"}


def format_efa_group_name(fleet: str, stack: str) -> str:
    """Return the security group of a stack's EFA instances."""
    return f"{fleet}-{stack}-efa"


def format_placement_group_name(fleet: str, group: str) -> str:
    """Return EC2's name of a placement group."""
    return f"{fleet}-{group}"


def format_reservation_name(fleet: str, group: str) -> str:
    """Return the name of a group's reservations and of their resource group, which must not begin with aws."""
    return f"reserved-{fleet}-{group}"


def format_role_name(fleet: str, region: str, purpose: str) -> str:
    """Return the name of an IAM role and its instance profile, with the region: both belong to the account."""
    return f"{fleet}-{region}-{purpose}"


def format_dashboard_name(fleet: Fleet, stack: str) -> str:
    """Return the name of a stack's dashboard in CloudWatch, with the region: dashboards belong to the account.

    PutDashboard replaces a dashboard that has the name, so the parts are joined by `_`, which none of them has.
    Source: CloudWatch API reference, PutDashboard, 2026-11.
    """
    return f"{fleet.name}_{fleet.region}_{stack}"


SERVING_NAMESPACE = "serving"
"""Namespace of deployments on EKS."""

ENGINE_SERVICE_ACCOUNT = "engines"
"""Service account of that namespace that reads weights."""

KARPENTER_NODE_PURPOSE = "karpenter-node"
"""Purpose of the role of nodes that Karpenter starts."""


def format_deployment_purpose(deployment: str, part: str) -> str:
    """Return the purpose of a deployment's role, in the 16 characters that IAM's limit leaves.

    Args:
        part: at most 5 characters.
    """
    digest = hashlib.sha256(deployment.encode()).hexdigest()[:4]
    return f"{deployment if len(deployment) <= 10 else f'{deployment[:5]}-{digest}'}-{part}"


def format_function_name(fleet: Fleet, purpose: str) -> str:
    return f"{fleet.name}-{purpose}"


def format_namespace(fleet: Fleet) -> str:
    """Return the private DNS namespace of Cloud Map in which peers on ECS find each other."""
    return f"{fleet.name}.internal"


def format_interruption_queue(fleet: Fleet) -> str:
    """Return the name of the queue that notifies Karpenter of interrupted nodes."""
    return f"{fleet.name}-interruptions"
