"""The interface endpoints that private nodes need, each with its reason.

An endpoint costs about 0.01 USD an hour and zone, so each row earns its place. Left out on purpose:
- kms: S3, ECR and EBS decrypt on AWS's side; no node calls KMS.
- ec2messages: SSM Agent 3.3.40 and later use ssmmessages alone where it is reachable.
- s3: a gateway endpoint, which is free, and which ECR's image layers need anyway.

Sources, read 2026-11: EKS user guide, "Deploy private clusters with limited internet access"; ECS developer guide,
"Amazon ECS interface VPC endpoints"; ECR user guide, "Amazon ECR interface VPC endpoints"; Systems Manager user guide,
"ec2messages, ssmmessages, and other API operations".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Orchestrator = Literal["eks", "ecs"]
_BOTH: frozenset[Orchestrator] = frozenset({"eks", "ecs"})
_EKS: frozenset[Orchestrator] = frozenset({"eks"})
_ECS: frozenset[Orchestrator] = frozenset({"ecs"})


@dataclass(frozen=True)
class Endpoint:
    """One AWS service that nodes call."""

    service: str
    """Its name behind `com.amazonaws.REGION.`."""

    needed_by: frozenset[Orchestrator]
    reason: str


ENDPOINTS = (
    Endpoint("ecr.api", _BOTH, "asks for the right to pull an image"),
    Endpoint("ecr.dkr", _BOTH, "pulls an image's manifest; its layers come through S3"),
    Endpoint("logs", _BOTH, "ships the containers' logs"),
    Endpoint("sts", _BOTH, "turns a pod's or task's role into credentials, for the weights in S3 among others"),
    Endpoint("ssm", _BOTH, "reads AMI parameters, and registers a node for Session Manager"),
    Endpoint("ssmmessages", _BOTH, "carries Session Manager and ECS Exec: the way into a node without a public door"),
    Endpoint("ec2", _EKS, "the VPC CNI attaches network interfaces; the node asks what it is"),
    Endpoint("eks", _EKS, "a node learns its cluster's address and certificate"),
    Endpoint("eks-auth", _EKS, "Pod Identity hands credentials to pods"),
    Endpoint("elasticloadbalancing", _EKS, "the load balancer controller registers pods"),
    Endpoint("autoscaling", _EKS, "the cluster autoscaler sizes node groups"),
    Endpoint("ecs", _ECS, "the agent registers its node with the cluster"),
    Endpoint("ecs-agent", _ECS, "the agent takes its orders"),
    Endpoint("ecs-telemetry", _ECS, "the agent reports health and metrics"),
    Endpoint("secretsmanager", _ECS, "the agent fetches the secrets that a task definition names"),
)


def list_required(orchestrator: Literal["eks", "ecs", "both"]) -> tuple[Endpoint, ...]:
    """The rows that nodes of an orchestrator call."""
    return tuple(row for row in ENDPOINTS if orchestrator == "both" or orchestrator in row.needed_by)
