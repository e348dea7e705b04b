"""Capacity of an ECS cluster: an Auto Scaling group and a capacity provider for each instance group, and their rights.

How managed scaling, termination protection and draining work together: ECS sets each group's desired size by the tasks
that wait. Instances start protected from scale-in; ECS removes the protection from one that has no task left. An
instance that is terminated anyway (spot, a refresh) is drained first.

ECS does not fall back by itself: a task goes to one provider of its strategy, by weight, and waits there for capacity.
So each choice of a pool has its own strategy, with equal weights for its zones, and its own service;
`infra.functions.ecs_fallback` moves tasks from one service to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs import iam, machines, security_group
from infra.constructs.fleet_stack import FleetStack, format_reference, keep_until_unused
from infra.constructs.iam import add_role
from llm_serving.fleet import ecs_node_config, groups, machine_images
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet


def compute_target_percent(group: Group) -> int:
    """Return the percent of the instances that tasks should fill; without spare ones all, and warm ones wait stopped.

    ECS keeps `100 * needed / percent` instances, rounded up, and the group's minimum where nothing is needed.
    Source: ECS developer guide, "Optimize Amazon ECS cluster auto scaling", 2026-11.
    """
    return max(1, 100 * (group.max_size - group.spare) // group.max_size)


@dataclass(frozen=True)
class CapacityProviderContext(machines.MachineContext):
    """Network of container instances, and the instance profile with which they join the cluster."""

    instance_profile: aws.iam_instance_profile.IamInstanceProfile


def add_capacity_provider(
    context: CapacityProviderContext, group: Group
) -> aws.ecs_capacity_provider.EcsCapacityProvider:
    """Add the group's launch template, Auto Scaling group and capacity provider."""
    template = machines.add_template(
        context,
        group,
        text=ecs_node_config.render(group, context.stack.cluster_name),
        image_parameter=machine_images.format_parameter(context.stack.fleet, group),
        instance_profile_arn=context.instance_profile.arn,
    )
    scaling_group = _add_scaling_group(context, group, template)
    provider = aws.ecs_capacity_provider.EcsCapacityProvider(
        context.stack,
        group.name,
        name=groups.format_provider_name(context.stack.fleet, group),
        auto_scaling_group_provider={
            "auto_scaling_group_arn": scaling_group.arn,
            "managed_termination_protection": "ENABLED",
            "managed_draining": "ENABLED",
            "managed_scaling": {
                "status": "ENABLED",
                "target_capacity": compute_target_percent(group),
                "minimum_scaling_step_size": 1,
                "maximum_scaling_step_size": group.max_size,
            },
        },
    )
    # ECS deletes no provider that a cluster has: DELETE_FAILED, for which the AWS provider waits 20 minutes. With this,
    # the association goes first. Sources: hashicorp/terraform-provider-aws#14393 and #48156.
    keep_until_unused(provider)
    return provider


def add_association(
    context: CapacityProviderContext,
    providers: Sequence[aws.ecs_capacity_provider.EcsCapacityProvider],
    default: Sequence[str],
) -> None:
    """Hand the providers to the cluster; `default` names those that tasks without a strategy go to."""
    cluster_providers = aws.ecs_cluster_capacity_providers
    cluster_providers.EcsClusterCapacityProviders(
        context.stack,
        "capacity-providers",
        cluster_name=context.cluster.name,
        # Fargate's two are AWS's own: a cluster has them by their names, and a strategy takes no others beside them.
        capacity_providers=[*(provider.name for provider in providers), "FARGATE", "FARGATE_SPOT"],
        default_capacity_provider_strategy=[
            cluster_providers.EcsClusterCapacityProvidersDefaultCapacityProviderStrategy(
                capacity_provider=name, weight=1
            )
            for name in default
        ],
    )


