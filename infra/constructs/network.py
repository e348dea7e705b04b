"""The fleet's network: a new VPC, private by default, or an existing one; and how other stacks find it, by tags or ids.

Others look it up, and do not read the network stack's state: a stack then needs no right to that state, and finds a
network just as well that was made some other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infra.bindings import aws
from infra.constructs import endpoint_policy, iam
from infra.constructs.bucket import add_bucket
from infra.constructs.fleet_stack import FleetStack, format_expression
from infra.constructs.key import add_key
from infra.constructs.security_group import HTTPS, Peer, VpcRanges, add_rule, add_security_group
from llm_serving.catalog.registry import format_endpoint_service
from llm_serving.fleet import addresses, endpoints, names
from llm_serving.fleet.aws_limits import build_bucket_name, convert_to_days
from llm_serving.fleet.model import ExistingNetwork, NewNetwork


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
    source = f"data.aws_vpc.{vpc.friendly_unique_id}"
    return VpcRanges(
        primary=vpc.cidr_block,
        secondary=format_expression(
            f"setsubtract({source}.cidr_block_associations[*].cidr_block, [{source}.cidr_block])"
        ),
    )


@dataclass(frozen=True)
class Network:
    """Ids, as tokens."""

    vpc_id: str
    private_subnets: dict[str, str]
    """By zone."""

    @property
    def subnets(self) -> list[str]:
        """The private subnets, one in each zone."""
        return list(self.private_subnets.values())


def add_vpc(stack: FleetStack, network: NewNetwork) -> Network:
    """Add a VPC with a private subnet a zone. Nothing in it has a public address but the NAT gateways."""
    vpc = aws.vpc.Vpc(
        stack,
        "vpc",
        cidr_block=network.cidr,
        # Interface endpoints answer under the services' own names, which takes both.
        enable_dns_support=True,
        enable_dns_hostnames=True,
        tags={"Name": stack.fleet.name},
    )
    # Resources without an explicit security group have no network access. Said as empty lists, or Terraform would not
    # notice a rule that somebody adds later.
    default_group = aws.default_security_group.DefaultSecurityGroup(
        stack, "default", vpc_id=vpc.id, tags={"Name": f"{stack.fleet.name}-default-closed"}
    )
    default_group.add_override("ingress", [])
    default_group.add_override("egress", [])
    cidrs = {zone: addresses.compute_private_cidr(network.cidr, zone) for zone in stack.fleet.zones}
    subnets = {zone: _add_subnet(stack, vpc, "private", zone, cidr) for zone, cidr in cidrs.items()}
    tables = {zone: _add_private_routes(stack, vpc, zone, subnets[zone]) for zone in stack.fleet.zones}
    if network.nat:
        _add_nat_gateways(stack, network, vpc, tables)
    aws.vpc_endpoint.VpcEndpoint(
        stack,
        "s3",
        vpc_id=vpc.id,
        service_name=format_endpoint_service("s3", stack.fleet.region),
        vpc_endpoint_type="Gateway",
        route_table_ids=[table.id for table in tables.values()],
        policy=endpoint_policy.build_s3_policy(stack, network.endpoint_access),
        tags={"Name": f"{stack.fleet.name}-s3"},
    )
    _add_interface_endpoints(stack, network, vpc, [subnet.id for subnet in subnets.values()])
    if network.flow_logs:
        _add_flow_logs(stack, vpc_id=vpc.id, retention_s=network.flow_logs)
    return Network(vpc.id, {zone: subnet.id for zone, subnet in subnets.items()})


def _add_subnet(
    stack: FleetStack, vpc: aws.vpc.Vpc, part: Literal["private", "public"], zone: str, cidr: str
) -> aws.subnet.Subnet:
    """Add a zone's subnet, with the tag by which the load balancer controller finds it."""
    role = {"private": "internal-elb", "public": "elb"}[part]
    found_by = {} if stack.fleet.orchestrator == "ecs" else {f"kubernetes.io/role/{role}": "1"}
    return aws.subnet.Subnet(
        stack,
        f"{part}-{zone}",
        vpc_id=vpc.id,
        availability_zone=zone,
        cidr_block=cidr,
        map_public_ip_on_launch=False,
        tags={"Name": f"{stack.fleet.name}-{part}-{zone}", **found_by},
    )


def _add_private_routes(
    stack: FleetStack, vpc: aws.vpc.Vpc, zone: str, subnet: aws.subnet.Subnet
) -> aws.route_table.RouteTable:
    table = aws.route_table.RouteTable(
        stack, f"private-{zone}-routes", vpc_id=vpc.id, tags={"Name": f"{stack.fleet.name}-private-{zone}"}
    )
    aws.route_table_association.RouteTableAssociation(
        stack, f"private-{zone}-association", subnet_id=subnet.id, route_table_id=table.id
    )
    return table


