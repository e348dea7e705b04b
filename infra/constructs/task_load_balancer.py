"""The internal Application Load Balancer with TLS before what clients of a deployment call on ECS."""

from __future__ import annotations

from dataclasses import dataclass

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.security_group import HTTPS, VpcRanges, add_rule, add_security_group
from llm_serving.services.load_balancer import StackLoadBalancer
from llm_serving.services.service import Service

_TLS_POLICY = "ELBSecurityPolicy-TLS13-1-2-2021-06"
"""TLS 1.2 and 1.3. Source: ELB documentation, "Security policies for your Application Load Balancer", 2026-11."""

_NAME_PREFIX_LENGTH = 5
"""ELB's names have 32 characters at most; Terraform appends 26 of its own to a prefix of up to six."""


@dataclass(frozen=True)
class TaskLoadBalancer:
    """What a service needs to be called by it."""

    balancer: aws.lb.Lb
    target_group: aws.lb_target_group.LbTargetGroup
    listener: aws.lb_listener.LbListener


def add_load_balancer(
    stack: FleetStack,
    deployment: str,
    entry: Service,
    settings: StackLoadBalancer,
    *,
    vpc_id: str,
    vpc: VpcRanges,
    subnet_ids: list[str],
    entry_group: aws.security_group.SecurityGroup,
    health_path: str,
) -> TaskLoadBalancer:
    """Add the load balancer, its listener, and the target group that the entry's tasks register with.

    Args:
        health_path: answers 200 as long as the process lives: ECS replaces tasks that fail this.
    """
    group = _add_security_group(stack, deployment, entry.port, entry_group, vpc_id=vpc_id, vpc=vpc)
    prefix = f"{deployment[:_NAME_PREFIX_LENGTH]}-"
    balancer = aws.lb.Lb(
        stack,
        "balancer",
        name_prefix=prefix,
        internal=True,
        load_balancer_type="application",
        subnets=subnet_ids,
        security_groups=[group.id],
        idle_timeout=settings.idle_timeout_s,
        drop_invalid_header_fields=True,
        tags={"Name": f"{stack.fleet.name}-{deployment}"},
    )
    target_group = _add_target_group(stack, entry.port, settings, prefix, vpc_id, health_path)
    e = aws.lb_listener
    listener = e.LbListener(
        stack,
        "balancer-https",
        load_balancer_arn=balancer.arn,
        port=443,
        protocol="HTTPS",
        ssl_policy=_TLS_POLICY,
        certificate_arn=settings.certificate,
        default_action=[e.LbListenerDefaultAction(type="forward", target_group_arn=target_group.arn)],
    )
    if settings.web_acl:
        aws.wafv2_web_acl_association.Wafv2WebAclAssociation(
            stack, "balancer-web-acl", resource_arn=balancer.arn, web_acl_arn=settings.web_acl
        )
    return TaskLoadBalancer(balancer, target_group, listener)


def _add_target_group(
    stack: FleetStack, port: int, settings: StackLoadBalancer, prefix: str, vpc_id: str, health_path: str
) -> aws.lb_target_group.LbTargetGroup:
    t = aws.lb_target_group
    target_group = t.LbTargetGroup(
        stack,
        "balancer-routers",
        name_prefix=prefix,
        vpc_id=vpc_id,
        target_type="ip",
        port=port,
        protocol="HTTP",
        deregistration_delay=str(settings.drain_s),
        load_balancing_algorithm_type="least_outstanding_requests",
        health_check=t.LbTargetGroupHealthCheck(
            path=health_path, matcher="200", interval=10, timeout=5, healthy_threshold=2, unhealthy_threshold=3
        ),
    )
    target_group.add_override("lifecycle.create_before_destroy", True)
    return target_group


def _add_security_group(
    stack: FleetStack,
    deployment: str,
    port: int,
    entry_group: aws.security_group.SecurityGroup,
    *,
    vpc_id: str,
    vpc: VpcRanges,
) -> aws.security_group.SecurityGroup:
    """Add the load balancer's security group, which the entry lets in."""
    group = add_security_group(
        stack,
        "balancer-group",
        name=f"{stack.fleet.name}-{deployment}-balancer",
        description=f"Load balancer of {deployment}",
        vpc_id=vpc_id,
    )
    add_rule(stack, "balancer-from-vpc", group, "in", "Clients in the VPC", HTTPS, vpc=vpc)
    add_rule(stack, "balancer-to-routers", group, "out", "Requests and health checks", port, peer=entry_group)
    add_rule(stack, "router-from-balancer", entry_group, "in", "Requests and health checks", port, peer=group)
    return group
