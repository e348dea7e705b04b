"""The network stack's VPC and subnets as other stacks find them: by their tags, or by the ids in the fleet file.

Looked up and not read from the network stack's state: a stack then needs no right to that state, and finds a network
just as well that was made some other way.
"""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs.expression import format_expression
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.security_group import VpcRanges
from infra.constructs.vpc import Network, find_existing_vpc
from llm_serving.fleet import names
from llm_serving.fleet.model import ExistingNetwork


def find_network(stack: FleetStack) -> Network:
    """Add the data sources that find the fleet's network; the network stack must be applied before."""
    if isinstance(stack.fleet.network, ExistingNetwork):
        return find_existing_vpc(stack, stack.fleet.network)
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "vpc", tags=names.build_vpc_tags(stack.fleet))
    return Network(
        vpc.id,
        {
            zone: aws.data_aws_subnet.DataAwsSubnet(
                stack, f"private-{zone}", vpc_id=vpc.id, tags=names.build_private_subnet_tags(stack.fleet, zone)
            ).id
            for zone in stack.fleet.zones
        },
    )


def find_ranges(stack: FleetStack, vpc_id: str) -> VpcRanges:
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "range", id=vpc_id)
    data = f"data.aws_vpc.{vpc.friendly_unique_id}"
    return VpcRanges(
        primary=vpc.cidr_block,
        secondary=format_expression(f"setsubtract({data}.cidr_block_associations[*].cidr_block, [{data}.cidr_block])"),
    )
