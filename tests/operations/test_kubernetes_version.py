"""A plan that moves the control plane of EKS: by one minor version, and only as the file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Eks, Fleet
from llm_serving.operations import plan_checks
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import parse_plan
from llm_serving.terraform.runner import Terraform
from tests.terraform.plan_data import build_change, build_plan

FLEET = """\
name: moved
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: eks
pools:
  general: {types: g6e.2xlarge, size: 0..4}
"""


def check(tmp_path: Path, before: str, version: str = "") -> None:
    """Check the plan of a fleet file, with `version` or without one, for a cluster that has the version `before`."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET + (f'eks: {{version: "{version}"}}\n' if version else ""))
    document = load(file, Fleet)
    entry = build_change("aws_eks_cluster.cluster", "update")
    entry["change"] |= {"before": {"version": before}, "after": {"version": document.value.eks.version}}
    plan = StackPlan("eks", 1, parse_plan(build_plan(entry)))
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    context = FleetContext(document, tmp_path, {}, program, AwsSession("us-west-2"), "123456789012")
    plan_checks.require_version_stated(context, [plan])


def test_a_default_that_moved_does_not_move_a_cluster(tmp_path: Path) -> None:
    default = Eks().version
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, "1.34")
    assert str(error.value) == (
        f'{tmp_path}/fleet.yaml:1:1: eks.version: "{default}": the file does not say it, and the cluster has 1.34. '
        'Fix: write "1.34" to stay, or follow `blueprint fleet upgrade`. The cluster is unchanged'
    )
    check(tmp_path, default)


@pytest.mark.parametrize(("before", "version"), [("1.34", "1.36"), ("1.36", "1.34")])
def test_a_version_that_is_two_steps_away_is_refused(tmp_path: Path, before: str, version: str) -> None:
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, before, version)
    assert str(error.value) == (
        f'{tmp_path}/fleet.yaml:7:16: eks.version: "{version}": the cluster has {before}, and EKS moves it by one '
        f'minor version at a time. Fix: write "{before}" to stay, or follow `blueprint fleet upgrade`. '
        "The cluster is unchanged"
    )


@pytest.mark.parametrize("before", ["1.34", "1.35", "1.36"])
def test_the_version_of_the_file_is_applied_where_it_is_one_step_away_or_the_same(tmp_path: Path, before: str) -> None:
    check(tmp_path, before, "1.35")


def test_a_version_that_no_file_can_name_is_not_named_as_the_fix(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"the cluster has 1\.30, .* Fix: follow `blueprint fleet upgrade`\. The"):
        check(tmp_path, "1.30", "1.35")
