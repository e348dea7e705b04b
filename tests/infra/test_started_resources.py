"""Whatever starts compute or an endpoint is in the checks of quotas and zones: a new type of resource has no row, and fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws.preflight import zones
from llm_serving.catalog import account_needs, quotas
from llm_serving.catalog.quotas import Quota
from llm_serving.fleet import capacity
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from tests.infra.conftest import EXAMPLES, FLEETS

ROOT = Path(__file__).resolve().parents[2]

Stacks = Mapping[tuple[str, str], Any]

STARTED = {
    "aws_autoscaling_group": (quotas.AUTO_SCALING_GROUPS, "_check_types"),
    "aws_ec2_capacity_reservation": (None, "_check_types"),  # its vCPUs are its pool's
    "aws_eip": (quotas.ELASTIC_IPS, "_check_zones"),
    "aws_eks_cluster": (quotas.CLUSTERS, "_check_zones"),
    "aws_eks_node_group": (quotas.NODE_GROUPS, "_check_types"),
    "aws_internet_gateway": (quotas.INTERNET_GATEWAYS, "_check_zones"),
    "aws_launch_template": (quotas.LAUNCH_TEMPLATES, "_check_types"),
    "aws_nat_gateway": (quotas.NAT_GATEWAYS, "_check_zones"),
    "aws_vpc": (quotas.VPCS, "_check_zones"),
    "aws_vpc_endpoint": (quotas.GATEWAY_ENDPOINTS, "_check_endpoints"),
}
"""The quota of each type that runs or holds something in a zone, and the check of its zones."""

STARTS_NOTHING = {
    *("aws_cloudwatch_dashboard", "aws_cloudwatch_event_rule", "aws_cloudwatch_event_target"),
    *("aws_cloudwatch_log_group", "aws_cloudwatch_metric_alarm"),
    *("aws_default_security_group", "aws_ecr_lifecycle_policy"),
    *("aws_ecr_pull_through_cache_rule", "aws_ecr_repository", "aws_ecr_repository_creation_template"),
    *("aws_ecs_capacity_provider", "aws_ecs_cluster", "aws_ecs_cluster_capacity_providers"),
    *("aws_ecs_task_definition", "aws_eks_access_entry", "aws_eks_access_policy_association", "aws_eks_addon"),
    *("aws_eks_pod_identity_association", "aws_flow_log", "aws_iam_instance_profile", "aws_iam_role"),
    *("aws_iam_role_policy", "aws_iam_role_policy_attachment", "aws_kms_alias", "aws_kms_key"),
    *("aws_lambda_event_source_mapping", "aws_lambda_function", "aws_lambda_invocation", "aws_lambda_permission"),
    "aws_placement_group",
    *("aws_resourcegroups_group", "aws_resourcegroups_resource", "aws_route", "aws_route_table"),
    *("aws_route_table_association", "aws_s3_bucket", "aws_s3_bucket_lifecycle_configuration"),
    *("aws_s3_bucket_notification", "aws_s3_bucket_ownership_controls", "aws_s3_bucket_policy"),
    *("aws_s3_bucket_public_access_block", "aws_s3_bucket_server_side_encryption_configuration"),
    *("aws_s3_bucket_versioning", "aws_security_group", "aws_service_discovery_http_namespace"),
    *("aws_service_discovery_private_dns_namespace", "aws_sqs_queue", "aws_sqs_queue_policy", "aws_subnet"),
    *("aws_vpc_security_group_egress_rule", "aws_vpc_security_group_ingress_rule"),
}

CALLS = {"run_task": "L-3032A538"}
"""Calls that start compute, with the code of their quota: Fargate's."""


def find_unknown_types(stacks: Stacks) -> Iterator[str]:
    for (shape, name), stack in stacks.items():
        for kind in stack.get("resource", {}):
            if kind not in STARTED and kind not in STARTS_NOTHING:
                yield f"{shape}/{name}: {kind}"


def test_every_type_of_resource_is_known_to_start_something_or_not(stacks: Stacks) -> None:
    assert list(find_unknown_types(stacks)) == []
    new = {("eks", "new"): {"resource": {"aws_elasticache_replication_group": {}}}}
    assert list(find_unknown_types(new)) == ["eks/new: aws_elasticache_replication_group"], "the check can fail"


def list_counted(folder: Path, shape: str) -> set[Quota]:
    fleet = load(folder / shape / "fleet.yaml", Fleet).value
    return {need.quota for need in capacity.compute(fleet).needs if need.amount}


@pytest.mark.parametrize("shape", [*EXAMPLES, *FLEETS])
def test_what_a_fleet_starts_counts_against_its_quota(synth_folder: Path, stacks: Stacks, shape: str) -> None:
    kinds = {kind for (owner, _), stack in stacks.items() if owner == shape for kind in stack.get("resource", {})}
    needed = {quota for kind in kinds & STARTED.keys() if (quota := STARTED[kind][0])}
    assert needed <= list_counted(synth_folder, shape)


def test_every_zone_check_is_one_of_the_preflights() -> None:
    assert all(hasattr(zones, check) for _, check in STARTED.values())


@pytest.mark.parametrize("shape", ["eks", "existing", "p5-efa"])
def test_the_clusters_own_nodes_count(synth_folder: Path, shape: str) -> None:
    assert quotas.STANDARD.on_demand in list_counted(synth_folder, shape)


def test_every_call_that_starts_tasks_has_a_quota() -> None:
    calls = "|".join(("run_task", "run_instances", "start_task", "create_fleet", "request_spot_fleet"))
    started_types = {
        match
        for file in (ROOT / "src").rglob("*.py")
        for match in re.findall(rf"\.({calls})\(", file.read_text(encoding="utf-8"))
    }
    assert started_types == set(CALLS)
    codes = {row.quota.code for needs in account_needs.load_all().values() for row in needs.quotas}
    assert set(CALLS.values()) <= codes