def _add_scaling_group(
    context: CapacityProviderContext, group: Group, template: aws.launch_template.LaunchTemplate
) -> aws.autoscaling_group.AutoscalingGroup:
    autoscaling_group = aws.autoscaling_group
    version = format_reference(template, "latest_version")
    is_single_type = group.purchase_option != "spot" and len(group.types) == 1
    scaling_group = autoscaling_group.AutoscalingGroup(
        context.stack,
        f"{group.name}-machines",
        name=groups.format_scaling_group_name(context.stack.fleet, group),
        min_size=group.min_size,
        max_size=group.max_size,
        vpc_zone_identifier=context.select_subnets(group),
        launch_template={"id": template.id, "version": version} if is_single_type else None,
        mixed_instances_policy=None if is_single_type else _build_mixed_policy(group, template, version),
        protect_from_scale_in=True,
        # Accelerators may take hours to come; an apply does not wait for them.
        wait_for_capacity_timeout="0",
        # The provider is gone by then, and with it who would end the lifecycle hook of managed draining: an instance
        # would wait out the hook's hour, and Terraform ten minutes. No task is left: ECS takes no provider off a
        # cluster before. Source: EC2 Auto Scaling API reference, DeleteAutoScalingGroup, ForceDelete, 2026-11.
        force_delete=True,
        health_check_type="EC2",
        # A replacement starts while a spot instance that EC2 may soon take still serves.
        capacity_rebalance=group.purchase_option == "spot" or None,
        instance_refresh=_build_refresh(),
        # A fixed number of stopped instances: with a minimum alone it would fill to the maximum. Source: EC2 Auto
        # Scaling user guide, "Warm pools", 2026-11.
        warm_pool={"pool_state": "Stopped", "min_size": group.warm, "max_group_prepared_capacity": group.warm}
        if group.warm
        else None,
        tag=[
            autoscaling_group.AutoscalingGroupTag(key=key, value=value, propagate_at_launch=True)
            for key, value in _build_tags(context.stack.fleet, group, context.stack.node.id).items()
        ],
        # Instances go before the cluster that they are in.
        depends_on=[context.cluster],
    )
    if group.purchase_option == "capacity-block":
        # Until the block starts, and from shortly before its end on: `infra.functions.gpu_repair`.
        scaling_group.add_override("lifecycle.ignore_changes", ["suspended_processes"])
    return scaling_group


def _build_refresh() -> dict[str, Any]:
    """Build how a changed launch template, as by another AMI, reaches instances that run: a tenth of them at a time.

    At least one at a time: it is terminated first, for there is no spare GPU, and drained before, which
    managed draining does. ECS protects instances with tasks from scale-in, and a refresh must replace them as well.

    Sources: ECS developer guide, "Safely stop Amazon ECS workloads running on EC2 instances"; EC2 Auto Scaling API
    reference, RefreshPreferences; 2026-11. The AWS provider starts it at every change of the template.
    """
    return {
        "strategy": "Rolling",
        "preferences": {
            "min_healthy_percentage": 90,
            "max_healthy_percentage": 100,
            "instance_warmup": "300",  # from an instance's start until it takes tasks
            "skip_matching": True,
            "scale_in_protected_instances": "Refresh",
        },
    }


def _build_tags(fleet: Fleet, group: Group, stack: str) -> dict[str, str]:
    """Build tags of their own: the provider's default tags do not reach Auto Scaling groups."""
    name = groups.format_scaling_group_name(fleet, group)
    group_tags = {"fleet": fleet.name, "stack": stack, "pool": group.pool, "Name": name}
    # ECS sets the last one itself; where it is missing here, Terraform would take it away and managed scaling with it.
    return {**fleet.tags, **group_tags, "AmazonECSManaged": "true"}


def _build_mixed_policy(group: Group, template: aws.launch_template.LaunchTemplate, version: str) -> dict[str, Any]:
    """Several types, or spot: in one group either all is spot or nothing is."""
    spot = group.purchase_option == "spot"
    override = aws.autoscaling_group.AutoscalingGroupMixedInstancesPolicyLaunchTemplateOverride
    return {
        "instances_distribution": {
            "on_demand_base_capacity": 0,
            "on_demand_percentage_above_base_capacity": 0 if spot else 100,
            "on_demand_allocation_strategy": None if spot else group.allocation_strategy,
            "spot_allocation_strategy": group.allocation_strategy if spot else None,
        },
        "launch_template": {
            "launch_template_specification": {"launch_template_id": template.id, "version": version},
            "override": [override(instance_type=instance_type) for instance_type in group.types],
        },
    }


def add_instance_profile(stack: FleetStack) -> aws.iam_instance_profile.IamInstanceProfile:
    """Add the instances' role and the instance profile that holds it.

    Only the agent has it: images are pulled, logs shipped and weights read with roles of the tasks' own.
    """
    instance_role = add_role(
        stack,
        "instance",
        description=f"Lets instances join the cluster {stack.cluster_name}",
        trust=iam.build_trust_policy(f"ec2.{stack.account.dns_suffix}"),
        statements=[
            *iam.read_statements(stack, "container-instances"),
            *iam.read_statements(stack, "session-manager"),
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
    security_group.add_rule(
        stack, rule, group, "out", description, security_group.HTTPS, peer=security_group.ANYWHERE, title=title
    )
    return group
