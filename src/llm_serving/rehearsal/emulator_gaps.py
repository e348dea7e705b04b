"""What the embedded AWS cannot hold: left out of a rehearsal by kind, counted, and said with the reason.

The synthesized stack stays as it is; the override beside it says what Terraform does otherwise here:

- `count` is 0 for kinds of resources that the embedded AWS does not know. So nothing in a stack may read an attribute
  of such a resource but by a splat (`[*]`), only come after it (depends_on).
- Changes are ignored of settings that it takes and does not give back.

The mocked provider's tests cover both: there every resource is planned and applied whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Stack = Mapping[str, Any]

REASONS: Mapping[str, str] = {
    "aws_appautoscaling_policy": "the embedded Application Auto Scaling cannot be asked for tags",
    "aws_appautoscaling_target": "the embedded Application Auto Scaling cannot be asked for tags",
    "aws_eks_addon": "the embedded EKS has no add-ons",
    "aws_eks_access_entry": "the embedded EKS has no access entries",
    "aws_eks_access_policy_association": "the embedded EKS has no access entries",
    "aws_eks_pod_identity_association": "the embedded EKS has no Pod Identity",
    "aws_placement_group": "the embedded EC2 has no placement groups",
    "aws_ec2_capacity_reservation": "the embedded EC2 has no capacity reservations",
    "aws_lambda_invocation": "the embedded AWS runs no functions",
    "aws_resourcegroups_group": "the embedded Resource Groups holds no capacity reservations",
    "aws_resourcegroups_resource": "the embedded Resource Groups holds no capacity reservations",
}
"""Why, by kind of resource. Seen in moto 5.2.5."""


@dataclass(frozen=True)
class Forgotten:
    """Settings of one kind of resource that are taken and not given back, or given back as something else."""

    kind: str
    settings: tuple[str, ...]
    where: str = ""
    """Only of resources that have this setting."""


FORGOTTEN = (
    # It keeps who runs and how many, and not where.
    Forgotten(
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
    Forgotten("aws_eks_cluster", ("access_config", "upgrade_policy")),
    # It makes up an SSH key where none was asked for.
    Forgotten("aws_eks_node_group", ("node_repair_config", "remote_access", "update_config")),
    # It adds the template's own tags to those of what the template makes.
    Forgotten("aws_launch_template", ("tag_specifications",)),
    Forgotten("aws_vpc_security_group_ingress_rule", ("description",), where="referenced_security_group_id"),
    Forgotten("aws_vpc_security_group_egress_rule", ("description",), where="referenced_security_group_id"),
)
"""Seen in moto 5.2.5 by a plan after the apply that was not empty."""


def counted(stack: Stack) -> dict[str, int]:
    """How many resources of each kind that it does not know a stack has."""
    made = stack.get("resource", {})
    return {kind: len(made[kind]) for kind in REASONS if kind in made}


def override(stack: Stack) -> dict[str, dict[str, Any]]:
    """The resources' part of an override, by kind and name."""
    found: dict[str, dict[str, Any]] = {
        kind: {name: {"count": 0} for name in stack["resource"][kind]} for kind in counted(stack)
    }
    for row in FORGOTTEN:
        if ignored := dict(_ignored(stack, row)):
            found[row.kind] = ignored
    return found


def _ignored(stack: Stack, row: Forgotten) -> Iterator[tuple[str, Any]]:
    for name, settings in stack.get("resource", {}).get(row.kind, {}).items():
        if not row.where or row.where in settings:
            own = settings.get("lifecycle", {}).get("ignore_changes", [])
            yield name, {"lifecycle": {"ignore_changes": [*own, *row.settings]}}
