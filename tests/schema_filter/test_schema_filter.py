"""What Terraform plans through the filter is what it plans without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.terraform import provider_reattach, runner
from tests.infra.serving.test_strategy_change import OFFLINE
from tests.schema_filter.fixtures import REAL_PROGRAM_VARIABLE, TYPES_VARIABLE

pytestmark = pytest.mark.terraform

VERSION = "5.100.0"
PROVIDER_LOCK = paths.ROOT / "infra/.terraform.lock.hcl"
CONFIG = {
    "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": VERSION}}},
    "provider": {"aws": OFFLINE},
    "data": {"aws_partition": {"here": {}}},
    "resource": {"aws_sqs_queue": {"jobs": {"name": "jobs-${data.aws_partition.here.partition}"}}},
}

Plan = Callable[..., subprocess.CompletedProcess[str]]


def run_in(folder: Path, program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **runner.find_terraform(folder, VERSION).environment, **variables}
    return subprocess.run(
        [program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def write_queue(folder: Path) -> Path:
    if REAL_PROGRAM_VARIABLE not in os.environ:
        pytest.skip("no Terraform, or no Go to build the filter with")
    (folder / "main.tf.json").write_text(json.dumps(CONFIG))
    shutil.copy(PROVIDER_LOCK, folder)
    return folder


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """Plan the queue by a program, with one running provider for all."""
    folder = write_queue(tmp_path_factory.mktemp("queue"))
    assert run_in(folder, "terraform", "init", "-input=false").returncode == 0
    with provider_reattach.start_provider(folder, runner.find_terraform(folder, VERSION).environment) as reattached:
        yield lambda program, *words, **variables: run_in(folder, program, *words, **reattached, **variables)


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


def test_an_init_links_the_provider_that_passed_for_the_same_lock_file(plan: Plan, tmp_path: Path) -> None:
    folder = write_queue(tmp_path)
    lock = folder / PROVIDER_LOCK.name
    assert run_in(folder, "terraform", "init", "-input=false").returncode == 0
    assert lock.read_text() == PROVIDER_LOCK.read_text()
    pulled = run_in(folder, os.environ[REAL_PROGRAM_VARIABLE], "state", "pull")
    assert pulled.returncode == 0, "Terraform itself holds the link's provider against the lock file"


def test_an_init_refuses_a_provider_of_another_hash(plan: Plan, tmp_path: Path) -> None:
    folder = write_queue(tmp_path)
    lock = folder / PROVIDER_LOCK.name
    lock.write_text(re.sub(r'"(h1|zh):.', r'"\1:x', lock.read_text()))
    result = run_in(folder, "terraform", "init", "-input=false")
    assert result.returncode == 1
    assert "checksums" in result.stderr
