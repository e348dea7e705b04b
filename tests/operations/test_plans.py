from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.operations import plans

# As Terraform 1.11 prints them.
CHANGES = """\
  # aws_vpc.vpc is tainted, so it must be replaced
-/+ resource "aws_vpc" "vpc" {
  # aws_s3_bucket.models will be created
  # aws_s3_bucket.results will be updated in-place
  # aws_kms_alias.storage-key-alias will be destroyed
  # aws_kms_key.storage-key must be replaced

Plan: 3 to add, 1 to change, 3 to destroy.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    document = {"resource": {"aws_vpc": {"vpc": {}}, "aws_eks_addon": {"a": {}, "b": {}}}}
    (tmp_path / "cdk.tf.json").write_text(json.dumps(document))
    return tmp_path


def test_terraforms_words_become_figures_and_what_is_there_is_named(folder: Path) -> None:
    plan = plans._parse_plan("storage", folder, CHANGES, "", False)
    assert (plan.resources, plan.add, plan.change, plan.destroy, plan.is_empty) == (3, 3, 1, 3, False)
    assert plan.affected == {
        "aws_vpc.vpc": "replaced",
        "aws_s3_bucket.results": "updated in-place",
        "aws_kms_alias.storage-key-alias": "destroyed",
        "aws_kms_key.storage-key": "replaced",
    }
    assert plans.summarize(plan) == "+3 ~1 -3"


def test_a_stack_without_a_difference_is_as_it_should_be(folder: Path) -> None:
    plan = plans._parse_plan(
        "storage", folder, "No changes. Your infrastructure matches the configuration.\n", "", False
    )
    assert plan.is_empty and plans.summarize(plan) == "no changes"


def test_a_stack_that_waits_is_neither_empty_nor_planned_and_says_why(folder: Path) -> None:
    plan = plans._parse_plan("eks", folder, None, "looks up the VPC", True)
    assert (plan.is_empty, plan.build_payload()["planned"], plan.deferred_reason, plan.resources) == (
        False,
        False,
        "looks up the VPC",
        3,
    )
    assert plan.not_emulated == {"aws_eks_addon": 2}
    assert plans.summarize(plan) == "waits"
