"""What the instances of an ECS cluster are to AWS: their role and their security group."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import policy
from infra.constructs import security_group as security_group
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.role import add_role


def add_instance_profile(stack: FleetStack) -> aws.iam_instance_profile.IamInstanceProfile:
    """Add the instances' role and the instance profile that holds it.

    Only the agent has it: images are pulled, logs shipped and weights read with roles of the tasks' own.
    """
    instance_role = add_role(
        stack,
        "instance",
        description=f"Lets instances join the cluster {stack.cluster_name}",
        trust=policy.build_trust_policy(f"ec2.{stack.account.dns_suffix}"),
        statements=[
            *policy.read_statements(stack, "container-instances"),
            *policy.read_statements(stack, "session-manager"),
        ],
    )
    return aws.iam_instance_profile.IamInstanceProfile(
        stack, "instance-profile", name=instance_role.name, role=instance_role.name
    )


def add_security_group(stack: FleetStack, *, vpc_id: str) -> aws.security_group.SecurityGroup:
    """Add the instances' security group: no ingress, and HTTPS egress only.

    Tasks with network interfaces of their own (awsvpc) have groups of their own.
    """
    name = f"{stack.fleet.name}-{stack.node.id}-machines"
    group = security_group.add_security_group(
        stack, "machines", name=name, description="Machines of the ECS cluster", vpc_id=vpc_id
    )
    # Endpoints of AWS in the VPC, S3 by its gateway, and registries, whose addresses nobody can list.
    rule, description, title = "machines-https", "HTTPS to AWS and to registries", f"{name}-https"
    security_group.add_rule(stack, rule, group, "out", description, security_group.HTTPS, cidr="0.0.0.0/0", title=title)
    return group
