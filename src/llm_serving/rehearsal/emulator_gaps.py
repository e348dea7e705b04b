"""What the embedded AWS does not support: left out of a rehearsal by kind, counted, and shown with the reason.

The synthesized stack stays as it is; the override beside it changes this:

- `count` is 0, or `for_each` empty, for kinds of resources that the embedded AWS lacks. So a stack may read
  an attribute of such a resource only by a splat (`[*]`), or depend on it (depends_on).
- Changes are ignored in settings that it accepts and does not return.

The mocked provider's tests cover both: there every resource is planned whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SynthesizedStack = Mapping[str, Any]

REASONS: Mapping[str, str] = {
    "aws_appautoscaling_policy": "the embedded Application Auto Scaling cannot be asked for tags",
    "aws_appautoscaling_scheduled_action": "the embedded Application Auto Scaling has no target for it",
    "aws_appautoscaling_target": "the embedded Application Auto Scaling cannot be asked for tags",
    "aws_budgets_budget": "the embedded Budgets cannot be asked for tags",
    "aws_ecr_pull_through_cache_rule": "the embedded ECR caches no other registry",
    "aws_ecr_repository_creation_template": "the embedded ECR caches no other registry",
    "aws_eks_addon": "the embedded EKS has no add-ons",
    "aws_eks_access_entry": "the embedded EKS has no access entries",
    "aws_eks_access_policy_association": "the embedded EKS has no access entries",
    "aws_eks_pod_identity_association": "the embedded EKS has no Pod Identity",
    "aws_placement_group": "the embedded EC2 has no placement groups",
    "aws_ec2_capacity_reservation": "the embedded EC2 has no capacity reservations",
    "aws_lambda_invocation": "the embedded AWS runs no functions",
    "aws_resourcegroups_group": "the embedded Resource Groups holds no capacity reservations",
    "aws_resourcegroups_resource": "the embedded Resource Groups holds no capacity reservations",
    "aws_wafv2_web_acl_association": "the embedded WAF has none of your web ACLs",
}
"""Why, by kind of resource. Seen in moto 5.2.5."""


@dataclass(frozen=True)
class IgnoredChange:
    """Settings of one kind of resource that are not returned, or returned with another value."""

    kind: str
    settings: tuple[str, ...]
    only_with: str = ""
    """Only of resources that have this setting."""


IGNORED_CHANGES = (
    # It keeps who runs and how many, and not where.
    IgnoredChange(
        "aws_ecs_service",
        (
            "availability_zone_rebalancing",
            "capacity_provider_strategy",
            "deployment_controller",
            "enable_ecs_managed_tags",
            "enable_execute_command",
            "health_check_grace_period_seconds",
            "launch_type",
            "ordered_placement_strategy",
            "placement_constraints",
            "service_registries",
        ),
    ),
    IgnoredChange("aws_eks_cluster", ("access_config", "upgrade_policy")),
    # It makes up an SSH key where none was asked for.
    IgnoredChange("aws_eks_node_group", ("node_repair_config", "remote_access", "update_config")),
    # It adds the template's own tags to those of what the template makes.
    IgnoredChange("aws_launch_template", ("tag_specifications",)),
    IgnoredChange("aws_s3_bucket_notification", ("eventbridge",)),
    # It returns the policy's JSON with spaces, and AWS without.
    IgnoredChange("aws_sqs_queue", ("redrive_policy",), only_with="redrive_policy"),
    IgnoredChange("aws_vpc_security_group_ingress_rule", ("description",), only_with="referenced_security_group_id"),
    IgnoredChange("aws_vpc_security_group_egress_rule", ("description",), only_with="referenced_security_group_id"),
)
"""Seen in moto 5.2.5 by a plan after the apply that was not empty."""


def count_gaps(stack: SynthesizedStack) -> dict[str, int]:
    """Return the resources of a stack that are not supported, by kind."""
    resources = stack.get("resource", {})
    return {kind: len(resources[kind]) for kind in REASONS if kind in resources}


def build_override(stack: SynthesizedStack) -> dict[str, dict[str, Any]]:
    """Return the resources of an override, by kind and name."""
    overrides: dict[str, dict[str, Any]] = {
        kind: {name: _build_absence(settings) for name, settings in stack["resource"][kind].items()}
        for kind in count_gaps(stack)
    }
    for row in IGNORED_CHANGES:
        if ignored := dict(_build_lifecycles(stack, row)):
            overrides[row.kind] = ignored
    return overrides


def _build_absence(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"for_each": "${toset([])}"} if "for_each" in settings else {"count": 0}


def _build_lifecycles(stack: SynthesizedStack, row: IgnoredChange) -> Iterator[tuple[str, Any]]:
    for name, settings in stack.get("resource", {}).get(row.kind, {}).items():
        if not row.only_with or row.only_with in settings:
            existing = settings.get("lifecycle", {}).get("ignore_changes", [])
            yield name, {"lifecycle": {"ignore_changes": [*existing, *row.settings]}}
