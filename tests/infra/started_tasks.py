"""What a deployment's stack starts: each type of resource has the code of its quota, or starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from llm_serving.catalog import account_needs

FARGATE = {"FARGATE": "L-3032A538", "FARGATE_SPOT": "L-36FBB829"}
"""Quotas of vCPUs, by capacity provider or launch type; instances count as their pool's."""

STARTED = {"aws_lb": "L-53DA6B97"}

STARTS_NOTHING = {
    *("aws_appautoscaling_policy", "aws_appautoscaling_scheduled_action", "aws_appautoscaling_target"),
    "aws_cloudwatch_dashboard",
    "aws_cloudwatch_event_rule",
    *("aws_cloudwatch_event_target", "aws_cloudwatch_log_group", "aws_cloudwatch_metric_alarm"),
    *("aws_ecs_task_definition", "aws_eks_pod_identity_association", "aws_glue_catalog_database"),
    *("aws_glue_catalog_table", "aws_iam_role", "aws_iam_role_policy", "aws_kms_alias", "aws_kms_key"),
    *("aws_lb_listener", "aws_lb_target_group", "aws_scheduler_schedule", "aws_security_group"),
    *("aws_service_discovery_service", "aws_sfn_state_machine", "aws_sns_topic", "aws_sns_topic_policy"),
    *("aws_sqs_queue", "aws_vpc_security_group_egress_rule", "aws_vpc_security_group_ingress_rule"),
    "aws_wafv2_web_acl_association",
}


def assert_counted(stacks: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    """Check a kind's stacks, and that what has no row and no quota would be found."""
    assert [item for stack in stacks.values() for item in _find_uncounted(stack, kind)] == []
    assert list(_find_uncounted({"resource": {"aws_db_instance": {}}}, kind)) == ["aws_db_instance"]
    service = {"aws_ecs_service": {"other": {"launch_type": "FARGATE"}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FARGATE, "FARGATE", "L-00000000")
        assert list(_find_uncounted({"resource": service}, kind)) == ["L-00000000"]


def _find_uncounted(stack: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Yield types of resources without a row, and codes of quotas that the kind's account.yaml does not have."""
    resources = stack.get("resource", {})
    yield from resources.keys() - STARTED.keys() - STARTS_NOTHING - {"aws_ecs_service"}
    counted = {row.quota.code for row in account_needs.load_all()[kind].quotas}
    yield from {STARTED[name] for name in resources.keys() & STARTED.keys()} - counted
    for service in resources.get("aws_ecs_service", {}).values():
        strategy = service.get("capacity_provider_strategy") or [{"capacity_provider": service.get("launch_type")}]
        yield from {
            FARGATE[row["capacity_provider"]] for row in strategy if row["capacity_provider"] in FARGATE
        } - counted
