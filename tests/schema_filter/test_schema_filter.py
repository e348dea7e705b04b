"""What Terraform plans through the filter is what it plans without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llm_serving.terraform import provider_reattach, runner
from tests.infra.serving.test_strategy_change import OFFLINE
from tests.schema_filter.fixtures import REAL_PROGRAM_VARIABLE, TYPES_VARIABLE

pytestmark = pytest.mark.terraform

VERSION = "5.100.0"
CONFIG = {
    "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": VERSION}}},
    "provider": {"aws": OFFLINE},
    "data": {"aws_partition": {"here": {}}},
    "resource": {"aws_sqs_queue": {"jobs": {"name": "jobs-${data.aws_partition.here.partition}"}}},
}

Plan = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """Plan the queue by a program, with one running provider for all."""
    if REAL_PROGRAM_VARIABLE not in os.environ:
        pytest.skip("no Terraform, or no Go to build the filter with")
    folder = tmp_path_factory.mktemp("queue")
    (folder / "main.tf.json").write_text(json.dumps(CONFIG))
    settings = runner.find_terraform(folder, VERSION).environment

    def run(program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **settings, **variables}
        return subprocess.run(
            [program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    assert run("terraform", "init", "-input=false").returncode == 0
    with provider_reattach.start_provider(folder, settings) as reattached:
        yield lambda program, *words, **variables: run(program, *words, **reattached, **variables)


def read_plan(plan: Plan, program: str) -> dict[str, Any]:
    result = plan(program, "plan", "-input=false", "-out=plan")
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(plan(program, "show", "-json", "plan").stdout)
    return {key: value for key, value in document.items() if key != "timestamp"}


def test_a_plan_is_the_same_with_the_schemas_of_our_types_alone(plan: Plan) -> None:
    filtered = read_plan(plan, "terraform")
    [change] = filtered["resource_changes"]
    assert change["change"]["after"]["name"] == "jobs-aws"
    real_program = os.environ[REAL_PROGRAM_VARIABLE]
    assert shutil.which("terraform") != real_program
    assert read_plan(plan, real_program) == filtered


def test_a_type_that_no_stack_can_have_is_refused_by_name(plan: Plan) -> None:
    """The negative control: the filter is there."""
    result = plan("terraform", "plan", "-input=false", **{TYPES_VARIABLE: "aws_partition"})
    assert result.returncode == 1
    assert 'does not support resource type "aws_sqs_queue"' in " ".join(result.stderr.replace("│", "").split())
