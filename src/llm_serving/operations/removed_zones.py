"""Zones that the fleet file has no more: their subnets are deleted last, and only once nothing is in them.

A cluster of EKS stays in the zones that it was made in, and so does its node group of the system.

EC2 deletes no subnet that a network interface is in. Applied before the stacks whose machines are there, as the network
is otherwise, Terraform would try for twenty minutes and fail.

Source: EC2 API reference, DeleteSubnet; hashicorp/terraform-provider-aws 5.100, aws_subnet, Timeouts; EKS user guide,
"Amazon EKS VPC and subnet requirements", 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_serving.aws import session
from llm_serving.fleet import names
from llm_serving.fleet.checks import join_words
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import NETWORK, StackPlan
from llm_serving.settings.errors import CheckFailed

_KIND = "aws_subnet"

_MAX_SHOWN = 5


def order_waves(context: FleetContext, approved: Mapping[str, StackPlan]) -> list[dict[str, Path]]:
    """Return the waves to apply: the network last where its plan deletes subnets.

    Raises:
        CheckFailed: the file has another zone in the place of one, so that the network would have to be first and last.
    """
    if not _deletes_subnets(approved):
        return context.waves
    if any(plan.deferred_reason for plan in approved.values()):
        raise CheckFailed(
            f"{context.document.path}: zones: one is added and another removed, whose subnets are in use until the new "
            "one is. Nothing was changed. Fix: add the zone, apply and deploy each blueprint; then remove the other, "
            "deploy, and apply again."
        )
    others = ({name: folder for name, folder in wave.items() if name != NETWORK} for wave in context.waves)
    return [*filter(None, others), {NETWORK: context.folders[NETWORK]}]


def require_clusters_zones(context: FleetContext, approved: Mapping[str, StackPlan]) -> None:
    """Require that the file has the zones that a cluster of EKS was made in.

    Raises:
        CheckFailed: it lacks one; the message names it with the fix.
        Unavailable: AWS refuses, or does not answer.
    """
    if not context.fleet.creates_eks or not _deletes_subnets(approved):
        return
    subnet_ids: list[str] = []
    with session.translate_errors(), session.ignore_errors("ResourceNotFoundException"):
        cluster = context.aws.client("eks").describe_cluster(name=names.format_cluster_name(context.fleet))["cluster"]
        subnet_ids = cluster["resourcesVpcConfig"]["subnetIds"]
    if not subnet_ids:
        return
    with session.translate_errors():
        subnets = context.aws.client("ec2").describe_subnets(SubnetIds=subnet_ids)["Subnets"]
    if lacking := sorted({subnet["AvailabilityZone"] for subnet in subnets} - {*context.fleet.zones}):
        raise CheckFailed(
            f"{context.document.path}: zones: the cluster of EKS was made in {join_words(lacking)}, and EKS moves no "
            "cluster to other zones. Nothing was changed. Fix: add it to `zones` again; pools leave a zone by `zones` "
            "of their own."
        )


def require_empty(context: FleetContext, approved: Mapping[str, StackPlan]) -> None:
    """Require that nothing is left in the subnets that the network's plan deletes.

    Raises:
        CheckFailed: something is; the message names it with the fix.
        Unavailable: AWS refuses, or does not answer.
    """
    if not _deletes_subnets(approved):
        return
    with session.translate_errors():
        leftovers = list(_list_left(context.aws.client("ec2"), context))
    if leftovers:
        shown_leftovers = [
            *leftovers[:_MAX_SHOWN],
            *([f"{len(leftovers) - _MAX_SHOWN} more"] if leftovers[_MAX_SHOWN:] else []),
        ]
        raise CheckFailed(
            f"{context.document.path}: zones: still in subnets of a zone that is removed: "
            f"{join_words(shown_leftovers)}. The network is unchanged. Fix: deploy each blueprint with this file; on "
            "EKS run `blueprint platform install` and drain the nodes there. Then run this again."
        )


def _deletes_subnets(approved: Mapping[str, StackPlan]) -> bool:
    return NETWORK in approved and any(
        "delete" in change.actions for change in approved[NETWORK].plan.select(_KIND).values()
    )


def _list_left(ec2: Any, context: FleetContext) -> Iterator[str]:
    """Yield what the network interfaces in subnets of removed zones belong to, but for the network's own."""
    own = [{"Name": "tag:fleet", "Values": [context.fleet.name]}, {"Name": "tag:stack", "Values": [NETWORK]}]

    zones = {
        subnet["SubnetId"]: subnet["AvailabilityZone"]
        for subnet in session.list_all(ec2, "describe_subnets", "Subnets", Filters=own)
        if subnet["AvailabilityZone"] not in context.fleet.zones
    }
    if not zones:
        return
    in_subnets = [{"Name": "subnet-id", "Values": list(zones)}]
    of_network = {
        *(
            interface
            for endpoint in session.list_all(ec2, "describe_vpc_endpoints", "VpcEndpoints", Filters=own)
            for interface in endpoint.get("NetworkInterfaceIds", ())
        ),
        *(
            address.get("NetworkInterfaceId")
            for gateway in session.list_all(ec2, "describe_nat_gateways", "NatGateways", Filter=own)
            for address in gateway.get("NatGatewayAddresses", ())
        ),
    }
    for interface in session.list_all(ec2, "describe_network_interfaces", "NetworkInterfaces", Filters=in_subnets):
        if interface["NetworkInterfaceId"] not in of_network:
            user = interface.get("Attachment", {}).get("InstanceId") or interface.get("Description")
            yield f"{user or interface['NetworkInterfaceId']} ({zones[interface['SubnetId']]})"
