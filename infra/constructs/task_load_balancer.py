"""The internal Application Load Balancer with TLS before what clients of a deployment call on ECS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import TerraformOutput
from infra.constructs import alarm
from infra.constructs.fleet_stack import FleetStack, keep_until_unused
from infra.constructs.security_group import HTTPS, add_client_rules, add_rule, add_security_group
from infra.constructs.task_place import TaskPlace
from llm_serving.services.load_balancer import StackLoadBalancer
from llm_serving.services.rendered import split_location
from llm_serving.services.service import Service

_TLS_POLICY = "ELBSecurityPolicy-TLS13-1-2-2021-06"
"""TLS 1.2 and 1.3. Source: ELB documentation, "Security policies for your Application Load Balancer", 2026-11."""

_DAY_S = 86400
CERTIFICATE_DAYS = 21
"""ACM's own warnings begin 45 days before the end, when its renewal should be over. Source: ACM API reference,
ExpiryEventsConfiguration, 2026-11."""

_NAME_PREFIX_LENGTH = 5
"""ELB's names have 32 characters at most; Terraform appends 26 of its own to a prefix of up to six."""


@dataclass(frozen=True)
class TaskLoadBalancer:
    """What a service needs to be called by it."""

    target_group: aws.lb_target_group.LbTargetGroup
    listener: aws.lb_listener.LbListener


def add_load_balancer(
    stack: FleetStack,
    deployment: str,
    entry: Service,
    settings: StackLoadBalancer | None,
    place: TaskPlace,
    *,
    entry_group: aws.security_group.SecurityGroup,
    health_path: str,
) -> TaskLoadBalancer | None:
    """Add the load balancer, its listener, the target group that the entry's tasks register with, and its output.

    Args:
        settings: None where the deployment has none.
        health_path: answers 200 as long as the process lives: ECS replaces tasks that fail this.
    """
    if settings is None:
        return None
    group = _add_security_group(stack, deployment, entry.port, entry_group, place, settings.clients)
    prefix = f"{deployment[:_NAME_PREFIX_LENGTH]}-"
    balancer = _add_balancer(stack, deployment, settings, prefix, place, group)
    target_group = _add_target_group(stack, entry.port, settings, prefix, place.network.vpc_id, health_path)
    lb_listener = aws.lb_listener
    listener = lb_listener.LbListener(
        stack,
        "balancer-https",
        load_balancer_arn=balancer.arn,
        port=443,
        protocol="HTTPS",
        ssl_policy=_TLS_POLICY,
        certificate_arn=settings.certificate,
        default_action=[lb_listener.LbListenerDefaultAction(type="forward", target_group_arn=target_group.arn)],
    )
    if settings.web_acl:
        aws.wafv2_web_acl_association.Wafv2WebAclAssociation(
            stack, "balancer-web-acl", resource_arn=balancer.arn, web_acl_arn=settings.web_acl
        )
    _add_certificate_alarm(stack, deployment, settings.certificate)
    description = "Where a name of the certificate should lead: a CNAME or alias"
    TerraformOutput(stack, "load_balancer", value=balancer.dns_name, description=description)
    return TaskLoadBalancer(target_group, listener)


def _add_balancer(
    stack: FleetStack,
    deployment: str,
    settings: StackLoadBalancer,
    prefix: str,
    place: TaskPlace,
    group: aws.security_group.SecurityGroup,
) -> aws.lb.Lb:
    log_bucket, log_prefix = split_location(settings.access_logs)
    return aws.lb.Lb(
        stack,
        "balancer",
        name_prefix=prefix,
        internal=True,
        load_balancer_type="application",
        subnets=place.network.subnets,
        security_groups=[group.id],
        access_logs={"enabled": True, "bucket": log_bucket, "prefix": log_prefix} if log_bucket else None,
        idle_timeout=settings.idle_timeout_s,
        drop_invalid_header_fields=True,
        tags={"Name": f"{stack.fleet.name}-{deployment}"},
    )


def _add_certificate_alarm(stack: FleetStack, deployment: str, certificate: str) -> None:
    """Add the alarm on a load balancer's certificate that ends soon.

    It keeps ringing once the certificate has ended, and ACM sends nothing of it any more.
    """
    alarm.add_alarm(
        stack,
        f"{stack.fleet.name}-{deployment}",
        "certificate",
        alarm.find_metric("days", "certificate-days", {"CertificateArn": certificate}, "Minimum"),
        description=f"The certificate of {deployment}'s load balancer ends within {CERTIFICATE_DAYS} days",
        signal="certificate-days",
        condition=alarm.Condition(
            CERTIFICATE_DAYS, comparison="LessThanThreshold", period_s=_DAY_S, periods=1, missing="ignore"
        ),
    )


def _add_target_group(
    stack: FleetStack, port: int, settings: StackLoadBalancer, prefix: str, vpc_id: str, health_path: str
) -> aws.lb_target_group.LbTargetGroup:
    target_group = aws.lb_target_group.LbTargetGroup(
        stack,
        "balancer-routers",
        name_prefix=prefix,
        vpc_id=vpc_id,
        target_type="ip",
        port=port,
        protocol="HTTP",
        deregistration_delay=str(settings.drain_s),
        load_balancing_algorithm_type="least_outstanding_requests",
        health_check={
            "path": health_path,
            "matcher": "200",
            "interval": 10,
            "timeout": 5,
            "healthy_threshold": 2,
            "unhealthy_threshold": 3,
        },
    )
    keep_until_unused(target_group)
    return target_group


def _add_security_group(
    stack: FleetStack,
    deployment: str,
    port: int,
    entry_group: aws.security_group.SecurityGroup,
    place: TaskPlace,
    clients: Sequence[str],
) -> aws.security_group.SecurityGroup:
    group = add_security_group(
        stack,
        "balancer-group",
        name=f"{stack.fleet.name}-{deployment}-balancer",
        description=f"Load balancer of {deployment}",
        vpc_id=place.network.vpc_id,
    )
    add_client_rules(stack, "balancer-from", group, "Clients", HTTPS, clients)
    if not clients:
        add_rule(stack, "balancer-from-vpc", group, "in", "Clients in the VPC", HTTPS, peer=place.vpc)
    add_rule(stack, "balancer-to-routers", group, "out", "Requests and health checks", port, peer=entry_group)
    add_rule(stack, "router-from-balancer", entry_group, "in", "Requests and health checks", port, peer=group)
    return group
