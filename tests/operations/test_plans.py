from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.operations import plans
from llm_serving.terraform.plan import parse_plan
from tests.terraform.plan_data import build_change, build_plan

CHANGES = build_plan(
    build_change("aws_vpc.vpc", "delete", "create"),
    build_change("aws_subnet.a", "create"),
    build_change("aws_s3_bucket.models", "create"),
    build_change("aws_s3_bucket.results", "update"),
    build_change("aws_kms_alias.storage-key-alias", "delete"),
    build_change("aws_kms_key.storage-key", "create", "delete"),
    build_change("aws_eip.a", "no-op"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    document = {"resource": {"aws_vpc": {"vpc": {}}, "aws_eks_addon": {"a": {}, "b": {}}}}
    (tmp_path / "cdk.tf.json").write_text(json.dumps(document))
    return tmp_path


def test_a_saved_plan_becomes_counts_and_names_existing_resources_that_change(folder: Path) -> None:
    stack_plan = plans.build_stack_plan("storage", folder, parse_plan(CHANGES), emulated=False)
    plan = stack_plan.plan
    assert (stack_plan.resources, plan.add, plan.change, plan.destroy, stack_plan.is_empty) == (3, 4, 1, 3, False)
    assert stack_plan.build_payload()["touched"] == {
        "aws_vpc.vpc": "replaced",
        "aws_s3_bucket.results": "updated in-place",
        "aws_kms_alias.storage-key-alias": "destroyed",
        "aws_kms_key.storage-key": "replaced",
    }
    assert plans.summarize(stack_plan) == "+4 ~1 -3"


def test_a_stack_without_a_difference_is_up_to_date(folder: Path) -> None:
    unchanged = parse_plan(build_plan(build_change("aws_vpc.vpc", "no-op")))
    plan = plans.build_stack_plan("storage", folder, unchanged, emulated=False)
    assert plan.is_empty and plans.summarize(plan) == "no changes"


def test_a_new_output_alone_is_applied_too(folder: Path) -> None:
    plan = plans.build_stack_plan(
        "storage", folder, parse_plan(build_plan(outputs={"vpc_id": "create"})), emulated=False
    )
    assert not plan.is_empty and plans.summarize(plan) == "outputs only"


def test_a_deferred_plan_is_neither_empty_nor_planned_and_gives_its_reason(folder: Path) -> None:
    plan = plans.build_stack_plan("eks", folder, None, "needs stack network", emulated=True)
    assert (plan.is_empty, plan.build_payload()["planned"], plan.deferred_reason, plan.resources) == (
        False,
        False,
        "needs stack network",
        3,
    )
    assert plan.not_emulated == {"aws_eks_addon": 2}
    assert plans.summarize(plan) == "deferred"
