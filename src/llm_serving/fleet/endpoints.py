"""The interface endpoints that private nodes need, each with its reason.

An endpoint costs about 0.01 USD an hour and zone, so each row earns its place, and the few calls that need no endpoint
where there is a NAT gateway have one in a closed network alone. Left out on purpose:
- iam, pricing: without endpoints in most regions. Karpenter calls neither in its mode for isolated VPCs.
- ec2messages: SSM Agent 3.3.40 and later use ssmmessages alone where it is reachable.
- s3: a gateway endpoint, which is free, and which ECR's image layers need anyway.

Sources, read 2026-11: EKS user guide, "Deploy private clusters with limited internet access"; ECS developer guide,
"Amazon ECS interface VPC endpoints"; ECR user guide, "Amazon ECR interface VPC endpoints"; Systems Manager user guide,
"ec2messages, ssmmessages, and other API operations"; Karpenter 1.14, charts/karpenter/values.yaml, `isolatedVPC`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from llm_serving.catalog import account_needs
from llm_serving.catalog.eks import CsiDriver
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.fleet.pool import Orchestrator

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

    closed_only: bool = False
    """Whether only networks without NAT gateways have it; elsewhere the few calls go by the internet."""

    csi_driver: CsiDriver | None = None
    """The driver of volumes that calls it; None where no driver does."""


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
    Endpoint("sqs", _EKS, "Karpenter reads what EC2 announces", closed_only=True),
    Endpoint("kms", _ECS, "ECS Exec encrypts its sessions with the cluster's key", closed_only=True),
    Endpoint("elasticfilesystem", _EKS, "EFS's driver asks for file systems", closed_only=True, csi_driver="efs"),
    Endpoint("fsx", _EKS, "FSx's driver asks for file systems", closed_only=True, csi_driver="fsx"),
    Endpoint("data-servicediscovery", _ECS, "routers ask Cloud Map for the addresses of engines", closed_only=True),
)
"""What every fleet needs; the kinds of work add theirs."""


def list_all() -> list[Endpoint]:
    """Return the rows above, and those of each kind of work."""
    rows = list(ENDPOINTS)
    for needs in account_needs.load_all().values():
        rows += [
            Endpoint(service, frozenset(row.orchestrators), row.reason, row.closed_only)
            for service, row in needs.endpoints.items()
        ]
    return rows


def list_own(fleet: Fleet) -> tuple[Endpoint, ...]:
    """Return the rows that a fleet creates: none in an existing network."""
    if not isinstance(fleet.network, NewNetwork):
        return ()
    return list_required(fleet.orchestrator, closed=fleet.is_closed, csi_drivers=fleet.eks.csi_drivers)


def list_required(
    orchestrator: Literal["eks", "ecs", "both"], *, closed: bool = False, csi_drivers: Collection[CsiDriver] = ()
) -> tuple[Endpoint, ...]:
    """Return the rows that nodes of an orchestrator call, each service once.

    Args:
        closed: the network has no way to the internet.
        csi_drivers: drivers of volumes beside EBS's.
    """
    required = [
        row
        for row in list_all()
        if (orchestrator == "both" or orchestrator in row.needed_by)
        and (closed or not row.closed_only)
        and (row.csi_driver is None or row.csi_driver in csi_drivers)
    ]
    return tuple({row.service: row for row in reversed(required)}.values())[::-1]  # each service once