def _add_nat_gateways(
    stack: FleetStack, network: NewNetwork, vpc: aws.vpc.Vpc, tables: Mapping[str, aws.route_table.RouteTable]
) -> None:
    """Add public subnets with a NAT gateway for each zone: losing one zone leaves the others' way out intact."""
    gateway = aws.internet_gateway.InternetGateway(stack, "internet", vpc_id=vpc.id, tags={"Name": stack.fleet.name})
    public = aws.route_table.RouteTable(
        stack, "public-routes", vpc_id=vpc.id, tags={"Name": f"{stack.fleet.name}-public"}
    )
    aws.route.Route(
        stack, "public-way-out", route_table_id=public.id, destination_cidr_block="0.0.0.0/0", gateway_id=gateway.id
    )
    for zone, table in tables.items():
        cidr = addresses.compute_public_cidr(network.cidr, zone)
        subnet = _add_subnet(stack, vpc, "public", zone, cidr)
        aws.route_table_association.RouteTableAssociation(
            stack, f"public-{zone}-association", subnet_id=subnet.id, route_table_id=public.id
        )
        tags = {"Name": f"{stack.fleet.name}-nat-{zone}"}
        address = aws.eip.Eip(stack, f"nat-{zone}-address", domain="vpc", tags=tags)
        nat = aws.nat_gateway.NatGateway(
            stack,
            f"nat-{zone}",
            allocation_id=address.allocation_id,
            subnet_id=subnet.id,
            tags={"Name": f"{stack.fleet.name}-{zone}"},
            depends_on=[gateway],
        )
        aws.route.Route(
            stack,
            f"private-{zone}-way-out",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            nat_gateway_id=nat.id,
        )


def _add_interface_endpoints(stack: FleetStack, network: NewNetwork, vpc: aws.vpc.Vpc, subnet_ids: list[str]) -> None:
    group = add_security_group(
        stack,
        "endpoints",
        name=f"{stack.fleet.name}-endpoints",
        description="HTTPS from inside the VPC to AWS services",
        vpc_id=vpc.id,
    )
    name, title = "endpoints-https", f"{stack.fleet.name}-endpoints-https"
    add_rule(stack, name, group, "in", "HTTPS from inside the VPC", HTTPS, peer=Peer(cidr=vpc.cidr_block), title=title)
    for row in endpoints.list_own(stack.fleet):
        name = row.service.replace(".", "-")
        service_name = format_endpoint_service(row.service, stack.fleet.region)
        aws.vpc_endpoint.VpcEndpoint(
            stack,
            name,
            vpc_id=vpc.id,
            service_name=service_name,
            policy=endpoint_policy.add_policy(stack, name, service_name, network.endpoint_access),
            vpc_endpoint_type="Interface",
            subnet_ids=subnet_ids,
            security_group_ids=[group.id],
            private_dns_enabled=True,
            tags={"Name": f"{stack.fleet.name}-{row.service}"},
        )


def find_existing_vpc(stack: FleetStack, network: ExistingNetwork) -> Network:
    """Look up an existing VPC; change nothing in it.

    Its owner provides the endpoints too, the S3 gateway endpoint above all: a second interface endpoint for a service
    collides with the first one's private DNS name, and routes of tables that are not ours are not ours to change.
    """
    vpc = aws.data_aws_vpc.DataAwsVpc(stack, "vpc", id=network.vpc)
    subnets = {}
    for zone, subnet_id in zip(stack.fleet.zones, network.private_subnets, strict=True):
        subnet = aws.data_aws_subnet.DataAwsSubnet(stack, f"private-{zone}", id=subnet_id)
        _add_postconditions(subnet, zone, subnet_id)
        subnets[zone] = subnet.id
    return Network(vpc.id, subnets)


def _add_postconditions(subnet: aws.data_aws_subnet.DataAwsSubnet, zone: str, subnet_id: str) -> None:
    """Let Terraform fail if a subnet is not in the zone or VPC that the fleet file says."""
    subnet.add_override(
        "lifecycle",
        {
            "postcondition": [
                {
                    "condition": format_expression(f'self.availability_zone == "{zone}"'),
                    "error_message": f"{subnet_id} is not in {zone}. Fix: list private_subnets in the order of zones.",
                },
                {
                    "condition": format_expression("self.vpc_id == data.aws_vpc.vpc.id"),
                    "error_message": f"{subnet_id} is not in the fleet's VPC. Fix: use private subnets of that VPC.",
                },
                {
                    "condition": format_expression("!self.map_public_ip_on_launch"),
                    "error_message": f"{subnet_id} gives public addresses. Fix: use a private subnet.",
                },
            ]
        },
    )


def _add_flow_logs(stack: FleetStack, *, vpc_id: str, retention_s: float) -> None:
    """Add flow logs of all traffic, accepted and rejected, deleted after `retention_s` seconds and with the fleet.

    They go to an encrypted bucket of their own; CloudWatch Logs would cost twice as much.
    """
    kms_key = add_key(
        stack,
        "flow-logs-key",
        alias=f"{stack.fleet.name}-flow-logs",
        description=f"Flow logs of the fleet {stack.fleet.name}",
        grants=iam.read_statements(stack, "flow-logs-key"),
    )
    bucket_name = build_bucket_name(stack.fleet.name, "flows", stack.account.id, stack.account.region)
    bucket = add_bucket(
        stack,
        "flow-logs",
        bucket_name=bucket_name,
        key_arn=kms_key.arn,
        old_versions_days=1,
        expire_days=convert_to_days(retention_s),
        grants=iam.read_statements(stack, "flow-logs-bucket", bucket=bucket_name),
        keep=False,
    )
    flow_log = aws.flow_log.FlowLog(
        stack,
        "flow-log",
        vpc_id=vpc_id,
        traffic_type="ALL",
        log_destination_type="s3",
        log_destination=bucket.arn,
        tags={"Name": stack.fleet.name},
    )
    # Else AWS writes a policy of its own into the bucket first, and the next plan takes it away.
    flow_log.add_override("depends_on", ["aws_s3_bucket_policy.flow-logs-policy"])
